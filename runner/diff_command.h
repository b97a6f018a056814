#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/difference.h"
#include "compare/saved.h"

namespace memledger::runner {

struct DiffOptions {
  std::vector<std::string> files;  // before and after; a folder is all reports of one run
  compare::Moment moment = compare::Moment::kPeak;
  bool markdown = false;
  bool json = false;
  std::string json_file;  // empty: standard output, in place of the text
  bool all_rows = false;
  bool exit_code = false;
  std::optional<compare::Limit> limit;
};

// Prints what differs. Returns the exit status: 0; 1 if a total rose above the limit, or with
// exit_code if anything differs; 2 if the files cannot be compared, or the result not be written.
int diff_command(const DiffOptions& options);

}  // namespace memledger::runner
