#include "registry/core/lock.h"

#include <cstdio>
#include <cstdlib>

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

}  // namespace memledger::core
