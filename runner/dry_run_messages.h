#pragma once

// What the commands that make dry-runs say on standard error.

#include <chrono>
#include <set>
#include <string>

#include "prediction/prediction.h"
#include "runner/dry_run.h"

namespace memledger::runner {

// Says on a terminal how far the runs are, on one line. Not thread-safe.
class ProgressLine {
 public:
  // The line begins with `title`: `memledger dry-run`.
  explicit ProgressLine(std::string title) : title_(std::move(title)) {}

  void set_title(std::string title) { title_ = std::move(title); }
  // Is silent in the first two seconds.
  void show(const DryRunProgress& progress);
  void clear();

 private:
  std::string text_of(const DryRunProgress& progress) const;

  std::string title_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool is_shown_ = false;
};

// Prints the last lines of a program, if there are any.
void tell_last_lines(const std::string& command, const prediction::ProgramEnd& program);

// Names what the program wrote, as it is made of zeros, and may have replaced something real.
void warn_of_written_files(const std::string& command, const std::set<std::string>& files);

}  // namespace memledger::runner
