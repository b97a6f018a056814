#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/environment.h"
#include "runner/writes/write_options.h"

namespace memledger::runner {

struct RunOptions {
  bool quiet = false;
  bool report = false;       // besides the line profile
  bool full_report = false;  // with its tables
  environment::LineSettings lines;
  bool no_default_columns = false;
  std::string virtual_gpu;  // empty: the GPUs that are there
  std::string calibration;  // of the virtual GPU, a file; empty: none
  // Unset: what the caller's variable says; empty: what is so without both.
  std::optional<std::string> log_folder;    // empty: standard error
  std::optional<std::string> saved_report;  // empty: none
  std::optional<std::string> timeline;      // empty: none
  std::optional<std::string> detail;        // all, names; empty: all
  std::optional<std::string> stacks;     // off, sampled, all; empty: as environment::kStacks says
  std::optional<std::string> report_on;  // a signal's name; empty: none
  std::optional<int> report_near;        // percent of the control group's limit; 0: never
  bool training_paused = false;          // see environment::kTrainingPaused
  WriteOptions writes{WritePolicy::kAllow};  // what run_program() leaves to run_discarding()
  std::string outputs_folder;  // stands for `/` where reports go; empty: they go there
  std::vector<std::string> program;
};

// Becomes the program (same process, so exit status, signals and streams are the program's own).
// Returns only on failure, having said why: 127 where there is no such program, 126 where it cannot
// be run or memledger's own libraries are missing.
int run_program(const RunOptions& options);

}  // namespace memledger::runner
