#include "runner/dry_run_command.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prediction/prediction.h"
#include "runner/allocator_setting.h"
#include "runner/dry_run.h"
#include "runner/dry_run_messages.h"
#include "runner/locations.h"
#include "runner/program_file.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

using prediction::Prediction;

constexpr int kCannotRun = 126;
constexpr int kSignalled = 128;
constexpr char kCommand[] = "memledger dry-run";

std::atomic<int> caught_signal{0};
void note_signal(int signal) { caught_signal = signal; }

// Runs programs again with other settings of the allocator, where that may change something.
absl::Status try_settings(DryRunner& runner, const std::vector<DryRunRequest>& requests,
                          std::vector<Prediction>& predictions) {
  std::vector<Prediction*> whose;
  std::vector<DryRunRequest> tried;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (std::string& setting :
         prediction::settings_worth_trying(predictions[i], callers_allocator_setting())) {
      DryRunRequest request = requests[i];
      request.allocator_setting = std::move(setting);
      request.verdict_only = true;
      tried.push_back(std::move(request));
      whose.push_back(&predictions[i]);
    }
  }
  const auto results = runner.predict(tried);
  if (!results.ok()) return results.status();
  for (size_t i = 0; i < whose.size(); ++i)
    prediction::add_setting(tried[i].allocator_setting, (*results)[i], *whose[i]);
  return absl::OkStatus();
}

void tell_failures(const std::vector<Prediction>& predictions) {
  for (const Prediction& prediction : predictions) {
    // What a program that ended well said last is of no interest.
    if (prediction.reason.empty() || prediction.program.status == 0) continue;
    return tell_last_lines(kCommand, prediction.program);
  }
}

void tell_of_files(const std::vector<Prediction>& predictions) {
  TouchedFiles files;
  for (const Prediction& prediction : predictions) files.add(prediction);
  runner::tell_of_files(kCommand, files);
}

// A line that was not read may be a mistyped one.
void tell_unused(const std::vector<std::string>& assumptions,
                 const std::vector<Prediction>& predictions) {
  for (const std::string& text : assumptions) {
    const std::string place = parse_assumption(text).value_or(Assumption()).place;
    const std::string line = place.substr(place.rfind('/') + 1);
    const bool is_used =
        std::any_of(predictions.begin(), predictions.end(), [&](const Prediction& prediction) {
          return std::any_of(prediction.unknown_reads.begin(), prediction.unknown_reads.end(),
                             [&](const prediction::MeasuredRead& read) {
                               return read.kind == prediction::MeasuredRead::Kind::kSaid &&
                                      absl::StrContains(absl::StrCat(read.place, " "),
                                                        absl::StrCat(line, " "));
                             });
        });
    if (!is_used)
      tell({kCommand, ": --assume=", text, ": the program read no value there that nobody knows"});
  }
}

absl::Status write_json(const DryRunOptions& options, const std::vector<Prediction>& predictions) {
  const std::string json = prediction::to_json(predictions) + "\n";
  return options.json_file.empty() ? write_standard_output(json)
                                   : write_file(options.json_file, "prediction", json);
}

bool prints_text(const DryRunOptions& options) {
  return !options.json || !options.json_file.empty();
}

DryRunnerOptions runner_options(const DryRunOptions& options, ProgressLine& line) {
  DryRunnerOptions result;
  result.until_exit = options.until_exit;
  result.timeout_s = options.timeout_s;
  result.writes = options.writes;
  result.progress = [&line](const DryRunProgress& progress) { line.show(progress); };
  result.so_far = [&line](const Prediction& so_far, size_t runs) {
    line.show_so_far(so_far, runs);
  };
  result.is_cancelled = [] { return caught_signal != 0; };
  return result;
}

std::vector<DryRunRequest> requests_of(const DryRunOptions& options) {
  std::vector<DryRunRequest> requests;
  for (const std::string& gpu : options.gpus) {
    DryRunRequest request;
    request.gpu = gpu;
    request.program = options.program;
    request.assumptions = options.assumptions;
    request.goes_on = !options.until_exit;
    requests.push_back(std::move(request));
  }
  return requests;
}

// The answer first; what else could be set comes after it.
absl::Status predict_and_print(const DryRunOptions& options, ProgressLine& line,
                               std::vector<Prediction>& predictions) {
  DryRunner runner(runner_options(options, line));
  const std::vector<DryRunRequest> requests = requests_of(options);
  auto made = runner.predict(requests);
  line.clear();
  if (!made.ok()) return made.status();
  predictions = *std::move(made);
  if (const std::string why = why_not_run(predictions.front().program); !why.empty()) {
    tell({kCommand, ": ", why});
    return absl::OkStatus();
  }
  tell_failures(predictions);
  tell_unused(options.assumptions, predictions);
  absl::Status status;
  if (prints_text(options)) status = write_standard_output(prediction::to_text(predictions));
  if (status.ok() && options.settings) {
    line.set_title(absl::StrCat(kCommand, ": other settings"));
    DryRunnerOptions other = runner_options(options, line);
    other.so_far = nullptr;
    DryRunner other_runner(other);
    status = try_settings(other_runner, requests, predictions);
    line.clear();
  }
  for (const Prediction& prediction : prediction::in_reading_order(predictions)) {
    if (status.ok() && prints_text(options))
      status = write_standard_output(prediction::settings_text(prediction));
  }
  tell_of_files(predictions);
  if (status.ok() && options.json) status = write_json(options, predictions);
  return status;
}

}  // namespace

int dry_run_command(const DryRunOptions& options) {
  const Fitness fitness = check_program(options.program[0]);
  if (!fitness.refusal.empty()) {
    tell({"memledger dry-run: ", fitness.refusal});
    return kCannotRun;
  }
  if (const auto locations = find_locations(); !locations.ok()) {
    tell({"memledger dry-run: ", std::string(locations.status().message())});
    return kCannotRun;
  }
  note_signals(&note_signal);
  ProgressLine line(kCommand);
  std::vector<Prediction> predictions;
  const absl::Status status = predict_and_print(options, line, predictions);
  line.clear();
  if (caught_signal != 0) return kSignalled + caught_signal;
  if (!status.ok()) {
    tell_error(kCommand, status);
    return predictions.empty() ? kCannotRun : EXIT_FAILURE;
  }
  const prediction::ProgramEnd& program = predictions.front().program;
  return why_not_run(program).empty() ? prediction::exit_status(predictions) : program.status;
}

}  // namespace memledger::runner
