// memledger: the command. What it understands is declared in command_line.cc.

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "runner/command_line.h"
#include "runner/discarding_run.h"
#include "text/output.h"

namespace {

using memledger::runner::DryRunOptions;
using memledger::runner::FitOptions;
using memledger::runner::GpusOptions;
using memledger::runner::LogOptions;
using memledger::runner::PrintText;
using memledger::runner::RunOptions;
using memledger::runner::ValidateOptions;

constexpr int kUsageError = 2;

// `bazel run` starts programs in a folder of its own; paths on the command line start from the
// caller's.
void return_to_callers_folder() {
  const char* const folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (folder == nullptr) return;
  char here[4096];
  if (getcwd(here, sizeof here) == nullptr || !absl::StrContains(here, "memledger.runfiles"))
    return;
  if (chdir(folder) != 0) memledger::tell({"memledger: ", folder, ": ", std::strerror(errno)});
}

int carry_out(const PrintText& request) {
  const absl::Status status = memledger::write_standard_output(request.text);
  if (!status.ok()) memledger::tell({std::string(status.message())});
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}

int carry_out(const RunOptions& options) {
  using memledger::runner::WritePolicy;
  return options.writes.policy == WritePolicy::kDiscard ? run_discarding(options)
                                                        : run_program(options);
}

int carry_out(const DryRunOptions& options) { return dry_run_command(options); }

int carry_out(const FitOptions& options) { return fit_command(options); }

int carry_out(const ValidateOptions& options) { return validate_command(options); }

int carry_out(const LogOptions& options) { return log_command(options); }

int carry_out(const GpusOptions& options) { return gpus_command(options); }

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    memledger::write_standard_error(memledger::runner::general_help());
    return kUsageError;
  }
  return_to_callers_folder();
  const auto request = memledger::runner::parse_command_line({argv + 1, argv + argc});
  if (!request.ok()) {
    memledger::tell({std::string(request.status().message())});
    return kUsageError;
  }
  return std::visit([](const auto& options) { return carry_out(options); }, *request);
}
