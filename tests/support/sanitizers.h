#pragma once

namespace memledger::testing {

// Whether a worker of OpenMP can be distinguished from a thread of the program's: under these
// sanitizers every thread begins in the sanitizer, and a live gradient needs the promise
// `training_paused`.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kWorkersAreKnown = false;
#else
constexpr bool kWorkersAreKnown = true;
#endif

}  // namespace memledger::testing
