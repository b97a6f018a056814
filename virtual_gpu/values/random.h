#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "virtual_gpu/values/operators.h"

namespace memledger::virtual_gpu {

// Where in a generator's numbers a kernel begins to draw. LibTorch's generator for CUDA is
// Philox4x32-10, so that its numbers follow from these two.
struct RandomNumbers {
  uint64_t seed = 0;
  uint64_t offset = 0;  // in numbers of 32 bits, of each thread of the kernel
};

// The state of the generator that an operator draws from.
struct GeneratorState {
  // The operator's, or the device's default one. Nothing where LibTorch does not say it.
  static std::optional<GeneratorState> of(c10::ArrayRef<const c10::IValue> arguments,
                                          c10::DeviceIndex device);
  // The same generator's, now.
  std::optional<GeneratorState> now() const;

  at::Generator generator;
  bool is_captured = false;
  // Numbers or, where captured, addresses of such on the device.
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint64_t captured_offset = 0;  // is added to what lies there

  // Whether `other` is this one's after `count` numbers of each thread.
  bool is_followed_by(const GeneratorState& other, uint64_t count) const;
};

// A kernel's launch, to know which number is whose.
struct DrawnBy {
  unsigned blocks = 0;
  unsigned threads = 0;
};

// Returns by how many numbers of each thread the operator moves its generator, for this many
// elements; nothing if the kernel is not the known one.
std::optional<uint64_t> numbers_taken(Distribution distribution, int64_t elements,
                                      const DrawnBy& launch);

// What an operator of a distribution makes of `self`, a contiguous tensor on the host. `arguments`
// are the operator's, on the host; undefined where that is not known. Needs a PlainCpu.
at::Tensor draw(Distribution distribution, const at::Tensor& self,
                c10::ArrayRef<c10::IValue> arguments, const RandomNumbers& numbers);

}  // namespace memledger::virtual_gpu
