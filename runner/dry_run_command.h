#pragma once

#include <string>
#include <vector>

#include "runner/writes/write_hold.h"

namespace memledger::runner {

struct DryRunOptions {
  std::vector<std::string> gpus;  // specifications; one or more
  bool json = false;              // instead of text
  std::string json_file;          // empty: standard output
  bool until_exit = false;        // not only until the peak no longer moves
  bool settings = true;           // try other settings of the allocator where they may matter
  int timeout_s = 600;            // of each run
  std::vector<std::string> assumptions;  // FILE:LINE=VALUE
  WriteOptions writes;
  std::vector<std::string> program;
};

// Runs the program on virtual GPUs, and prints whether it fits and how much it takes. Returns the
// exit status: 0 fits, 10 does not, 11 not known, 12 the program failed; 126 if memledger's own
// libraries are missing.
int dry_run_command(const DryRunOptions& options);

}  // namespace memledger::runner
