#pragma once

// The second choice, where namespaces are refused: the kernel refuses what a run writes, and the
// preloaded library redirects what it sees of it.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "prediction/writes.h"
#include "runner/writes/landlock_rules.h"

namespace memledger::runner {

// Returns whether this system holds writes so, tried in a child that does nothing else. `folder` is
// one of the caller's own. Errors: Unimplemented, with the reason.
absl::Status try_redirected_run(const std::string& folder);

// One run. Not thread-safe; movable.
class RedirectedRun {
 public:
  // Makes the private files' folder in `folder`, the run's own, which MEMLEDGER_MEASURE names; its
  // processes may write for real to that and to the `writable` ones. Errors: FailedPrecondition for
  // a descriptor that this process passes on and that is open for writing, by number and path.
  static absl::StatusOr<RedirectedRun> prepare(const std::string& folder,
                                               std::vector<std::string> writable);

  // Called in the child that is going to be the program, see LandlockHold::apply(). When it fails
  // the child has to end. Async-signal-safe.
  bool hold() const;

  // Returns what the run in this folder wrote, once it has ended. Errors: Unavailable where hold()
  // failed, so that the program was not started.
  static absl::StatusOr<prediction::Writes> writes(const std::string& folder);

 private:
  RedirectedRun(LandlockHold hold, std::string failure_file)
      : hold_(std::move(hold)), failure_file_(std::move(failure_file)) {}

  LandlockHold hold_;
  std::string failure_file_;
};

}  // namespace memledger::runner
