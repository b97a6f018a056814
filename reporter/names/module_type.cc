#include "reporter/names/module_type.h"

#include <torch/nn/module.h>

#include <string_view>

namespace memledger {

std::string type_name_of(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const size_t colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() &&
      name.compare(name.size() - kImpl.size(), kImpl.size(), kImpl) == 0)
    name.resize(name.size() - kImpl.size());
  return name;
}

}  // namespace memledger
