#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

#include "virtual_gpu/values/operators.h"
#include "virtual_gpu/values/shadows.h"

namespace memledger::virtual_gpu {

// Returns at most how many different values the tensor has: its elements, or fewer for integers and
// bools (each NaN differs from each other). Thread-safe; cheap.
uint64_t max_distinct(const at::Tensor& tensor);

// How many different values an operator leaves. Taken when it begins, as it may write to its
// inputs; keeps no tensor alive.
class DistinctResult {
 public:
  // Nothing for most operators.
  static std::optional<DistinctResult> of(const OperatorInfo& info,
                                          c10::ArrayRef<const c10::IValue> arguments);

  // Notes it of the operator's first result, once it has ended and what it wrote to is forgotten.
  // Returns where that is; nothing where nothing was noted.
  std::optional<Place> keep(const at::Tensor& result) const;

 private:
  explicit DistinctResult(uint64_t count) : count_(count) {}

  uint64_t count_;
  bool is_of_storage_ = false;  // all of it, not only of the result
};

}  // namespace memledger::virtual_gpu
