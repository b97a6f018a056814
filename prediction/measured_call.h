#pragma once

#include <cstdint>

// What libmemledger.so offers to memledger::predict() in a process that measures itself until a
// call of that has run its step (kUntilCall). Found by name, as that library is local to where it
// was loaded.
extern "C" {

// Restarts all peaks: LibTorch's, the registry's and those of the virtual GPU.
__attribute__((visibility("default"))) void memledger_measured_call_begins();
// Returns the bytes of all peaks so far, added up: a number that changes if one of them moves.
__attribute__((visibility("default"))) int64_t memledger_measured_call_peaks();
// Writes the figures. `cause`, what the step threw, or nullptr.
__attribute__((visibility("default"))) void memledger_measured_call_ended(const char* cause);

}  // extern "C"

namespace memledger::prediction {

// A value of kUntilVariable besides `step` and `exit`. A process that comes to its end without such
// a call ends with kNoCall as its status.
inline constexpr char kUntilCall[] = "call";
inline constexpr int kNoCall = 113;

}  // namespace memledger::prediction
