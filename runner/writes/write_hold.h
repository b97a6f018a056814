#pragma once

// What keeps programs from writing: the best that this system allows.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "prediction/writes.h"
#include "runner/child_process.h"
#include "runner/writes/write_options.h"

namespace memledger::runner {

struct WriteHoldOptions {
  WriteOptions writes;
  int runs_at_once = 1;
  std::string scratch;  // a folder of the caller's own
};

// One run of a program.
struct HeldRun {
  std::string folder;                 // for its figures, below the scratch folder
  std::vector<std::string> program;   // and its arguments, which say where it may write
  std::vector<std::string> writable;  // more folders of ours that its processes write to
  std::string tag;                    // see ChildProcess
};

// Not thread-safe. Fork-safe in the sense of ChildProcess.
class WriteHold {
 public:
  // Tries what this system allows; a try is made once per process. Errors: FailedPrecondition where
  // nothing holds and the policy asks for it, with the reasons and what to do.
  static absl::StatusOr<WriteHold> choose(const WriteHoldOptions& options);

  prediction::WritesHeldBy held_by() const { return held_by_; }

  // Returns variables that the program's environment has to have.
  std::vector<std::pair<std::string, std::string>> variables(const HeldRun& run) const;

  // Starts a child that `become` makes the program. Errors: as ChildProcess::start(), and
  // FailedPrecondition for a descriptor that this process passes on and that cannot be held.
  absl::StatusOr<ChildProcess> start(const HeldRun& run, const std::function<int()>& become) const;
  // Runs it in the place of this process (foreground.h), and returns its status as waitpid() has
  // it. Errors: as run_in_foreground(), and as start().
  absl::StatusOr<int> run_in_foreground(const HeldRun& run,
                                        const std::function<int()>& become) const;
  // Returns what the run wrote, once it has ended. Errors: Unavailable where the run could not be
  // made, which then says nothing of the program.
  absl::StatusOr<prediction::Writes> writes(const HeldRun& run) const;

 private:
  explicit WriteHold(const WriteHoldOptions& options);

  WriteHoldOptions options_;
  prediction::WritesHeldBy held_by_ = prediction::WritesHeldBy::kNothing;
};

}  // namespace memledger::runner
