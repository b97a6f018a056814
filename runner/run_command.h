#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::runner {

struct RunArguments {
  bool help = false;
  bool quiet = false;
  bool report = false;                 // beside the line profile
  std::vector<std::string> functions;  // whose lines are profiled
  std::vector<std::string> columns;    // of the line profile: all of them
  std::string gpu;                     // that the line profile is of; empty: the first
  std::string text_file, json_file, html_file;
  std::string virtual_gpu;  // empty: the GPUs that are there
  std::string log_folder;   // empty: standard error
  std::string timeline;     // file; empty: none
  std::vector<std::string> program;
};

// Of what follows `run`. InvalidArgument says what is wrong with which argument.
absl::StatusOr<RunArguments> parse_run_arguments(const std::vector<std::string>& arguments);

// Becomes the program (same process, so exit status, signals and streams are the program's own).
// Returns only on failure, having said why: 127 where there is no such program, 126 where it cannot
// be run or memledger's own libraries are missing.
int run_program(const RunArguments& arguments);

}  // namespace memledger::runner
