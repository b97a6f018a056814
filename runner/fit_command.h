#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/writes/write_hold.h"

#include "prediction/fit.h"

namespace memledger::runner {

struct FitOptions {
  std::string gpu;                     // a specification
  std::vector<std::string> arguments;  // appended to the program's, with the value for {}
  prediction::FitBounds bounds;
  bool json = false;                     // instead of text
  std::string json_file;                 // empty: standard output
  std::string svg_file;                  // empty: none
  bool until_exit = false;               // not only until the peak no longer moves
  int timeout_s = 600;                   // of each run
  int within_s = 3600;                   // after which no other value is tried
  std::vector<std::string> assumptions;  // FILE:LINE=VALUE
  WriteOptions writes;
  std::vector<std::string> program;
};

// Returns the program's words with the value instead of each {}, in arguments of its own, too.
std::vector<std::string> program_with(const FitOptions& options, int64_t value);

// Returns the arguments that have a {}, those of the program itself first.
std::vector<std::string> arguments_with_value(const FitOptions& options);

// Finds the largest value with which the program fits, and prints it. Returns the exit status: 0
// found, 10 none fits, 12 the program failed, 2 it does not use the value; 126 if memledger's own
// libraries are missing.
int fit_command(const FitOptions& options);

}  // namespace memledger::runner
