#include "runner/dry_run_command.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "prediction/prediction.h"
#include "runner/dry_run.h"
#include "runner/program_file.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

using prediction::Prediction;
using prediction::Verdict;

constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;
constexpr auto kSilentFor = std::chrono::seconds(2);
constexpr char kExpandable[] = "expandable_segments:True";

std::atomic<int> caught_signal{0};
void note_signal(int signal) { caught_signal = signal; }

// Says on a terminal how far the runs are, on one line.
class ProgressLine {
 public:
  void show(const DryRunProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (isatty(STDERR_FILENO) == 0 || progress.elapsed < kSilentFor || now < next_) return;
    next_ = now + std::chrono::seconds(1);
    is_shown_ = true;
    write_standard_error(absl::StrCat("\rmemledger dry-run: ", progress.ended, " of ",
                                      progress.total, " runs have ended, after ",
                                      progress.elapsed / std::chrono::seconds(1), " s "));
  }
  void clear() {
    if (std::exchange(is_shown_, false)) write_standard_error("\r\033[K");
  }

 private:
  std::chrono::steady_clock::time_point next_;
  bool is_shown_ = false;
};

// Runs those that may not fit again with expandable segments.
absl::Status try_expandable(DryRunner& runner, std::vector<DryRunRequest> requests,
                            std::vector<Prediction>& predictions) {
  std::vector<Prediction*> whose;
  std::vector<DryRunRequest> tried;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Verdict verdict = predictions[i].verdict;
    if (verdict != Verdict::kDoesNotFit && verdict != Verdict::kNotKnown) continue;
    requests[i].allocator_setting = kExpandable;
    requests[i].verdict_only = true;
    tried.push_back(std::move(requests[i]));
    whose.push_back(&predictions[i]);
  }
  const auto results = runner.predict(tried);
  if (!results.ok()) return results.status();
  for (size_t i = 0; i < whose.size(); ++i)
    prediction::add_setting(kExpandable, (*results)[i], *whose[i]);
  return absl::OkStatus();
}

std::string json_of(const std::vector<Prediction>& predictions) {
  if (predictions.size() == 1) return predictions.front().to_json() + "\n";
  return "[" +
         absl::StrJoin(
             predictions, ",\n ",
             [](std::string* out, const Prediction& one) { absl::StrAppend(out, one.to_json()); }) +
         "]\n";
}

// The smallest device that fits comes first, then those that do not.
std::string text_of(std::vector<Prediction> predictions) {
  const auto capacity = [](const Prediction& one) {
    int64_t bytes = 0;
    for (const prediction::DevicePrediction& device : one.devices) bytes += device.capacity_bytes;
    return bytes;
  };
  std::stable_sort(predictions.begin(), predictions.end(),
                   [&](const Prediction& a, const Prediction& b) {
                     const bool a_fits = a.verdict == Verdict::kFits;
                     const bool b_fits = b.verdict == Verdict::kFits;
                     return a_fits != b_fits ? a_fits : capacity(a) < capacity(b);
                   });
  std::string text;
  if (predictions.size() > 1) {
    for (const Prediction& one : predictions)
      absl::StrAppend(&text, one.specification, ": ", one.sentence(), "\n");
    text += "\n";
  }
  return text + absl::StrJoin(predictions, "\n", [](std::string* out, const Prediction& one) {
           absl::StrAppend(out, one.to_text());
         });
}

void tell_failure(const Prediction& prediction) {
  if (prediction.verdict != Verdict::kFailed && !prediction.program.timed_out) return;
  if (prediction.program.last_lines.empty()) return;
  write_standard_error(absl::StrCat("memledger dry-run: the last lines of the program:\n",
                                    prediction.program.last_lines, "\n"));
}

absl::Status write(const DryRunOptions& options, const std::vector<Prediction>& predictions) {
  if (!options.json) return write_standard_output(text_of(predictions));
  if (options.json_file.empty()) return write_standard_output(json_of(predictions));
  if (const absl::Status status = write_file(options.json_file, "prediction", json_of(predictions));
      !status.ok())
    return status;
  return write_standard_output(text_of(predictions));
}

}  // namespace

int dry_run_command(const DryRunOptions& options) {
  const Fitness fitness = check_program(options.program[0]);
  if (!fitness.refusal.empty()) {
    tell({"memledger dry-run: ", fitness.refusal});
    return kCannotRun;
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, &note_signal);
  ProgressLine line;
  DryRunnerOptions runner_options;
  runner_options.until_exit = options.until_exit;
  runner_options.timeout_s = options.timeout_s;
  runner_options.progress = [&line](const DryRunProgress& progress) { line.show(progress); };
  runner_options.is_cancelled = [] { return caught_signal != 0; };
  DryRunner runner(std::move(runner_options));
  std::vector<DryRunRequest> requests;
  for (const std::string& gpu : options.gpus) {
    DryRunRequest request;
    request.gpu = gpu;
    request.program = options.program;
    requests.push_back(std::move(request));
  }
  auto predictions = runner.predict(requests);
  absl::Status status = predictions.status();
  if (status.ok()) status = try_expandable(runner, requests, *predictions);
  line.clear();
  if (caught_signal != 0) return 128 + caught_signal;
  if (!status.ok()) {
    tell({"memledger dry-run: ", std::string(status.message())});
    return kCannotRun;
  }
  for (const Prediction& prediction : *predictions) tell_failure(prediction);
  if (predictions->front().program.status == kNotFound) return kNotFound;
  if (const absl::Status written = write(options, *predictions); !written.ok())
    tell({"memledger dry-run: ", std::string(written.message())});
  return prediction::exit_status(*predictions);
}

}  // namespace memledger::runner
