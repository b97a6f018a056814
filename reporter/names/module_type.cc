#include "reporter/names/module_type.h"

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <string_view>
#include <typeinfo>
#include <utility>

namespace memledger {

namespace {

// Bases that know what is made of them:
// torch::nn::NormImplBase<1ul, torch::nn::BatchNorm1dImpl, torch::nn::BatchNormOptions>.
std::string derived_of(const std::string& name) {
  constexpr std::string_view kModules = "torch::nn::";
  constexpr std::string_view kImpl = "Impl";
  if (name.compare(0, kModules.size(), kModules) != 0) return name;
  const size_t arguments = name.find('<');
  if (arguments == std::string::npos) return name;
  for (const char* const end : {"Impl,", "Impl>"}) {
    const size_t found = name.rfind(end);
    if (found != std::string::npos && found > arguments)
      return name.substr(arguments + 1, found + kImpl.size() - arguments - 1);
  }
  return name;
}

std::string shortened(std::string name) {
  name = derived_of(name);
  if (const size_t colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() &&
      name.compare(name.size() - kImpl.size(), kImpl.size(), kImpl) == 0)
    name.resize(name.size() - kImpl.size());
  return name;
}

}  // namespace

std::string type_name_of(const torch::nn::Module& module) { return shortened(module.name()); }

std::string type_name_now(const torch::nn::Module& module) {
  return shortened(c10::demangle(typeid(module).name()));
}

}  // namespace memledger
