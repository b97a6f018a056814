#pragma once

#include <cstdint>

namespace memledger {

// Bytes as requested and storages (or raw blocks) of one device. A plain value: counters of two
// moments subtract to what happened between them (the peaks then are the later ones, as a peak has
// no difference). Storages adopted later (born before tracking) are in current and peak and, when
// freed, in freed, but never in allocated.
struct Counters {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;  // highest current_bytes since activation or Registry::reset_peak
  int64_t allocated_bytes = 0;
  int64_t freed_bytes = 0;
  int64_t current_count = 0;
  int64_t peak_count = 0;
  int64_t allocated_count = 0;
  int64_t freed_count = 0;

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

// Trouble that the hooks met and kept from the program. All zero in a healthy run.
struct HookHealth {
  // Freed through our deleter, but never recorded. Not counted once something was allocated unseen
  // (before the first activation, in a gap): then such frees are to be expected.
  int64_t unknown_frees = 0;
  int64_t dropped_records = 0;  // storages that could not be recorded, or whose free was never seen
  int64_t swallowed_exceptions = 0;  // exceptions stopped inside a hook
};

}  // namespace memledger
