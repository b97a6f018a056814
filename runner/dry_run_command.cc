#include "runner/dry_run_command.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prediction/prediction.h"
#include "runner/dry_run.h"
#include "runner/locations.h"
#include "runner/program_file.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

using prediction::Prediction;

constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;
constexpr int kSignalled = 128;
constexpr auto kSilentFor = std::chrono::seconds(2);
constexpr size_t kFilesShown = 5;
constexpr size_t kLineWidth = 79;

std::atomic<int> caught_signal{0};
void note_signal(int signal) { caught_signal = signal; }

// Says on a terminal how far the runs are, on one line.
class ProgressLine {
 public:
  void show(const DryRunProgress& progress) {
    if (isatty(STDERR_FILENO) == 0 || progress.elapsed < kSilentFor) return;
    is_shown_ = true;
    write_standard_error("\r\033[K" + text_of(progress).substr(0, kLineWidth));
  }
  void clear() {
    if (std::exchange(is_shown_, false)) write_standard_error("\r\033[K");
  }

 private:
  static std::string text_of(const DryRunProgress& progress) {
    std::string text = absl::StrCat("memledger dry-run: run", progress.running > 1 ? "s " : " ",
                                    std::min(progress.ended + 1, progress.total));
    if (progress.running > 1) absl::StrAppend(&text, " to ", progress.ended + progress.running);
    absl::StrAppend(&text, " of ", progress.total, ", ");
    if (progress.steps > 0) absl::StrAppend(&text, "after optimizer step ", progress.steps, ", ");
    absl::StrAppend(&text, progress.elapsed / std::chrono::seconds(1), " s");
    return progress.label.empty() ? text : absl::StrCat(text, ", ", printable(progress.label));
  }

  bool is_shown_ = false;
};

std::string callers_setting() {
  std::string setting;
  for (const char* const name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr) absl::StrAppend(&setting, value, ",");
  }
  return setting;
}

// Runs programs again with other settings of the allocator, where that may change something.
absl::Status try_settings(DryRunner& runner, const std::vector<DryRunRequest>& requests,
                          std::vector<Prediction>& predictions) {
  std::vector<Prediction*> whose;
  std::vector<DryRunRequest> tried;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (std::string& setting :
         prediction::settings_worth_trying(predictions[i], callers_setting())) {
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
    if (prediction.reason.empty() || prediction.program.last_lines.empty()) continue;
    write_standard_error(absl::StrCat("memledger dry-run: the last lines of the program:\n",
                                      prediction.program.last_lines, "\n"));
    return;
  }
}

std::string shown_path(const std::string& path) {
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string() + "/";
  return printable(absl::StartsWith(path, folder) ? path.substr(folder.size()) : path);
}

// What the program writes is made of zeros, and may have replaced something real.
void warn_of_written_files(const std::vector<Prediction>& predictions) {
  std::set<std::string> files;
  for (const Prediction& prediction : predictions)
    files.insert(prediction.written_files.begin(), prediction.written_files.end());
  if (files.empty()) return;
  std::string list;
  size_t shown = 0;
  for (const std::string& file : files) {
    if (shown++ == kFilesShown) break;
    absl::StrAppend(&list, list.empty() ? "" : ", ", shown_path(file));
  }
  if (files.size() > kFilesShown)
    absl::StrAppend(&list, " and ", files.size() - kFilesShown, " more");
  tell({"memledger dry-run: warning: the program wrote ", files.size() == 1 ? "a file" : "files",
        ", and values from the GPU are zeros in them: ", list});
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
  result.progress = [&line](const DryRunProgress& progress) { line.show(progress); };
  result.is_cancelled = [] { return caught_signal != 0; };
  return result;
}

std::vector<DryRunRequest> requests_of(const DryRunOptions& options) {
  std::vector<DryRunRequest> requests;
  for (const std::string& gpu : options.gpus) {
    DryRunRequest request;
    request.gpu = gpu;
    request.program = options.program;
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
  tell_failures(predictions);
  if (predictions.front().program.status == kNotFound) return absl::OkStatus();
  absl::Status status;
  if (prints_text(options)) status = write_standard_output(prediction::to_text(predictions));
  if (status.ok() && options.settings) {
    status = try_settings(runner, requests, predictions);
    line.clear();
  }
  for (const Prediction& prediction : prediction::in_reading_order(predictions)) {
    if (status.ok() && prints_text(options))
      status = write_standard_output(prediction::settings_text(prediction));
  }
  warn_of_written_files(predictions);
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
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, &note_signal);
  ProgressLine line;
  std::vector<Prediction> predictions;
  const absl::Status status = predict_and_print(options, line, predictions);
  line.clear();
  if (caught_signal != 0) return kSignalled + caught_signal;
  if (!status.ok()) tell({"memledger dry-run: ", std::string(status.message())});
  if (predictions.empty()) return kCannotRun;
  return predictions.front().program.status == kNotFound ? kNotFound
                                                         : prediction::exit_status(predictions);
}

}  // namespace memledger::runner
