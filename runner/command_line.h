#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "runner/dry_run_command.h"
#include "runner/fit_command.h"
#include "runner/gpus_command.h"
#include "runner/log_command.h"
#include "runner/run_command.h"
#include "runner/validate_command.h"

namespace memledger::runner {

// Help or versions, for standard output.
struct PrintText {
  std::string text;
};

// What the user asks for. A new command is one more type here, and a declaration in
// command_line.cc.
using Request = std::variant<PrintText, RunOptions, DryRunOptions, FitOptions, ValidateOptions,
                             LogOptions, GpusOptions>;

// Parses what follows the program's name. InvalidArgument holds the message for the user: the
// command, the option and what to do.
absl::StatusOr<Request> parse_command_line(const std::vector<std::string>& words);

// Returns what `memledger --help` prints.
std::string general_help();

}  // namespace memledger::runner
