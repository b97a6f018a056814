#include "registry/core/biased_lock.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace memledger::core {
namespace {

std::atomic<bool> bias_is_allowed{false};

bool membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

void BiasedLock::allow_bias() noexcept {
  if (bias_is_allowed.load(std::memory_order_relaxed)) return;
  const int error = errno;
  if (MEMLEDGER_THREAD_SANITIZER || membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
    bias_is_allowed.store(true, std::memory_order_relaxed);
  errno = error;
}

void BiasedLock::barrier_in_all_threads() noexcept {
#if !MEMLEDGER_THREAD_SANITIZER
  const int error = errno;
  if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) &&
      !(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
        membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED))) {
    // The program has forbidden itself the call since then. No thread gets a bias from now on; for
    // those that have one: a processor's stores are seen by others within microseconds, and what
    // does not run has none left.
    bias_is_allowed.store(false, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const timespec time{0, 20'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
  }
  errno = error;
#endif
}

void BiasedLock::lock_slowly(uint32_t thread) noexcept {
  if (lock_all_but_owner(thread)) barrier_in_all_threads();
  wait_for_owner();
}

bool BiasedLock::lock_all_but_owner(uint32_t thread) noexcept ABSL_NO_THREAD_SAFETY_ANALYSIS {
  slow_.lock();
  const uint32_t owner = owner_.load(std::memory_order_relaxed);
  if (owner / kMaxOwners == thread) {
    mark(owner % kMaxOwners);
    return false;
  }
  if (owner != 0) {
    owner_.store(0, std::memory_order_seq_cst);
    bias_is_lost_ = true;
    last_ = 0;
    in_a_row_ = 0;
    return true;
  }
  if (last_ != thread) {
    last_ = thread;
    in_a_row_ = 0;
  } else if (++in_a_row_ >= needed_ && bias_is_allowed.load(std::memory_order_relaxed)) {
    make_owner(thread);
  }
  return false;
}

void BiasedLock::make_owner(uint32_t thread) noexcept {
  in_a_row_ = 0;
  if (thread >= UINT32_MAX / kMaxOwners) return;
  for (size_t i = 0; i < kMaxOwners; ++i) {
    if (owners_[i] != 0 && owners_[i] != thread) continue;
    owners_[i] = thread;
    uses_ = 0;
    mark(i);
    owner_.store(static_cast<uint32_t>(thread * kMaxOwners + i), std::memory_order_release);
    return;
  }
}

// Leaves alone what is busy: a signal handler has interrupted the owner inside, and waits.
void BiasedLock::mark(size_t owner) noexcept {
  if (busy_[owner].load(std::memory_order_relaxed) != 0) return;
  busy_[owner].store(1, std::memory_order_relaxed);
  marked_ = static_cast<uint8_t>(owner);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void BiasedLock::unmark() noexcept {
  const size_t owner = marked_;
  marked_ = kNobody;
  busy_[owner].store(0, std::memory_order_release);
}

void BiasedLock::forget_other_threads() noexcept {
  for (size_t i = 0; i < kMaxOwners; ++i) {
    if (i != marked_) busy_[i].store(0, std::memory_order_relaxed);
  }
}

void BiasedLock::wait_for_owner() noexcept {
  // Also if it is the calling thread: a signal handler that interrupts the owner waits, as it would
  // for any lock. A former owner that has just looked is busy for a moment, too.
  for (size_t i = 0; i < kMaxOwners; ++i) {
    std::atomic<uint32_t>& busy = busy_[i];
    if (i == marked_ || busy.load(std::memory_order_seq_cst) == 0) continue;
    const int error = errno;
    for (Backoff backoff; busy.load(std::memory_order_acquire) != 0;) backoff.wait(busy, 1);
    errno = error;
  }
  if (bias_is_lost_) {
    bias_is_lost_ = false;
    needed_ = uses_ >= kWorthwhile ? kLeastInARow : std::min(2 * needed_, kMostInARow);
  }
}

}  // namespace memledger::core
