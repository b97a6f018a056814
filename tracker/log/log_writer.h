#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "tracker/snapshot_diff.h"

namespace memledger {

struct LogDetail {
  bool rows = true;      // false: At lines only
  bool verbose = false;  // adds hook health, and what could not be read
};

// Returns the header with the two empty lines below it.
std::string log_header(std::chrono::system_clock::time_point time,
                       std::optional<int64_t> tensor_bytes, std::optional<int64_t> allocated_bytes);

// Returns rows, an empty line, the At line, the notes of `verbose`, an empty line. A block without
// rows has no empty line before its At line if it stands directly below the header, which ends with
// two.
std::string log_block(const SnapshotDiff& diff, const LogDetail& detail, bool below_header);

// The log file of one tracker. Each block is one write(): a crash or SIGKILL loses no written
// block, and at most cuts the one that is being written. Not thread-safe.
//
// A file that is named by the time belongs to one process: a forked child begins a log of its own
// with its next block (-2.txt …), and says so on standard error. Processes share a file with a
// given name, block by block.
class LogWriter {
 public:
  struct Options {
    std::string folder;     // made if missing; empty or relative: see resolved_folder()
    std::string file_name;  // given: appended to; empty: {time}-gpu_mem_track.txt, or -2.txt,
                            // -3.txt … if that exists
    bool colons = true;     // false: 20-25-29 in names, for file systems without colons
    std::chrono::system_clock::time_point time;
    LogDetail detail;
    std::ostream* echo = nullptr;  // gets all that the log gets; not owned
  };

  // Throws c10::Error with path and reason if the file cannot be made.
  explicit LogWriter(const Options& options);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Writes header and blocks. Trouble with the file (a full disk, a deleted or moved log) is
  // reported once on standard error and never throws: each later block is tried again, and says how
  // many before it are missing. A moved log goes on in the moved file.
  void write_header(std::optional<int64_t> tensor_bytes, std::optional<int64_t> allocated_bytes);
  void write(const SnapshotDiff& diff);

  // Returns the absolute path.
  const std::string& path() const { return path_; }

 private:
  // Sets path_ and file_. Returns 0 or errno.
  int open(std::chrono::system_clock::time_point time);
  void begin_in_forked_child(const SnapshotDiff& diff);
  bool append(const std::string& text);
  void report_if_gone();

  const Options options_;
  std::string path_;
  int file_ = -1;
  pid_t process_ = 0;
  std::string missing_header_;  // not written yet
  int64_t missing_blocks_ = 0;
  bool below_header_ = true;
  bool reported_failure_ = false;
  bool reported_gone_ = false;
};

// Returns an absolute path. A relative one begins in $BUILD_WORKING_DIRECTORY (where `bazel run`
// was called), else in the working directory.
std::string resolved_folder(const std::string& folder);

}  // namespace memledger
