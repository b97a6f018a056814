#pragma once

// The second choice, where namespaces are refused: the kernel refuses what a run writes, and the
// preloaded library redirects what it sees of it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "prediction/writes.h"

namespace memledger::runner {

// Returns whether this system holds writes so, tried in a child that does nothing else.
// UNIMPLEMENTED: it does not, and why.
absl::Status try_redirected_run(const std::string& folder);

// One run. Thread-compatible.
class RedirectedRun {
 public:
  // Makes the private files' folder in `folder`, the run's own; its processes may write for real to
  // that and to the `writable` ones. Errors: FailedPrecondition for a descriptor that this process
  // passes on and that is open for writing, by number and path.
  static absl::StatusOr<RedirectedRun> prepare(const std::string& folder,
                                               std::vector<std::string> writable);

  // The value of MEMLEDGER_REDIRECT for the program.
  const std::string& redirect_folder() const { return redirect_folder_; }

  // Called in the process that is going to be the program, see hold_by_landlock(). When it fails
  // that process has to end.
  absl::Status hold() const;

  // Returns what the run wrote, once it has ended.
  prediction::Writes writes() const;

 private:
  RedirectedRun() = default;

  std::string folder_, redirect_folder_;
  std::vector<std::string> private_folders_;
  uint64_t key_ = 0;
};

}  // namespace memledger::runner
