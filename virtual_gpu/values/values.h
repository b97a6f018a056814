#pragma once

// The values of small tensors on the virtual GPU, as far as they are known: where a program reads
// them, it takes the same way as on a device. Nothing here does anything without a virtual GPU.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace memledger::virtual_gpu {

// Whether the values of tensors on the virtual GPU are followed, now and in this process.
bool values_are_followed() noexcept;

// Returns the content of a CUDA tensor as a CPU tensor of the same shape, if all of it is known.
// It is the caller's own: what is written to the CUDA tensor later does not change it, and the
// caller may not write to it. A CPU tensor is returned as it is. Throws nothing; any thread.
std::optional<at::Tensor> known_values(const at::Tensor& tensor) noexcept;

// Returns at most how many different values a tensor has: as many as it has elements, or fewer
// where it is of integers that come from fewer. Throws nothing; any thread.
uint64_t max_distinct_values(const at::Tensor& tensor) noexcept;

// Returns whether all bytes of this thread's last copy from the device were known.
bool last_copy_was_known() noexcept;

// While it lives, this thread runs LibTorch's own CPU kernels as they are: without observers,
// autograd, autocast or any mode of the program, and without entries in memledger's books.
class PlainCpu {
 public:
  PlainCpu();
  ~PlainCpu();
  PlainCpu(const PlainCpu&) = delete;
  PlainCpu& operator=(const PlainCpu&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace memledger::virtual_gpu
