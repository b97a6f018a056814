#pragma once

// Runs a program in the place of this process, while processes of memledger stay around it. The
// program has the standard streams, the terminal and the process group. It gets the signals that
// this process is sent, and stops and ends as if it were this process.
//
//   this process ── the witness ── (the first of a namespace) ── the program
//
// All are in one process group, so the terminal's signals reach the program without us. A signal
// that the witness gets as well was sent to the group; one that only this process gets is passed
// on.

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::runner {

// Messages of the processes around the program. Async-signal-safe.
class Foreground {
 public:
  enum class Event : int { kStarted, kStopped, kContinued, kEnded, kWitnessed };
  struct Message {
    Event event = Event::kStarted;
    int value = 0;  // a signal, or a status as waitpid() has it
    int64_t time_ns = 0;
  };

  void tell(Event event, int value = 0) const;
  // Called by the process that becomes the program.
  void become_program() const;
  // Called by the others, once the program has been forked: they leave the streams to it, so that
  // whoever reads what it writes sees its end.
  void leave_streams() const;

 private:
  friend absl::StatusOr<int> run_in_foreground(
      const std::function<int(const Foreground& foreground)>& start);

  int channel_ = -1;
  sigset_t callers_mask_;
  std::vector<int> inherited_;
};

// Forks the witness, which ends with what `start` returns, and returns the program's status, as
// waitpid() has it, once all of them have ended; the witness's where no program was started.
// Signals stay blocked in this process. Errors: Unavailable where the system has no more processes
// or descriptors. For a process without other threads.
absl::StatusOr<int> run_in_foreground(
    const std::function<int(const Foreground& foreground)>& start);

// Ends this process as the program did, without a core file.
[[noreturn]] void end_as(int status);

}  // namespace memledger::runner
