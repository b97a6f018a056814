#pragma once

// Saved-variable hooks that say what they hold, so that it is counted without unpacking.
//
//   struct InHalf final : memledger::CountedHooks {
//     void call_pack_hook(const at::Tensor& x) override { half = x.detach().to(at::kHalf); }
//     at::Tensor call_unpack_hook() override { return half.to(at::kFloat); }
//     std::vector<at::Tensor> packed_tensors() const override { return {half}; }
//     at::Tensor half;
//   };

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <vector>

namespace memledger {

// What other hooks hold cannot be known: saved_for_backward() lists their nodes as "packed, not
// opened".
class CountedHooks : public torch::autograd::SavedVariableHooks {
 public:
  // Returns the tensors that these hooks keep alive instead of the one they were given; none if
  // its data lies elsewhere, in a file for example. Called while the graph is read, under the lock
  // of the node that saved the tensor: change nothing and wait for nothing. If it throws, the node
  // is listed as packed.
  virtual std::vector<at::Tensor> packed_tensors() const = 0;
};

}  // namespace memledger
