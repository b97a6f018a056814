#pragma once

namespace memledger::inside {

// In a Python program whose torch is of another release than memledger was built for: asks that
// torch, at the program's end, for its own statistics and the largest allocations at its peak, and
// writes them where the run is measured (prediction/torch_statistics.h), else to standard error.
// For a caller that may have the dynamic linker's lock: Python's main thread does the work, later.
// Does nothing without Python.
void ask_other_release();

}  // namespace memledger::inside
