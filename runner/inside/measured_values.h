#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "prediction/measurement.h"
#include "registry/allocation_failure.h"

namespace memledger::inside {

// What dry-run measures of this process, as values. Any thread; they throw std::bad_alloc.

// What the program has taken of each GPU that it used; empty where it used none.
std::vector<prediction::MeasuredDevice> measured_devices();
// The moment when most was requested on a device. Looks up lines of C++ the first time, some 100 ms
// for each library.
prediction::MeasuredPeak measured_peak(int device);
// The values that only a device has and that the program has read so far.
std::vector<prediction::MeasuredRead> measured_reads(bool with_lines);
// Measurement::missing_cudnn.
std::string missing_cudnn();
// An allocation that has failed just now, on this thread.
prediction::MeasuredFailure measured_failure(const AllocationFailure& failed);

// What LibTorch has allocated on a device at this moment, and what the process has taken of it.
// Cost: below a microsecond, but for real devices, of which it is LibTorch's reserved bytes.
struct BytesNow {
  int64_t allocated = 0, process = 0;
};
BytesNow bytes_now(int device);

// What is compared from step to step, of all devices together.
struct Totals {
  int64_t peak_bytes = 0;
  int64_t used_bytes = 0;
  // LibTorch's count of all allocations so far, and what they requested.
  int64_t allocations = 0;
  int64_t requested_in_all = 0;
};
Totals measured_totals();
// Returns a hash of all blocks of LibTorch's allocators: where they are, how large, and whether
// they are in use. Two moments with the same hash have the same blocks. Cost: about a microsecond
// for ten blocks.
uint64_t hash_of_blocks();
// Restarts all peaks: LibTorch's, the registry's and those of the virtual GPU.
void reset_measured_peaks();
bool has_used_a_gpu();

}  // namespace memledger::inside
