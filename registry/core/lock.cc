#include "registry/core/lock.h"

#include <sched.h>

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

}  // namespace

void BriefLock::wait() noexcept {
  constexpr int kSpins = 64;
  constexpr int kYields = 16;
  constexpr long kLongestSleepNs = 1000000;
  const int error = errno;
  long sleep_ns = 4000;
  for (int turn = 0;; ++turn) {
    // Read until it looks free: to try would take the line from its holder.
    if (!taken_.load(std::memory_order_relaxed) &&
        !taken_.exchange(true, std::memory_order_acquire))
      break;
    if (turn < kSpins) {
      pause_processor();
    } else if (turn < kSpins + kYields) {
      sched_yield();
    } else {
      const timespec time{0, sleep_ns};
      nanosleep(&time, nullptr);
      sleep_ns = std::min(2 * sleep_ns, kLongestSleepNs);
    }
  }
  errno = error;
}

}  // namespace memledger::core
