#pragma once

// Observes when the children of Sequentials begin and end: while it lives, stand-ins take the
// children's places for forward() only. The registered modules, their names and parameters stay as
// they are. A forward() that asks a Sequential for a child by type (`at<T>(i)`, `ptr<T>(i)`)
// meanwhile gets c10::Error.

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace memledger::layers {

class SequentialProbes {
 public:
  struct Listener {
    std::function<void(torch::nn::Module&)> begins;
    // Called with what it returned, if that is one tensor, else with null.
    std::function<void(torch::nn::Module&, const at::Tensor*)> ends;
  };

  // The modules must outlive it, and nobody else may run or change them meanwhile.
  SequentialProbes(const std::vector<torch::nn::Module*>& modules, Listener listener);
  ~SequentialProbes();
  SequentialProbes(const SequentialProbes&) = delete;
  SequentialProbes& operator=(const SequentialProbes&) = delete;

 private:
  struct Places;
  std::unique_ptr<Places> places_;
};

}  // namespace memledger::layers
