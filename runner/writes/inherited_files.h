#pragma once

// Files that a process has inherited open: a new root or a layer does not reach them.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::runner {

// Not thread-safe.
class InheritedFiles {
 public:
  // Reads which files and folders this process passes on when it becomes another program, from
  // descriptor 3 on. Errors: FailedPrecondition for one that is open for writing and has no path,
  // naming it.
  static absl::StatusOr<InheritedFiles> read();

  // Opens each again by its path, in a process that sees other files there, with the same number,
  // flags and offset. Allocates nothing. Returns false, and sets errno and failed(), where one
  // cannot be opened.
  bool open_again();
  const char* failed() const { return failed_; }

 private:
  struct File {
    int number;
    int flags;
    off_t offset;
    std::string path;
  };

  std::vector<File> files_;
  const char* failed_ = "";
};

}  // namespace memledger::runner
