#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"

// A thread that holds a lock of memledger's calls nothing of the program's or of LibTorch's
// (docs/design.md, "Locks"). Builds with -c dbg, with the address or the thread sanitizer, or with
// --config=check_locks check it.
#if defined(MEMLEDGER_CHECK_LOCKS) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMLEDGER_LOCKS_ARE_CHECKED 1
#else
#define MEMLEDGER_LOCKS_ARE_CHECKED 0
#endif

namespace memledger::core {

// Call it before a deleter, a destructor of tensors, an allocator, an observer and the like. Our
// hooks call it when they are entered: whoever gets there with a lock has called out without saying
// so. A checking build ends with the place and the number of locks held; others do nothing.
#if MEMLEDGER_LOCKS_ARE_CHECKED
void calling_out(const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;
void note_locked() noexcept;
void note_unlocked() noexcept;
#else
inline void calling_out() noexcept {}
inline void note_locked() noexcept {}
inline void note_unlocked() noexcept {}
#endif

// std::mutex with Abseil's annotations. Not absl::Mutex: distributions build Abseil without NDEBUG,
// and its deadlock detector then costs more than all else that an allocation's bookkeeping does;
// nor can the thread sanitizer see into a library built without it.
class ABSL_LOCKABLE Lock {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_.lock();
    note_locked();
  }
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    const bool taken = mutex_.try_lock();
    if (taken) note_locked();
    return taken;
  }
  void unlock() ABSL_UNLOCK_FUNCTION() {
    note_unlocked();
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE LockHolder {
 public:
  explicit LockHolder(Lock& lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) { lock_.lock(); }
  ~LockHolder() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }
  LockHolder(const LockHolder&) = delete;
  LockHolder& operator=(const LockHolder&) = delete;

 private:
  Lock& lock_;
};

// For a copy of the process, which has one thread: a held lock stays held. `give_up` is called in
// the place of waiting for a brief lock, and does not return.
void nobody_lets_go(void (*give_up)()) noexcept;

// What a thread does that waits for a brief lock: it spins for 50 microseconds, then sleeps for
// longer and longer.
class Backoff {
 public:
  // Waits for a moment, in which others may see it wait for a lock, unless `word` is not `value`
  // any more. Changes errno.
  void wait(std::atomic<uint32_t>& word, uint32_t value) noexcept;

 private:
  int64_t spin_until_ns_ = 0;
  int sleeps_ = 0;
  long sleep_ns_ = 5'000;
};

// For what is held for some instructions, or for at most some thousand records' copying. One locked
// instruction where nobody waits, half of a mutex's: an allocation and its free take four of these
// locks. Nobody is woken: who finds it taken spins, then sleeps for longer and longer, up to half a
// millisecond, and after some 30 milliseconds up to 16.
class ABSL_LOCKABLE BriefLock {
 public:
  BriefLock() = default;
  BriefLock(const BriefLock&) = delete;
  BriefLock& operator=(const BriefLock&) = delete;

  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (taken_.exchange(1, std::memory_order_acquire) != 0) wait();
    note_locked();
  }
  void unlock() ABSL_UNLOCK_FUNCTION() {
    note_unlocked();
    taken_.store(0, std::memory_order_release);
  }
  // Call it between an unlock() and the next lock() of a thread that works through much in pieces:
  // those who wait would hardly find the moment between the two. Lets one of them in, if there is
  // any; waits for it for up to a fifth of a millisecond.
  void let_others_in() noexcept {
    if (waiting_.load(std::memory_order_relaxed) != 0) let_one_in();
  }

 private:
  void wait() noexcept;
  void let_one_in() noexcept;

  std::atomic<uint32_t> taken_{0};
  std::atomic<uint32_t> waiting_{0};  // threads in wait()
};

class ABSL_SCOPED_LOCKABLE BriefLockHolder {
 public:
  explicit BriefLockHolder(BriefLock& lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) {
    lock_.lock();
  }
  ~BriefLockHolder() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }
  BriefLockHolder(const BriefLockHolder&) = delete;
  BriefLockHolder& operator=(const BriefLockHolder&) = delete;

 private:
  BriefLock& lock_;
};

}  // namespace memledger::core
