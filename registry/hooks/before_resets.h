#pragma once

// What LibTorch's CUDA allocator said of a device before the program had it forget that
// (reset_peak_memory_stats(), reset_accumulated_memory_stats()): its statistics are since then.

#include <cstdint>

namespace memledger {

struct BeforeResets {
  int64_t allocated_peak = 0;  // the highest
  int64_t reserved_peak = 0;
  int64_t allocations = 0;  // sums
  int64_t requested_bytes = 0;
};

// Notes peaks that will be forgotten, or sums. Any thread; take no lock.
void note_peaks_before_reset(int device, int64_t allocated, int64_t reserved) noexcept;
void note_sums_before_reset(int device, int64_t allocations, int64_t requested_bytes) noexcept;

// Returns zeros for a device that was never reset.
BeforeResets before_resets(int device) noexcept;

}  // namespace memledger
