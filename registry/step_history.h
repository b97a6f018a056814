#pragma once

// What was alive at the ends of optimizers' steps: after the second, and after the last, though the
// program may have let go of it since.
//
//   memledger::keep_steps();
//   …
//   const memledger::StepHistory steps = memledger::step_history();
//   std::cout << steps.last.total_bytes(at::kCUDA) << " bytes between steps\n";
//
// A step is LibTorch's or Python's optimizer's, or inferred (Phase::kOptimizer). Only this copy's
// hooks are asked. Any thread may call these functions.

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "registry/snapshot.h"

namespace memledger {

struct StepOfDevice {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int64_t step = 0;        // from 1
  int64_t bytes = 0;       // alive at its end, as requested
  int64_t peak_bytes = 0;  // the highest so far
};

struct StepHistory {
  int64_t steps = 0;
  // By step, then by device; of a long training every second, fourth and so on, and the last.
  std::vector<StepOfDevice> course;
  // The step that reached each device's peak; devices whose peak came after the last are missing.
  std::vector<StepOfDevice> peaks;
  int64_t baseline_step = 0;  // 0: too few steps
  Snapshot baseline, last;    // empty where there was none
  bool ran_backward = false;  // a backward pass has begun; known without keep_steps(), too
};

// Keeps the ends of steps from now on, for the life of the process. Costs some microseconds for
// each step, and a record of 147 bytes for each storage that was alive then and has ended. Throws
// std::bad_alloc.
void keep_steps();

// Returns the steps so far; empty without keep_steps(). One that is running on the calling thread
// counts as ended. Throws std::bad_alloc.
StepHistory step_history();

// Returns the highest id of a storage so far, or a number up to 64 above it.
uint64_t newest_storage_so_far() noexcept;

}  // namespace memledger
