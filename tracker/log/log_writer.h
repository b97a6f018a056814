#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

#include "tracker/snapshot_diff.h"

namespace memledger {

struct LogDetail {
  bool rows = true;      // false: At lines only
  bool verbose = false;  // hook health, and what could not be read
};

// With the two empty lines that follow it.
std::string log_header(std::chrono::system_clock::time_point time,
                       std::optional<int64_t> tensor_bytes, int64_t allocated_bytes);

// Rows, an empty line, the At line, what `verbose` adds, an empty line. Directly below the header a
// block without rows has no empty line before its At line, as the header brought two.
std::string log_block(const SnapshotDiff& diff, const LogDetail& detail, bool below_header);

// The log file of one tracker. Each block goes out in one write() and is then the kernel's: a crash
// or SIGKILL takes away none that was written, and at most cuts the block that is just being
// written. Not thread-safe.
//
// Several processes: files named by the time are one process's own, also after fork(), where the
// child's next block begins a log of its own (-2.txt …; it says so on stderr). A given file is
// shared, block by block.
class LogWriter {
 public:
  struct Options {
    std::string folder;     // made if missing; empty or relative: see resolved_folder()
    std::string file_name;  // empty: {time}-gpu_mem_track.txt, or -2.txt, -3.txt … if that is
                            // taken; given: appended to
    bool colons = true;     // in the time: false writes 20-25-29, for file systems without colons
    std::chrono::system_clock::time_point time;
    LogDetail detail;
    std::ostream* echo = nullptr;  // gets all that the log gets
  };

  // Throws c10::Error with path and reason if the file cannot be made.
  explicit LogWriter(const Options& options);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Neither throws because of the file. A file that cannot be written (full disk), and one that was
  // deleted or moved, is reported once on stderr; each later block is tried again, and says how
  // many before it are missing. A moved log goes on in its new place.
  void write_header(std::optional<int64_t> tensor_bytes, int64_t allocated_bytes);
  void write(const SnapshotDiff& diff);

  const std::string& path() const { return path_; }  // absolute

 private:
  // Errno, or 0; sets path_ and file_.
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

// Absolute. Relative paths are relative to $BUILD_WORKING_DIRECTORY, where the user of `bazel run`
// stands, else to the working directory.
std::string resolved_folder(const std::string& folder);

}  // namespace memledger
