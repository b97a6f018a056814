#pragma once

// What the processes of one run leave in its folder beside their measurements: how far they are,
// and which files they wrote.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace memledger::prediction {

// PID.progress: one line, replaced in place while the process runs.
inline constexpr char kProgressExtension[] = ".progress";
// One absolute path per line, terminated by a zero byte, as a path may hold a newline; all
// processes append.
inline constexpr char kWrittenFiles[] = "written";

// How far a run is.
struct Progress {
  int64_t steps = 0;  // of optimizers, in the process that has made most
  std::string label;  // where that process is: an operator or a label; may be empty
};

// The text of a progress file, always of the same length, so that it replaces the one before.
std::string progress_text(const Progress& progress);
// Returns what the files say; nothing where there are none yet.
Progress read_progress(const std::string& folder);

// Files that a run's processes opened for writing, or made by renaming, and that are still there.
struct WrittenFiles {
  std::vector<std::string> paths;  // the first ones, sorted
  int64_t count = 0;               // of all
};
inline constexpr size_t kMostWrittenPaths = 30;

// Returns them by path, each once. Cost: one look at the file system for each.
WrittenFiles read_written_files(const std::string& folder);

}  // namespace memledger::prediction
