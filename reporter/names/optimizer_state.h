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

// Returns Adam, AdamW, SGD, RMSprop, Adagrad or LBFGS; Optimizer for one that is not LibTorch's.
std::string name_of(const torch::optim::Optimizer& optimizer);

// Calls visit(slot name, tensor) for each tensor that the optimizer keeps for one parameter:
// exp_avg, momentum_buffer, old_dirs.3. Visits nothing of an optimizer that is not LibTorch's, as
// the type of its state is unknown.
void for_each_state(const torch::optim::Optimizer& optimizer, const c10::TensorImpl* param,
                    const std::function<void(const std::string&, const at::Tensor&)>& visit);

}  // namespace memledger
