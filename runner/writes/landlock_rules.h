#pragma once

// Holds a program's writes by Landlock and seccomp, where namespaces are refused. The kernel lets
// it write to private folders and devices without a memory only, and refuses every other change of
// the file system, whichever way it is asked for.

#include <linux/filter.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace memledger::runner {

struct LandlockRules {
  // Absolute paths of folders, with all that is below them, in which everything is allowed.
  // Terminals and /dev/null, /dev/zero and /dev/full are allowed besides.
  std::vector<std::string> private_folders;
  // Whether System V and POSIX shared memory stay as they are: /dev/shm can be written.
  bool allows_shared_memory = true;
  // A call that changes modes, owners, times or extended attributes is allowed if its sixth
  // argument, which the kernel does not read, is this key. The preloaded library uses it for
  // private files only. 0: no such call is allowed.
  uint64_t attribute_key = 0;
  // Larger files, shared memory included, cannot be made: calls fail with EFBIG, without SIGXFSZ.
  // 0: as it was.
  uint64_t max_file_bytes = 0;
};

// Rules that a child of this process can have applied to itself. Not thread-safe; movable.
class LandlockHold {
 public:
  // Errors: Unimplemented where Landlock is missing, switched off or older than ABI 3, or where the
  // processor's system calls are not known here; FailedPrecondition where a private folder is
  // missing.
  static absl::StatusOr<LandlockHold> prepare(const LandlockRules& rules);

  LandlockHold(LandlockHold&& other) noexcept;
  LandlockHold& operator=(LandlockHold&&) = delete;
  ~LandlockHold();

  // Holds the calling process, which has one thread and is going to be the program, for good, and
  // what it starts. Async-signal-safe. Returns false, and sets errno, where the kernel refuses: the
  // process has to end then, as it may be held in part.
  bool apply() const;

 private:
  LandlockHold(int ruleset, std::vector<sock_filter> filter, uint64_t max_file_bytes)
      : ruleset_(ruleset), filter_(std::move(filter)), max_file_bytes_(max_file_bytes) {}

  int ruleset_;  // a descriptor; -1: moved from
  std::vector<sock_filter> filter_;
  uint64_t max_file_bytes_;  // 0: no limit
};

// A descriptor that the program would inherit and that the kernel no longer checks.
struct UnheldDescriptor {
  int number = 0;
  std::string path;
};

// Returns the descriptors from 3 on without close-on-exec that are open for writing to a file
// outside the private folders: Landlock looks at paths when they are opened. Pipes, sockets,
// terminals and devices of the rules are not among them.
std::vector<UnheldDescriptor> unheld_descriptors(const LandlockRules& rules);

}  // namespace memledger::runner
