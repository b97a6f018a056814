#pragma once

// What an optimizer keeps for its parameters, for readers beside the thread that steps it.
//
// The first step fills the optimizer's map, without a lock. So the states of a parameter are noted,
// by weak references, when an operator of a step writes to it: on the thread that steps, at a
// moment when the map is whole. LBFGS goes on after that with states that it replaces in each step:
// those of its last write are known.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace memledger {

using NamedStates =
    std::vector<std::pair<std::string, at::Tensor>>;  // exp_avg …; strong references: let go of
                                                      // them soon

// Any thread may call any of these, and end the watch; after its end nothing of memledger's touches
// the optimizer.
class OptimizerWatch {
 public:
  // On a thread that may read the optimizer's parameters.
  explicit OptimizerWatch(const torch::optim::Optimizer& optimizer);
  ~OptimizerWatch();
  OptimizerWatch(const OptimizerWatch&) = delete;
  OptimizerWatch& operator=(const OptimizerWatch&) = delete;

  // Parameters that were added, or given other storages, since it was last called, are watched from
  // now on.
  void find_parameters();
  // Notes the states as they are. On a thread that may read them.
  void note();

  const torch::optim::Optimizer& optimizer() const;
  // The last step that was seen ran on the calling thread, which may then read the states itself.
  bool steps_on_this_thread() const;
  NamedStates noted(const c10::TensorImpl* parameter) const;

 private:
  struct Watch;
  struct Table;
  static void on_write(const at::Tensor& written) noexcept;
  std::unique_ptr<Watch> watch_;
};

}  // namespace memledger
