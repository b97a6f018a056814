#include "registry/core/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace memledger::core {

#if MEMLEDGER_LOCKS_ARE_CHECKED

namespace {

// Trivial, so that frees in a thread's last destructors can use it.
thread_local int locks_held = 0;

}  // namespace

void calling_out(const char* file, int line) noexcept {
  if (locks_held == 0) return;
  std::fprintf(stderr,
               "memledger: %s:%d: calls out while the thread holds locks of memledger's: %d\n",
               file, line, locks_held);
  std::abort();
}

void note_locked() noexcept { ++locks_held; }
void note_unlocked() noexcept { --locks_held; }

#endif

namespace {

void pause_processor() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::atomic<void (*)()> give_up_now{nullptr};

int64_t now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace

void nobody_lets_go(void (*give_up)()) noexcept {
  give_up_now.store(give_up, std::memory_order_relaxed);
}

void Backoff::wait(std::atomic<uint32_t>& word, uint32_t value) noexcept {
  if (const auto give_up = give_up_now.load(std::memory_order_relaxed)) give_up();
  // An instant takes 30 microseconds, and who sleeps is back after 60 at best; where others want
  // the processor, after milliseconds.
  constexpr int64_t kSpinNs = 50'000;
  // A thread that copies much lets others in within that time. A lock that is held for longer is
  // held for good, as after a fork.
  constexpr int kShortSleeps = 64;
  constexpr long kLongestShortNs = 500'000;
  constexpr long kLongestNs = 16'000'000;
  if (sleeps_ == 0) {
    const int64_t now = now_ns();
    if (spin_until_ns_ == 0) spin_until_ns_ = now + kSpinNs;
    if (now < spin_until_ns_) {
      pause_processor();
      return;
    }
  }
  // Not sched_yield(), which on a busy machine costs a slice of time, milliseconds. A wait for a
  // lock, which others can see as such.
  const timespec time{0, sleep_ns_};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
  ++sleeps_;
  sleep_ns_ = std::min(2 * sleep_ns_, sleeps_ < kShortSleeps ? kLongestShortNs : kLongestNs);
}

void BriefLock::wait() noexcept {
  const int error = errno;
  waiting_.fetch_add(1, std::memory_order_relaxed);
  Backoff backoff;
  // Read until it looks free: to try would take the line from its holder.
  while (taken_.load(std::memory_order_relaxed) != 0 ||
         taken_.exchange(1, std::memory_order_acquire) != 0)
    backoff.wait(taken_, 1);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  errno = error;
}

void BriefLock::let_one_in() noexcept {
  const int error = errno;
  const uint32_t before = waiting_.load(std::memory_order_relaxed);
  const bool wakes = syscall(SYS_futex, &taken_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0) > 0;
  // Nobody sleeps: all spin, or are a parent process's, whose number a fork has copied.
  const int64_t until = now_ns() + (wakes ? 200'000 : 5'000);
  while (waiting_.load(std::memory_order_relaxed) == before && now_ns() < until) pause_processor();
  errno = error;
}

}  // namespace memledger::core
