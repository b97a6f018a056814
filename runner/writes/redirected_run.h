#pragma once

// The second choice, where namespaces are refused: the kernel refuses what a run writes, and the
// preloaded library redirects what it sees of it.

#include <cstdint>
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
  // Makes the private files' folder in `folder`, the run's own; its processes may write for real to
  // that and to the `writable` ones. No file gets larger than `max_file_bytes` (0: no limit); what
  // all files take the caller has to watch, see writes_of(). Errors: FailedPrecondition for a
  // descriptor that this process passes on and that is open for writing, by number and path.
  static absl::StatusOr<RedirectedRun> prepare(const std::string& folder,
                                               std::vector<std::string> writable,
                                               uint64_t max_file_bytes = 0);

  // The value of MEMLEDGER_REDIRECT for the program of the run that has this folder.
  static std::string redirect_folder(const std::string& folder);

  // Called in the process that is going to be the program, see LandlockHold::apply(). When it fails
  // that process has to end. Allocates nothing where it succeeds.
  absl::Status hold() const;

  // Returns what the run that has this folder wrote, once it has ended.
  static prediction::Writes writes_of(const std::string& folder);

 private:
  explicit RedirectedRun(LandlockHold hold) : hold_(std::move(hold)) {}

  LandlockHold hold_;
};

}  // namespace memledger::runner
