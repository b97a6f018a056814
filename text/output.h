// The one way out of the process: messages and files.
//
//   tell({"memledger: cannot read ", path, ": ", reason});
//   const absl::Status status = write_file(path, "report", report.to_html());
//
// Nothing here throws, ends the program or raises a signal, whatever the disk, the pipe or standard
// error does. A failure is told with path and reason: by tell() itself never, by the others in what
// they return. Thread-safe; no lock but one on a folder, in RunFile::write().
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace memledger {

// Writes one line to standard error: the parts, made printable, and a line's end. Silent where
// standard error is closed or full.
void tell(std::initializer_list<std::string_view> parts) noexcept;

// Returns what comes before the first line's end: LibTorch's errors go on with a backtrace.
std::string_view first_line(std::string_view text);

// Write `text` as it is: names in it have been made harmless. To standard error in silence, as
// above.
void write_standard_error(std::string_view text) noexcept;
absl::Status write_standard_output(std::string_view text) noexcept;

// Writes to a stream of the program's, std::cout for one, and flushes it. The first failure is
// told; a stream that has failed before is left alone. Returns whether all went well. What the
// stream throws stays here.
bool write_to(std::ostream& out, std::string_view text, std::string_view what) noexcept;

// Write everything to a descriptor; return 0, or errno. append_whole() takes half a text back where
// the file is a regular one.
int write_all(int descriptor, std::string_view text) noexcept;
int append_whole(int descriptor, std::string_view text) noexcept;

using Write = std::function<void(std::ostream&)>;

// Writes a file that the user named. Follows links and replaces what is there, whole or not at all:
// under a temporary name beside it, which is then renamed. The mode of a replaced file stays.
// Devices, pipes and /dev/fd/N are written in place. `what` is for the message: cannot write the
// WHAT PATH.
absl::Status write_file(const std::string& path, std::string_view what, const Write& write);
absl::Status write_file(const std::string& path, std::string_view what, std::string_view text);

// Files whose names we choose: STEM + EXTENSION, or STEM-2EXTENSION … if that is taken. Follow no
// link and replace nothing.
struct NewFile {
  int descriptor = -1;  // the caller's; append only, never one of the standard ones
  std::string path;
};
// Returns 0, or errno and the path that it failed with.
int make_new_file(const std::string& stem, std::string_view extension, NewFile& file);
// Returns the path. Leaves nothing behind where it fails.
absl::StatusOr<std::string> write_new_file(const std::string& stem, std::string_view extension,
                                           std::string_view what, std::string_view text);
absl::StatusOr<std::string> write_new_file(const std::string& stem, std::string_view extension,
                                           std::string_view what, const Write& write);

// Opens a file that the user named, to append to it; -1 and errno. Never one of the standard
// descriptors.
int open_to_append(const std::string& path) noexcept;

// A path that the user spelt once for all processes of a run: the first that writes has it, later
// ones write NAME.PID.EXTENSION beside it. Of this run is what `memledger run` says it is
// (kRunVariable), and what was written since this object was made.
class RunFile {
 public:
  RunFile() = default;
  // When the process begins, with an absolute path.
  explicit RunFile(std::string path);

  bool empty() const { return path_.empty(); }
  const std::string& path() const { return path_; }
  // Returns where it was written.
  absl::StatusOr<std::string> write(std::string_view what, const Write& write) const;

 private:
  // What lies at a path, and since when.
  struct Identity {
    bool exists = false;
    dev_t device = 0;
    ino_t inode = 0;
    int64_t changed_ns = 0;
  };
  static Identity identity_of(const std::string& path);

  std::string path_;
  Identity before_;
  int64_t run_began_ns_ = 0;
};

inline constexpr const char* kRunVariable = "MEMLEDGER_RUN";
// The value of kRunVariable for a run that begins now.
std::string run_that_begins_now();

}  // namespace memledger
