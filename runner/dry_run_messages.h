#pragma once

// What the commands that make dry-runs say on standard error.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "prediction/prediction.h"
#include "runner/dry_run.h"

namespace memledger::runner {

// How often that is where there is no terminal.
constexpr std::chrono::seconds kLineEvery(10);

// Says how far the runs are, on standard error: on a terminal on one line that changes, else on a
// new line every ten seconds. Not thread-safe.
class ProgressLine {
 public:
  // The line begins with `title`: `memledger dry-run`.
  explicit ProgressLine(std::string title) : title_(std::move(title)) {}

  void set_title(std::string title) { title_ = std::move(title); }
  // Is silent in the first two seconds.
  void show(const DryRunProgress& progress);
  void clear();
  // Prints what the runs so far show, once it is no longer silent and if that differs from the last
  // message.
  void show_so_far(const prediction::Prediction& so_far, size_t runs);

 private:
  bool is_silent() const;
  std::string text_of(const DryRunProgress& progress) const;

  std::string title_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point next_line_ = began_ + kLineEvery;
  bool is_shown_ = false;
  std::map<std::string, std::string> said_;  // by specification
};

// Prints the last lines of a program, if there are any.
void tell_last_lines(const std::string& command, const prediction::ProgramEnd& program);

// The files of runs of a program.
struct TouchedFiles {
  std::map<std::string, prediction::LayerFile> files;
  int64_t written_count = 0, removed_count = 0, bytes = 0;
  bool are_held = false;    // nothing was written for real
  bool have_zeros = false;  // the program used a GPU

  void add(const prediction::Writes& writes);
  void add(const prediction::Prediction& prediction);
};

// Says what the program would have written, or warns of what it wrote, as it is made of zeros.
// `otherwise`: what the sentence begins with.
void tell_of_files(const std::string& command, const TouchedFiles& files,
                   std::string_view otherwise = "outside a dry run");

// Has `note` called at SIGINT, SIGTERM and SIGHUP, where they are not ignored, as under nohup.
void note_signals(void (*note)(int signal));

// Prints what is wrong, in a sentence.
void tell_error(const std::string& command, const absl::Status& status);

// Returns why the program could not be run, in a sentence; empty if it was.
std::string why_not_run(const prediction::ProgramEnd& program);

}  // namespace memledger::runner
