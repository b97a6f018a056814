#pragma once

// Calls an observer before the CPU's memory is asked for, on the thread that asks: each time that
// this thread has asked for kDemandBytes since the last call. For who has to know before the memory
// is used up.

#include <cstdint>

namespace memledger {

inline constexpr int64_t kDemandBytes = int64_t{16} << 20;

// `nbytes` is what this allocation asks for.
using DemandObserver = void (*)(int64_t nbytes) noexcept;

// Sets the observer of this copy of memledger, null for none. It may allocate.
void set_demand_observer(DemandObserver observer) noexcept;

}  // namespace memledger
