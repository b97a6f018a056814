#pragma once

#include <optional>
#include <string>
#include <vector>

namespace memledger::runner {

struct LogOptions {
  std::vector<std::string> files;  // one, or two to compare
  std::optional<std::string> svg;  // `-`: standard output; only with one file
};

// Prints a summary or a comparison. Returns the exit status: 0, or 1 where a file cannot be read or
// written; the reason is on standard error.
int log_command(const LogOptions& options);

}  // namespace memledger::runner
