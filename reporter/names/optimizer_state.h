#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch {
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace memledger {

// Adam, AdamW, SGD, RMSprop, Adagrad, LBFGS; `Optimizer` for one that LibTorch does not bring.
std::string name_of(const torch::optim::Optimizer& optimizer);

// Calls visit(slot name, tensor) for each tensor the optimizer keeps for one parameter: exp_avg,
// momentum_buffer, old_dirs.3 … Optimizers that LibTorch does not bring have states of unknown
// type: nothing is visited.
void for_each_state(const torch::optim::Optimizer& optimizer, const c10::TensorImpl* param,
                    const std::function<void(const std::string&, const at::Tensor&)>& visit);

}  // namespace memledger
