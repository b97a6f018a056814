#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <vector>

#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/shadows.h"

namespace memledger::virtual_gpu {

// An operator's arguments as they are known when it begins, to compute on the host what it does on
// the device. Holds no tensor of the device.
// Whether what lies there is computed here. More elements than LibTorch computes on one thread are
// not: a program that forks does not expect it to have others.
bool may_compute(const Place& place);

class Computation {
 public:
  // Nothing where its result could not be known.
  static std::optional<Computation> of(const OperatorInfo& info,
                                       c10::ArrayRef<const c10::IValue> arguments);

  // The operator's returns, in order; contiguous. May throw. Needs a PlainCpu.
  std::vector<Value> run();
  // Runs an operator that returns a bool and has no rule for what is partly known.
  bool answer();

 private:
  struct Argument {
    c10::IValue value;                // tensors are on the host
    std::vector<at::Tensor> unknown;  // for each tensor in it, undefined where all is known
    bool is_known() const;
  };

  explicit Computation(const OperatorInfo& info) : info_(&info) {}
  bool add(c10::IValue value, size_t index);
  std::optional<Value> look_at(const at::Tensor& tensor, size_t index);
  bool is_unambiguous();
  bool is_safe_division() const;
  std::vector<at::Tensor> call(std::vector<c10::IValue> stack);
  at::Tensor moved_unknown(const at::Tensor& result);
  at::Tensor unknown_of(const at::Tensor& result);
  const at::Tensor& mask(size_t argument) const { return arguments_[argument].unknown[0]; }

  const OperatorInfo* info_;
  std::vector<Argument> arguments_;
  bool any_known_ = false;
};

}  // namespace memledger::virtual_gpu
