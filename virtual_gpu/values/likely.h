#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <optional>

namespace memledger::virtual_gpu {

// What elements of a tensor are likely to be, where nobody knows them. It decides nothing: it is
// what a run assumes at first, so that programs go the way that they usually go on a device.
struct Likely {
  double value = 0;
  bool is_sure = false;  // a check for numbers that are not finite: of a program that works
};

// Returns what is noted of the tensor's elements; nothing for most. Throws nothing; any thread.
std::optional<Likely> likely_value(const at::Tensor& tensor) noexcept;

// What elements of the type are likely to be where nothing is noted: an ordinary fraction is 1.
double likely_of_type(c10::ScalarType type);

// To be called when an operator begins, without observers or modes (PlainCpu). Returns what its
// first result is likely to be, for keep_likely() when it ends.
std::optional<Likely> likely_result(const at::RecordFunction& fn);
void keep_likely(const at::RecordFunction& fn, const Likely& likely);
// To be called when an operator begins, after likely_result(): what was noted of the tensors that
// it writes to no longer holds.
void forget_likely(const at::RecordFunction& fn);

// Whether likely_result() may return something for the operator: most are told apart by their name.
bool may_have_likely_result(const at::RecordFunction& fn);

}  // namespace memledger::virtual_gpu
