#pragma once

// Has something done on every other thread of this process, in a signal handler.
//
// The signal is one of the C library's own (SIGSETXID): no program handles it, blocks it or waits
// for it, as setuid() has to reach every thread. What the C library sends by it, it still gets.

#include <ucontext.h>

#include <cstdint>

#include "runner/inside/kernel_signals.h"

namespace memledger::inside {

// Gets the state that the signal has interrupted. May change what the thread goes on with.
using Visit = void (*)(ucontext_t& state) noexcept;

// Takes the flags and the mask from a handler that the C library has set. Call it once, outside of
// signal handlers; without it nobody is visited.
void prepare_visits(const KernelAction& like) noexcept;

// Async-signal-safe. Does not wait: a thread is visited before it next runs code of the program's.
// Two visits at most are known to a process.
void visit_other_threads(Visit visit) noexcept;

// Returns what a system call has returned after which the signal came at once, `otherwise` where
// none has. Not known on other processors than x86-64 and AArch64: `otherwise`. Not for faults,
// which may be at an address without code.
int64_t result_of_call(const ucontext_t& state, int64_t otherwise) noexcept;

// Whether the signal has ended a system call that without a handler would go on: poll(),
// nanosleep() and others return EINTR after any. Not the wait for a lock with a deadline, which is
// asked for again, and whose thread may hold other locks.
bool has_ended_call(const ucontext_t& state) noexcept;

}  // namespace memledger::inside
