#pragma once

// What the processes of one run leave in its folder besides their measurements: how far they are,
// which files they wrote, and what they were refused.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prediction/measure_variables.h"
#include "prediction/measurement.h"
#include "prediction/writes.h"

namespace memledger::prediction {

// How far a process is.
struct Progress {
  int process = 0;
  int64_t steps = 0;  // of optimizers
  // The step after which its peak no longer moved, or with which it ended; 0: not yet.
  int64_t settled_at = 0;
  std::string label;  // where it is: an operator; may be empty
};

// The text of a progress file, always of the same length, so that it replaces the one before.
std::string progress_text(const Progress& progress);
// Returns what the files say, by process; nothing where there are none yet.
std::vector<Progress> read_all_progress(const std::string& folder);
// Returns the process that has made most steps.
Progress read_progress(const std::string& folder);

// A loop that an assumed size drives and that would not end in time: `for label in x.unique()`.
struct SizeLoop {
  std::string driver;    // the size's site (virtual_gpu/values/assumptions.h)
  std::string place;     // the line of a read in the loop
  bool is_same = false;  // the size was capped, and the loop went on all the same
};

std::string size_loop_text(const SizeLoop& loop);
// Returns what a process of the run has written; nothing where there is no such loop.
std::optional<SizeLoop> read_size_loop(const std::string& folder);

// Files that a run's processes opened for writing, or made by renaming, and that are still there.
struct WrittenFiles {
  std::vector<std::string> paths;  // the first ones, sorted
  int64_t count = 0;               // of all
};
inline constexpr size_t kMostWrittenPaths = 30;

// Returns them by path, each once. Cost: one look at the file system for each.
WrittenFiles read_written_files(const std::string& folder);

// Returns why a process with LibTorch was not measured: the first that said so. Empty: all were.
std::string read_why_unwatched(const std::string& folder);

// Returns the devices of processes that have left no measurement (measurement.h), by process and
// index. These are processes without LibTorch or with one that is not watched, also before an
// exec(), and those that were killed.
std::vector<DeviceUse> read_unwatched_uses(const std::string& folder);

// Returns measurements of those, made of what the driver saw, each of a process or of a program
// that it was before exec(). Without those that were watched and killed.
std::vector<Measurement> read_driver_measurements(const std::string& folder);

// Returns what the process read of its devices before it was watched, by kinds of copies.
std::vector<MeasuredRead> read_copies_of(const std::string& folder, int process);

// Returns each once, in the order in which they came. A record that was cut short is left out.
std::vector<Refusal> read_refusals(const std::string& folder);

}  // namespace memledger::prediction
