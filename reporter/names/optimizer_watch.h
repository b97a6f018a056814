#pragma once

// Shows an optimizer's states to threads other than the one that steps it.
//
// The first step fills the optimizer's map without a lock. So the states of a parameter are noted,
// by weak references, when an operator of a step writes to the parameter: on the thread that steps,
// while the map is whole. LBFGS replaces its states after that: those of its last write are known.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace memledger {

// exp_avg and its tensor …; strong references: let go of them soon.
using NamedStates = std::vector<std::pair<std::string, at::Tensor>>;

// Thread-safe. Once the watch has ended, memledger does not touch the optimizer.
class OptimizerWatch {
 public:
  // To be made on a thread that may read the optimizer's parameters.
  explicit OptimizerWatch(const torch::optim::Optimizer& optimizer);
  ~OptimizerWatch();
  OptimizerWatch(const OptimizerWatch&) = delete;
  OptimizerWatch& operator=(const OptimizerWatch&) = delete;

  // Also watches parameters that were added, or given other storages, since the last call.
  void find_parameters();
  // Notes the states as they are. To be called on a thread that may read them.
  void note();

  const torch::optim::Optimizer& optimizer() const;
  // Returns a parameter's states as last noted.
  NamedStates noted(const c10::TensorImpl* parameter) const;

 private:
  struct Watch;
  struct Table;
  static void on_write(const at::Tensor& written) noexcept;
  std::unique_ptr<Watch> watch_;
};

}  // namespace memledger
