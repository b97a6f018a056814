#pragma once

#include <string>

namespace torch {
namespace nn {
class Module;
}
}  // namespace torch

namespace memledger {

// Returns Linear for torch::nn::LinearImpl.
std::string type_name_of(const torch::nn::Module& module);

}  // namespace memledger
