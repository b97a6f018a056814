#pragma once

// Writes messages and files: the only way by which text leaves the process.
//
//   tell({"memledger: cannot read ", path, ": ", reason});
//   const absl::Status status = write_file(path, "report", report.to_html());
//
// Nothing here throws, ends the program or raises a signal, whatever the disk, the pipe or standard
// error does. What can fail returns an error with path and reason. Thread-safe; takes no lock but
// one on a folder, in RunFile::write().

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace memledger {

// Writes one line to standard error, made of the parts, printable. Is silent if standard error is
// closed or full.
void tell(std::initializer_list<std::string_view> parts) noexcept;

// Returns the first line of a text: LibTorch's errors go on with a backtrace.
std::string_view first_line(std::string_view text);

// Write `text` as it is, so names in it must be harmless already. write_standard_error() is silent
// like tell().
void write_standard_error(std::string_view text) noexcept;
absl::Status write_standard_output(std::string_view text) noexcept;

// Writes to a stream of the program, such as std::cout, and flushes it. Reports the first failure,
// and leaves a stream alone that has failed before. Returns whether all went well; catches what the
// stream throws.
bool write_to(std::ostream& out, std::string_view text, std::string_view what) noexcept;

// Write everything to a descriptor and return 0, or errno. append_whole() removes half a text from
// a regular file.
int write_all(int descriptor, std::string_view text) noexcept;
int append_whole(int descriptor, std::string_view text) noexcept;

// Has the path of a file that is not whole yet noted in `place` while it is written, "" otherwise:
// for a process that others end (runner/inside/write_in_copy.h), so that they can remove it.
void note_temporary_in(char* place, size_t size) noexcept;

using Write = std::function<void(std::ostream&)>;

// Writes a file that the user named. Follows links and replaces what is there, whole or not at all,
// by renaming a temporary file next to it; keeps the mode of a replaced file. Devices, pipes and
// /dev/fd/N are written in place. `what` is for the message: cannot write the WHAT PATH.
absl::Status write_file(const std::string& path, std::string_view what, const Write& write);
absl::Status write_file(const std::string& path, std::string_view what, std::string_view text);

// Return why write_file() would fail, or every file in a folder, as far as that shows without
// writing, opening or making anything: errno, or 0. Missing folders above a folder count as made;
// those above a file do with `makes_folders`.
int why_not_writable(const std::string& path, bool makes_folders);
int why_folder_not_writable(std::string folder);

// A file whose name we choose: STEM + EXTENSION, or STEM-2EXTENSION … if that is taken.
struct NewFile {
  int descriptor = -1;  // the caller's; append only, never one of the standard ones
  std::string path;
};
// Make such a file; follow no link and replace nothing. make_new_file() returns 0, or errno, with
// the path that failed in `file`. write_new_file() returns the path, and leaves nothing behind if
// it fails.
int make_new_file(const std::string& stem, std::string_view extension, NewFile& file);
absl::StatusOr<std::string> write_new_file(const std::string& stem, std::string_view extension,
                                           std::string_view what, std::string_view text);
absl::StatusOr<std::string> write_new_file(const std::string& stem, std::string_view extension,
                                           std::string_view what, const Write& write);

// Opens a file that the user named, to append to it. Returns -1 and sets errno if it cannot; never
// returns a standard descriptor.
int open_to_append(const std::string& path) noexcept;

// Now, by three clocks.
struct RunTime {
  int64_t wall_ns = 0;  // since 1970, which an administrator may set back
  int64_t file_ns = 0;  // the same as file systems stamp files: some ticks behind
  int64_t boot_ns = 0;  // since the machine started, which nobody can set
};
using RunClock = RunTime (*)();
RunTime run_time();

// A path that the user gave once for all processes of a run: the first that writes takes it, later
// ones write NAME.PID.EXTENSION next to it. What lay there before the run began is replaced. The
// extended attribute kRunAttribute of each file has the run that wrote it. On a file system without
// such attributes the file's time decides. kRunVariable, which `memledger run` sets, names the run;
// without it each process is a run of its own.
class RunFile {
 public:
  // The owner of the path since the run began.
  enum class Taker { kNobody, kThisRun, kAnotherRun, kUnknown };
  struct Written {
    std::string path;
    Taker taker = Taker::kNobody;
  };

  RunFile() = default;
  // To be made when the process begins, with an absolute path.
  explicit RunFile(std::string path, RunClock clock = &run_time);

  bool empty() const { return path_.empty(); }
  const std::string& path() const { return path_; }
  // Writes the file. Returns its path, and who has the one that was asked for.
  absl::StatusOr<Written> write(std::string_view what, const Write& write) const;

 private:
  // Which file lies at a path, and since when.
  struct Identity {
    bool exists = false;
    dev_t device = 0;
    ino_t inode = 0;
    int64_t changed_ns = 0;
  };
  static Identity identity_of(const std::string& path);
  Taker taker_of(const std::string& path) const;
  std::string stamp() const;

  std::string path_;
  RunClock clock_ = &run_time;
  Identity before_;
  std::string run_;     // as kRunVariable has it
  std::string writer_;  // this process since its last exec
  std::string boot_;    // of this machine; empty: unknown
  bool has_runner_ = false;
  pid_t process_ = 0;
  int64_t began_file_ns_ = 0;  // 0: there is no runner
  int64_t began_boot_ns_ = 0;  // 0: the run began on another machine, or before a restart
};

inline constexpr const char* kRunVariable = "MEMLEDGER_RUN";
inline constexpr const char* kRunAttribute = "user.memledger.run";
// Returns the value of kRunVariable for a run that begins now.
std::string run_that_begins_now(RunClock clock = &run_time);

}  // namespace memledger
