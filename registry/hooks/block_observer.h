#pragma once

// Calls an observer for every block that the wrapped allocators give out or take back, on the
// thread that asks for it.
//
// For what must look at the program at that moment, as the line profiler does when it takes the
// stack; the registry's own table has what happened. A process has one observer at a time.

#include <c10/core/Device.h>

#include <cstdint>

namespace memledger {

struct BlockEvent {
  uint64_t id = 0;  // StorageInfo::id
  int64_t nbytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool birth = false;
};

// Called without a lock held, after the allocator has done its work. Must not allocate tensors or
// other blocks of these allocators.
using BlockObserver = void (*)(const BlockEvent& event) noexcept;

// Sets the observer (null: none) and returns the one before. Blocks made while Registry::active()
// is false are not reported. A call that has begun on another thread may still run when this
// returns.
BlockObserver set_block_observer(BlockObserver observer) noexcept;

}  // namespace memledger
