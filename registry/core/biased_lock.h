#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "registry/core/lock.h"

#if defined(__SANITIZE_THREAD__)
#define MEMLEDGER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MEMLEDGER_THREAD_SANITIZER 1
#endif
#endif
#ifndef MEMLEDGER_THREAD_SANITIZER
#define MEMLEDGER_THREAD_SANITIZER 0
#endif

namespace memledger::core {

// A BriefLock biased towards the thread that has taken it many times in a row: that thread takes it
// with two plain stores, everybody else pays for it. Another thread that wants the lock takes the
// bias away. It has the kernel put a memory barrier into all running threads of the process
// (membarrier(2)), which takes up to some ten microseconds, and waits until the owner is out. What
// is taken by two threads in turn soon has no bias any more, and costs what a BriefLock costs.
//
//   owner:  busy = 1; owner still me?  ─ yes ─▶ inside … busy = 0
//   other:  slow lock; owner = 0; barrier in all threads; wait for busy == 0 ─▶ inside … unlock
//
// Either the owner's second look sees that it has lost the bias, or the other one sees it busy
// (D. Dice and others, "Asymmetric Dekker Synchronization", 2001). Each owner has a `busy` of its
// own for good: one that was interrupted after its first look, for however long, writes to no
// other's. So a lock has a few owners in its life, and then is a BriefLock.
//
// `thread` is the calling thread's number: no other thread's, and not 0.
class ABSL_LOCKABLE BiasedLock {
 public:
  BiasedLock() = default;
  BiasedLock(const BiasedLock&) = delete;
  BiasedLock& operator=(const BiasedLock&) = delete;

  // How it was taken, for unlock(): by an owner, whose index it is, or the slow way.
  enum class Way : uint8_t { kFirst, kSecond, kThird, kFourth, kSlow = 255 };
  static constexpr size_t kMaxOwners = 4;

  ABSL_ATTRIBUTE_ALWAYS_INLINE Way lock(uint32_t thread)
      ABSL_EXCLUSIVE_LOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const uint32_t owner = owner_.load(std::memory_order_relaxed);
    if (owner / kMaxOwners == thread && enter(owner)) {
      note_locked();
      return static_cast<Way>(owner % kMaxOwners);
    }
    lock_slowly(thread);
    return Way::kSlow;
  }
  void unlock(Way way) ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (way == Way::kSlow) {
      if (marked_ != kNobody) unmark();
      slow_.unlock();
      return;
    }
    note_unlocked();
    busy_[static_cast<size_t>(way)].store(0, std::memory_order_release);
  }

  // The three steps of the slow way, for who takes many at once and wants one barrier for all.
  // Returns whether a barrier is needed: a bias was taken away.
  bool lock_all_but_owner(uint32_t thread) noexcept;
  static void barrier_in_all_threads() noexcept;
  void wait_for_owner() noexcept;

  // In a child of fork, with the lock held the slow way: no other thread is about to enter. One of
  // the parent's may just have looked, to see that it has lost the bias.
  void forget_other_threads() noexcept;

  // See BriefLock. For the time between two of the slow way.
  void let_others_in() noexcept { slow_.let_others_in(); }

  // Call it once before any bias pays, with no lock held: registers the process with the kernel,
  // which may take as long as a grace period of RCU where there are many threads.
  static void allow_bias() noexcept;

 private:
  // Consecutive acquisitions after which a thread owns the lock. Doubled each time the bias did not
  // last long enough to pay for its removal.
  static constexpr uint32_t kLeastInARow = 64;
  static constexpr uint32_t kMostInARow = 1 << 16;
  static constexpr uint32_t kWorthwhile = 2048;

  ABSL_ATTRIBUTE_ALWAYS_INLINE bool enter(uint32_t owner) noexcept {
    std::atomic<uint32_t>& busy = busy_[owner % kMaxOwners];
    if (busy.load(std::memory_order_relaxed) != 0) return false;  // from a signal handler
#if MEMLEDGER_THREAD_SANITIZER
    // It knows nothing of membarrier().
    busy.exchange(1, std::memory_order_seq_cst);
    const bool still = owner_.load(std::memory_order_seq_cst) == owner;
#else
    busy.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the kernel makes it a real one
    const bool still = owner_.load(std::memory_order_acquire) == owner;
#endif
    if (still) {
      ++uses_;
      return true;
    }
    busy.store(0, std::memory_order_release);
    return false;
  }
  void lock_slowly(uint32_t thread) noexcept;
  void make_owner(uint32_t thread) noexcept;
  void mark(size_t owner) noexcept;
  void unmark() noexcept;

  // Number and index of the thread that has the bias: number * kMaxOwners + index; 0: none.
  // Written with slow_ held.
  std::atomic<uint32_t> owner_{0};
  std::array<std::atomic<uint32_t>, kMaxOwners> busy_{};  // written by that owner alone
  uint32_t uses_ = 0;  // the owner's, since it is that; modulo 2^32
  BriefLock slow_;
  // Read and written with slow_ held.
  uint32_t last_ = 0;
  uint32_t in_a_row_ = 0;
  uint32_t needed_ = kLeastInARow;
  std::array<uint32_t, kMaxOwners> owners_{};  // all that ever were
  bool bias_is_lost_ = false;
  // The owner that holds the lock the slow way, and is `busy` meanwhile: else its signal handlers
  // would enter by the bias.
  static constexpr uint8_t kNobody = 255;
  uint8_t marked_ = kNobody;
};

class ABSL_SCOPED_LOCKABLE BiasedLockHolder {
 public:
  BiasedLockHolder(BiasedLock& lock, uint32_t thread) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock)
      : lock_(lock), way_(lock.lock(thread)) {}
  ~BiasedLockHolder() ABSL_UNLOCK_FUNCTION() { lock_.unlock(way_); }
  BiasedLockHolder(const BiasedLockHolder&) = delete;
  BiasedLockHolder& operator=(const BiasedLockHolder&) = delete;

 private:
  BiasedLock& lock_;
  const BiasedLock::Way way_;
};

}  // namespace memledger::core
