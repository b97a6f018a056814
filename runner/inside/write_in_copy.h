#pragma once

// Does something in a copy of this process, where the process itself must not: it is about to end,
// perhaps in a signal handler, with its heap broken or its locks held. What goes wrong there ends
// the copy and nothing else.
//
// The copy has this thread alone. It runs no handler of the program's, no signal reaches it, and it
// is in a process group of its own. The program's waitpid(-1), SIGCHLD and wake-up descriptors do
// not see it; waitpid(-1, …, __WALL) of another thread does.

#include <signal.h>

#include <cstdint>

namespace memledger::inside {

// How a copy came out.
enum class CopyResult : uint8_t {
  kDone,
  kFailed,   // it ended early
  kLocked,   // it waited for a lock that a thread of this process held
  kTooLate,  // a part was not done in time
  kNotMade,
  kElsewhere,  // it would be the first process of the namespace that the program has made
};

// Does the parts in turn, each within its own time. A part that fails or waits for a lock is tried
// again in another copy, some forty times: other threads go on here and let go of their locks. For
// this thread, which may itself have been interrupted in malloc() or in memledger's hooks, every
// second copy first goes on to where it leaves them. A part that cannot be done is left out. Where
// the system makes no process, it is asked again for half a second.
//
// Where this thread's children go to another namespace of processes (unshare(), setns()), the copy
// is made in this process's own, if that is allowed. It is never the first process of the other
// one, which would end with it.
struct CopyWork {
  void (*write)(void* context, int part) = nullptr;
  void* context = nullptr;  // not on the stack
  int parts = 1;
  unsigned seconds_per_part = 10;
  // Asked again and again in this process: the moment of CLOCK_MONOTONIC at which every part has to
  // be done. May be null.
  int64_t (*latest_ns)() noexcept = nullptr;
  // The process lives on, and what this thread was interrupted in is better not done twice.
  bool process_goes_on = false;
  // Whether this thread makes no process afterwards: then it need not be able to go back to a
  // namespace that has no process yet.
  bool is_last = false;
  // False where this thread is one of memledger's own: it was interrupted in no call of the
  // program's, and would go on with its own work in the copy.
  bool finishes_calls = true;
  // Where this thread can go on and ask again: gives up at the first part after this many copies
  // that waited for a lock, and says nothing of it; 0: never. Other threads may wait for a lock of
  // this thread's while they hold others.
  int copies_if_locked = 0;
  // Called in this process about a part that is left out, and why; may be null.
  void (*left_out)(void* context, int part, CopyResult reason) noexcept = nullptr;
  // Called in this process between two copies; may be null.
  void (*between_copies)() noexcept = nullptr;
};
// Returns kDone, or the last reason why a part was left out. kLocked: it gave up.
CopyResult write_in_copy(const CopyWork& work) noexcept;

// Does one thing, which is left out silently. `context` is not on the stack.
CopyResult write_in_copy(void (*write)(void* context), void* context) noexcept;

// Call it once before the first copy, outside of signal handlers.
void prepare_copies() noexcept;

// Whether this is a copy. Async-signal-safe.
bool is_copy() noexcept;

// Says that the part is done, from within it: all that it writes has been written, and what is left
// to do, such as giving back memory, may wait for a lock. So it is not written again. Does nothing
// outside of a copy. Async-signal-safe.
void part_is_written() noexcept;

// Waits for the copies that have ended. Copies of a process that goes on are not waited for before,
// as what a process has waited for counts as used by its children (RUSAGE_CHILDREN); all but the
// last 64 are.
void bury_copies() noexcept;

// Whether the last copy found that this thread runs in a signal handler.
bool ran_in_signal_handler() noexcept;

// Calls `note` with a signal's name before the signal ends this process: the first of SIGSEGV,
// SIGBUS, SIGFPE, SIGILL, SIGABRT and SIGTERM. The program's handler, or the signal's own action,
// then takes place as without us. Handlers that the program sets later take the place of this.
void note_deadly_signals(void (*note)(const char* signal) noexcept) noexcept;

// For signal handlers. Whether a signal comes again when the instruction that caused it does, and
// so must not be sent again.
bool is_fault(int number, const siginfo_t* info) noexcept;

}  // namespace memledger::inside
