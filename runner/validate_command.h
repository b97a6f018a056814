#pragma once

#include <string>
#include <vector>

#include "runner/writes/write_hold.h"

#include "runner/network_comparison.h"

namespace memledger::runner {

struct ValidateOptions {
  std::string gpu;               // the virtual side; empty: the device of the real one's name
  std::string real_side;         // for tests: a virtual device in the real one's place
  bool json = false;             // instead of text
  std::string json_file;         // empty: standard output
  std::string calibration_file;  // to write; empty: none
  bool until_exit = false;       // not only until the peak no longer moves
  int timeout_s = 600;           // of each run
  WriteOptions writes;           // of the virtual side
  NetworkOptions networks;       // where no program is given
  std::vector<std::string> program;
};

// Runs a program, or the built-in networks, on this machine's GPU and on the virtual one of its
// name, and prints what both took. Returns the exit status: 0 both ran, 12 one did not, 126 where
// memledger's own libraries are missing.
int validate_command(const ValidateOptions& options);

}  // namespace memledger::runner
