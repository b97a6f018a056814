#pragma once

// Tells when an allocator could not give what the program asked for, while everything that fills
// the memory is still there.
//
//   void observe(const memledger::AllocationFailure& failure) noexcept { …
//   Registry::global().snapshot() … } memledger::set_allocation_failure_observer(&observe);
//
// The program then gets the allocator's own exception, unchanged. It may recover, and so may
// LibTorch: cuDNN's convolutions try another algorithm when one finds no memory for its workspace.
//
// Thread-safety: the observer is called on the thread that asked, by several threads at once if
// several fail, with no lock of memledger or of the allocator held; LibTorch and the program may
// hold locks of their own. Allocations that the observer makes and that fail are not told to it.
// Seen are the allocators that the registry watches, while it is active. Cost: none until one
// fails.

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

#include "registry/birthplace.h"

namespace memledger {

// What was asked for, and by what. Its stack is taken whatever StackOptions say.
struct AllocationFailure : Birthplace {
  int64_t requested_bytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::string_view message;  // of the exception; valid during the call
};

using AllocationFailureObserver = void (*)(const AllocationFailure&) noexcept;

// One per process; null for none. Returns the one before. A call of the former one may still be
// running on another thread.
AllocationFailureObserver set_allocation_failure_observer(
    AllocationFailureObserver observer) noexcept;

}  // namespace memledger
