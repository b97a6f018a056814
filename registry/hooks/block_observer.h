#pragma once

// Tells of every block that the watched allocators give out or take back, on the thread that asks
// for it.
//
// The registry's own books are for what happened; this is for what has to look at the program at
// that moment (the line profiler takes the stack). One observer at a time, for a process.

#include <c10/core/Device.h>

#include <cstdint>

namespace memledger {

struct BlockEvent {
  uint64_t id = 0;  // StorageInfo::id
  int64_t nbytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool birth = false;
};

// Called without a lock held, after the allocator has done its work. It may allocate neither
// tensors nor other watched blocks.
using BlockObserver = void (*)(const BlockEvent& event) noexcept;

// Returns the one before; null: none. Blocks that nobody watches (Registry::active() is false) are
// not told of when they are made. A call that has begun on another thread may still run when this
// returns.
BlockObserver set_block_observer(BlockObserver observer) noexcept;

}  // namespace memledger
