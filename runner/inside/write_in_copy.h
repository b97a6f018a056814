#pragma once

// Does something in a copy of this process, where the process itself must not: it is about to end,
// in a signal handler, maybe with its heap broken or its locks held. What goes wrong there ends the
// copy.

#include <signal.h>

namespace memledger::inside {

// How a copy came out.
enum class CopyResult {
  kDone,
  kFailed,   // it ended early
  kLocked,   // it waited for a lock that a thread of this process held, each time it was made
  kTooLate,  // it was not done within ten seconds
  kNotMade,
};

inline constexpr int kMostCopies = 3;

// Runs `write(context)` in a copy that has this thread alone, on a stack of its own, and waits for
// it. A copy that waits for a lock is made anew, until there were `most_copies`: other threads go
// on here and let go of theirs, this thread does not. The copy is no child that the program could
// wait for.
CopyResult write_in_copy(void (*write)(void* context), void* context,
                         int most_copies = kMostCopies) noexcept;

// Calls `note` with a signal's name before the signal ends this process: the first of SIGSEGV,
// SIGBUS, SIGFPE, SIGILL, SIGABRT and SIGTERM. The program's handler, or the signal's own action,
// then takes place as without us. Handlers that the program sets later take the place of this.
void note_deadly_signals(void (*note)(const char* signal) noexcept) noexcept;

// For signal handlers. Whether a signal comes again when the instruction that caused it does, and
// so must not be sent again.
bool is_fault(int number, const siginfo_t* info) noexcept;

}  // namespace memledger::inside
