#pragma once

namespace memledger::inside {

// For Python programs whose torch is not the release that memledger was built for. When the program
// ends, that torch is asked for its own statistics and for the largest allocations at its peak.
// They go into a file if the run is measured (kTorchExtension in prediction/measure_variables.h),
// else to standard error. The caller may hold the dynamic linker's lock: Python's main thread does
// the work later. Does nothing without Python.
void ask_other_release();

}  // namespace memledger::inside
