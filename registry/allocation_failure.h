#pragma once

// Calls an observer when an allocation fails, before anything unwinds: what fills the memory is
// still there.
//
//   memledger::set_allocation_failure_observer(
//       [](const memledger::AllocationFailure& failure) noexcept { std::cerr << failure << '\n';
//       });
//
// The program then gets the allocator's own exception, unchanged. reporter/out_of_memory.h writes
// reports this way.

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

#include "registry/birthplace.h"

namespace memledger {

// What was asked for, and by whom. Its stack is taken whatever StackOptions say.
struct AllocationFailure : Birthplace {
  int64_t requested_bytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::string_view message;  // the exception's; valid during the call
};

using AllocationFailureObserver = void (*)(const AllocationFailure&) noexcept;

// Sets the observer of the process (null: none) and returns the previous one, which may still be
// running on another thread.
//
// The registry calls it while it is active, for the allocators that it watches, on the thread whose
// allocation failed. Several threads may call it at once. No lock of memledger or of the allocator
// is held then, but LibTorch and the program may hold theirs. Failures of its own allocations are
// not passed to it. A failure is not always the end: the program may recover, and cuDNN's
// convolutions try another algorithm without a workspace. Costs nothing until an allocation fails.
AllocationFailureObserver set_allocation_failure_observer(
    AllocationFailureObserver observer) noexcept;

}  // namespace memledger
