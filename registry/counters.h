#pragma once

// Counters of one device, and the trouble that hooks met. Plain values.
//
//   memledger::Registry& registry = memledger::Registry::global();
//   const memledger::Counters before = registry.counters(at::kCPU);
//   output = model->forward(input);
//   std::cout << (registry.counters(at::kCPU) - before).allocated_bytes << " bytes allocated\n";

#include <cstdint>

namespace memledger {

// Bytes as requested, and numbers of storages and raw blocks. Storages adopted later (born before
// tracking) are in current and peak, and in freed when freed, but never in allocated.
struct Counters {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;  // highest current_bytes since activation or Registry::reset_peak
  int64_t allocated_bytes = 0;
  int64_t freed_bytes = 0;
  int64_t current_count = 0;
  int64_t peak_count = 0;
  int64_t allocated_count = 0;
  int64_t freed_count = 0;

  // Returns what happened between two moments. Peaks, which have no difference, are the later ones.
  friend Counters operator-(Counters later, const Counters& earlier) {
    later.current_bytes -= earlier.current_bytes;
    later.allocated_bytes -= earlier.allocated_bytes;
    later.freed_bytes -= earlier.freed_bytes;
    later.current_count -= earlier.current_count;
    later.allocated_count -= earlier.allocated_count;
    later.freed_count -= earlier.freed_count;
    return later;
  }
};

// Trouble that hooks met and kept from the program. All zero in a healthy run.
struct HookHealth {
  // Blocks freed through our deleter that were never recorded. Not counted after something was
  // allocated unseen (before the first activation, or in a gap), when such frees are expected.
  int64_t unknown_frees = 0;
  int64_t dropped_records = 0;  // storages that could not be recorded, or whose free was never seen
  int64_t swallowed_exceptions = 0;  // exceptions stopped inside a hook
};

}  // namespace memledger
