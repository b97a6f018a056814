#include "reporter/names/module_type.h"

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <string_view>
#include <typeinfo>
#include <utility>

namespace memledger {

namespace {

std::string shortened(std::string name) {
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
