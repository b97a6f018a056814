#pragma once

#include <atomic>
#include <cstdint>

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
// bias away: it has the kernel put a memory barrier into all running threads of the process
// (membarrier(2)), less than a microsecond to some ten, and waits until the owner is out. What is
// taken by two threads in turn soon has no bias any more, and costs what a BriefLock costs.
//
//   owner:  busy = 1; owner still me?  ─ yes ─▶ inside … busy = 0
//   other:  slow lock; owner = 0; barrier in all threads; wait for busy == 0 ─▶ inside … unlock
//
// Either the owner's second look sees that it has lost the bias, or the other one sees it busy
// (D. Dice and others, "Asymmetric Dekker Synchronization", 2001).
//
// `thread` is the calling thread's number: no other thread's, and not 0.
class ABSL_LOCKABLE BiasedLock {
 public:
  BiasedLock() = default;
  BiasedLock(const BiasedLock&) = delete;
  BiasedLock& operator=(const BiasedLock&) = delete;

  // How it was taken, for unlock().
  enum class Way : bool { kSlow, kBiased };

  Way lock(uint32_t thread) ABSL_EXCLUSIVE_LOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (owner_.load(std::memory_order_relaxed) == thread && enter(thread)) {
      note_locked();
      return Way::kBiased;
    }
    lock_slowly(thread);
    return Way::kSlow;
  }
  void unlock(Way way) ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (way == Way::kSlow) {
      slow_.unlock();
      return;
    }
    note_unlocked();
    busy_.store(0, std::memory_order_release);
  }

  // The three steps of the slow way, for who takes many at once and wants one barrier for all.
  // Returns whether a barrier is needed: a bias was taken away.
  bool lock_all_but_owner(uint32_t thread) noexcept;
  static void barrier_in_all_threads() noexcept;
  void wait_for_owner() noexcept;

  // See BriefLock. For the time between two of the slow way.
  void let_others_in() noexcept { slow_.let_others_in(); }

  // Call it once before any bias pays, with no lock held: registers the process with the kernel,
  // which may take as long as a grace period of RCU where there are many threads.
  static void allow_bias() noexcept;

 private:
  // So often in a row a thread must have taken the lock to become its owner; twice as often each
  // time the bias did not last for what taking it away costs.
  static constexpr uint32_t kLeastInARow = 64;
  static constexpr uint32_t kMostInARow = 1 << 16;
  static constexpr uint32_t kWorthwhile = 2048;

  bool enter(uint32_t thread) noexcept {
    if (busy_.load(std::memory_order_relaxed) != 0) return false;  // from a signal handler
#if MEMLEDGER_THREAD_SANITIZER
    // It knows nothing of membarrier().
    busy_.exchange(1, std::memory_order_seq_cst);
    const bool still = owner_.load(std::memory_order_seq_cst) == thread;
#else
    busy_.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the kernel makes it a real one
    const bool still = owner_.load(std::memory_order_acquire) == thread;
#endif
    if (still) {
      ++uses_;
      return true;
    }
    busy_.store(0, std::memory_order_release);
    return false;
  }
  void lock_slowly(uint32_t thread) noexcept;

  std::atomic<uint32_t> owner_{0};  // written with slow_ held
  std::atomic<uint32_t> busy_{0};   // written by the owner
  uint32_t uses_ = 0;               // the owner's, since it is that; modulo 2^32
  BriefLock slow_;
  // Read and written with slow_ held.
  uint32_t last_ = 0;
  uint32_t in_a_row_ = 0;
  uint32_t needed_ = kLeastInARow;
  bool bias_is_lost_ = false;
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
