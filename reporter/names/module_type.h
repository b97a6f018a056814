#pragma once

#include <string>

namespace torch {
namespace nn {
class Module;
}
}  // namespace torch

namespace memledger {

// Returns Linear for torch::nn::LinearImpl, and the name of a module that was given one.
std::string type_name_of(const torch::nn::Module& module);

// Returns the same without the module's help: Module::name() keeps what it says when it is first
// asked, which is wrong while the module is still being made.
std::string type_name_now(const torch::nn::Module& module);

}  // namespace memledger
