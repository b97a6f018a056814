// Saved-variable hooks that say what they hold, so that it can be counted without unpacking.
//
//   struct InHalf final : memledger::CountedHooks {
//     void call_pack_hook(const at::Tensor& tensor) override { half =
//     tensor.detach().to(at::kHalf); } at::Tensor call_unpack_hook() override { return
//     half.to(at::kFloat); } std::vector<at::Tensor> packed_tensors() const override { return
//     {half}; } at::Tensor half;
//   };
//
// What other hooks hold cannot be known: saved_for_backward() lists their nodes as "packed, not
// opened".

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <vector>

namespace memledger {

class CountedHooks : public torch::autograd::SavedVariableHooks {
 public:
  // The tensors that these hooks keep alive instead of the one they were given, none if that lies
  // elsewhere (in a file). Called while the graph is read, under the lock of the node that saved
  // the tensor: change nothing, wait for nothing.
  virtual std::vector<at::Tensor> packed_tensors() const = 0;
};

}  // namespace memledger
