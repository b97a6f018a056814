#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstddef>

namespace memledger {

// Puts a wrapper before LibTorch's CUDA allocator, without CUDA's headers and without a link
// dependency: memledger works in programs whose LibTorch has no CUDA, and brings no CUDA library
// into those that do not use it. LibTorch's CUDA library is found when it is in the process,
// whoever brought it and whenever; never where memledger was built against a LibTorch without CUDA.
class __attribute__((visibility("default"))) CudaAllocator {
 public:
  // Puts a wrapper before the CUDA allocator in place, unless one of ours is or LibTorch's CUDA
  // library is not in the process. Thread-safe, but the program must not set allocators at the same
  // moment. Never throws: without memory for a wrapper the allocator stays, and counts as unseen.
  // Takes a few nanoseconds where the process has no CUDA library.
  static void put_in_front() noexcept;
  static bool is_in_front() noexcept;

  // Returns the allocator that LibTorch's CUDA code calls now, a CUDAAllocator, ours or not; null
  // without CUDA in this process.
  static c10::Allocator* in_use() noexcept;

  // Returns whether LibTorch's allocator threw while it was initialized (settings that it cannot
  // read). It then claims to be initialized but has null devices, and crashes when asked for their
  // figures.
  static bool is_half_made() noexcept { return half_made_.load(std::memory_order_acquire); }
  static void note_half_made() noexcept { half_made_.store(true, std::memory_order_release); }

  // Returns whether LibTorch's CUDA library has come up since put_in_front() last looked for it in
  // vain. Two loads.
  static bool has_appeared() noexcept {
    const auto& guard =
        c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
    return guard.load(std::memory_order_relaxed) != seen_guard_.load(std::memory_order_relaxed);
  }

  // Has `call` called after each allocation of kLarge bytes and more, on the thread that asked for
  // it and without a lock held; null: nobody. For the process.
  using AfterLarge = void (*)(c10::DeviceIndex device) noexcept;
  static constexpr size_t kLarge = size_t{1} << 20;
  static void call_after_large(AfterLarge call) noexcept {
    after_large_.store(call, std::memory_order_release);
  }
  static void tell_large(size_t nbytes, c10::DeviceIndex device) noexcept {
    if (nbytes < kLarge) return;
    if (const AfterLarge call = after_large_.load(std::memory_order_acquire)) call(device);
  }

  // Called around fork, so that no other thread holds the lock in the child.
  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  static void* find_slot() noexcept;

  static std::atomic<const c10::impl::DeviceGuardImplInterface*> seen_guard_;
  static std::atomic<bool> half_made_;
  static std::atomic<AfterLarge> after_large_;
};

}  // namespace memledger
