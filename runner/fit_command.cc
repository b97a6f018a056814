#include "runner/fit_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prediction/fit_report.h"
#include "prediction/prediction.h"
#include "runner/allocator_setting.h"
#include "runner/dry_run.h"
#include "runner/dry_run_messages.h"
#include "runner/locations.h"
#include "runner/program_file.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

using prediction::FitReport;
using prediction::FitSearch;
using prediction::Prediction;

constexpr char kCommand[] = "memledger fit";
constexpr int kCannotRun = 126;
constexpr size_t kWidthOfFiles = 80;
constexpr size_t kMostWidth = 120;
constexpr char kPlace[] = "{}";

std::atomic<int> caught_signal{0};
void note_signal(int signal) { caught_signal = signal; }

// Another setting that may free memory.
struct Remedy {
  const char* variable;
  const char* setting;
  bool is_of_allocator;
};

constexpr Remedy kRemedies[] = {
    {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", true},
    {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128", true},
    {"CUBLAS_WORKSPACE_CONFIG", ":16:8", false},
};

bool is_set_already(const Remedy& remedy) {
  const char* const value = std::getenv(remedy.variable);
  return value != nullptr && absl::StrContains(value, remedy.setting);
}

// Returns the width of the terminal.
size_t width_of_output() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kWidthOfFiles;
  return std::min<size_t>(size.ws_col, kMostWidth);
}

// Makes the runs, and says on a terminal how far they are.
class Session {
 public:
  explicit Session(const FitOptions& options) : options_(options), runner_(runner_options()) {}

  absl::StatusOr<Prediction> predict(int64_t value, DryRunRequest request) {
    line_.set_title(absl::StrCat(
        kCommand, ": ",
        printable(prediction::with_value(arguments_with_value(options_).front(), value))));
    auto predictions = make({std::move(request)});
    if (!predictions.ok()) return predictions.status();
    return std::move(predictions->front());
  }

  DryRunRequest request(int64_t value) const {
    DryRunRequest request;
    request.gpu = options_.gpu;
    request.program = program_with(options_, value);
    request.assumptions = options_.assumptions;
    return request;
  }

  // The runs of the last prediction.
  const std::vector<prediction::Run>& last_runs() const { return runner_.runs().front(); }

  // Runs it again with other settings; `prediction`, which comes of the runs `made`, gets its peaks
  // without a limit if it lacks them.
  absl::StatusOr<std::vector<prediction::MeasuredRemedy>> try_remedies(
      int64_t value, std::vector<prediction::Run> made, Prediction& prediction) {
    std::vector<DryRunRequest> requests;
    std::vector<prediction::MeasuredRemedy> remedies;
    for (const Remedy& remedy : remedies_for(prediction)) {
      DryRunRequest request = this->request(value);
      request.verdict_only = true;
      if (remedy.is_of_allocator) {
        request.allocator_setting = remedy.setting;
      } else {
        request.variables.emplace_back(remedy.variable, remedy.setting);
      }
      requests.push_back(std::move(request));
      prediction::MeasuredRemedy result;
      result.setting = absl::StrCat(remedy.variable, "=", remedy.setting);
      remedies.push_back(std::move(result));
    }
    line_.set_title(absl::StrCat(kCommand, ": other settings"));
    const bool lacks_peaks = prediction::fit_point(value, prediction).may_be_cut();
    if (lacks_peaks) {
      requests.push_back(request(value));
      requests.back().made = std::move(made);
    }
    auto predictions = make(requests);
    if (!predictions.ok()) return predictions.status();
    for (size_t i = 0; i < remedies.size(); ++i) {
      prediction::FitPoint point = prediction::fit_point(value, (*predictions)[i]);
      remedies[i].verdict = point.verdict;
      remedies[i].peaks = point.peaks;
    }
    if (lacks_peaks) prediction = std::move(predictions->back());
    return remedies;
  }

  size_t runs() const { return runner_.runs_made(); }
  // The files of the programs of all runs so far.
  const TouchedFiles& files() const { return files_; }

 private:
  // Those of the allocator only where they may change something.
  static std::vector<Remedy> remedies_for(const Prediction& prediction) {
    const std::vector<std::string> of_allocator =
        prediction::settings_worth_trying(prediction, callers_allocator_setting());
    std::vector<Remedy> remedies;
    for (const Remedy& remedy : kRemedies) {
      const bool may_help =
          !remedy.is_of_allocator ||
          std::find(of_allocator.begin(), of_allocator.end(), remedy.setting) != of_allocator.end();
      if (may_help && !is_set_already(remedy)) remedies.push_back(remedy);
    }
    return remedies;
  }

  DryRunnerOptions runner_options() {
    DryRunnerOptions options;
    options.until_exit = options_.until_exit;
    options.timeout_s = options_.timeout_s;
    options.writes = options_.writes;
    options.progress = [this](const DryRunProgress& progress) { line_.show(progress); };
    options.is_cancelled = [] { return caught_signal != 0; };
    return options;
  }

  absl::StatusOr<std::vector<Prediction>> make(const std::vector<DryRunRequest>& requests) {
    auto predictions = runner_.predict(requests);
    line_.clear();
    if (!predictions.ok()) return predictions;
    for (const Prediction& prediction : *predictions) files_.add(prediction);
    return predictions;
  }

  const FitOptions& options_;
  DryRunner runner_;
  ProgressLine line_{kCommand};
  TouchedFiles files_;
};

// What came of the search: a report, and the run of the program that ended it if it failed.
struct Found {
  FitReport report;
  prediction::ProgramEnd failed;
  TouchedFiles files;
};

// What came of a value.
struct Tried {
  Prediction prediction;
  std::vector<prediction::Run> runs;
  bool is_verdict_only = false, has_gone_on = false;
  std::set<std::string> harmless_reads;  // that were not tried
};

// Tries values until both sides are known, or the time is over.
class Search {
 public:
  explicit Search(const FitOptions& options)
      : options_(options), session_(options), search_(options.bounds) {}

  absl::StatusOr<Found> find() {
    if (const absl::Status status = try_values(); !status.ok()) return status;
    if (const absl::Status status = prove_sides(); !status.ok()) return status;
    Found found;
    if (const absl::Status status = report(found.report); !status.ok()) return status;
    found.failed = failed_;
    found.files = session_.files();
    return found;
  }

 private:
  absl::Status try_values() {
    while (const std::optional<int64_t> value = search_.next()) {
      if (!tried_.empty() && seconds() >= options_.within_s) {
        ended_after_s_ = seconds();
        break;
      }
      DryRunRequest request = session_.request(*value);
      request.verdict_only = !search_.wants_peaks(*value);
      request.goes_on = goes_on_;
      request.harmless_reads = harmless_reads_;
      if (const absl::Status status = predict(*value, std::move(request)); !status.ok())
        return status;
      search_.note(prediction::fit_point(*value, tried_[*value].prediction));
    }
    return absl::OkStatus();
  }

  // The values on both sides are proven with what was left out when they were tried. The search
  // goes on where that does not hold.
  absl::Status prove_sides() {
    for (;;) {
      const prediction::FitOutcome outcome = search_.outcome();
      std::optional<int64_t> unproven;
      for (const std::optional<int64_t>& side : {outcome.next, outcome.largest}) {
        if (side && lacks_proof(*side)) unproven = side;
      }
      if (!unproven) return absl::OkStatus();
      if (const absl::Status status = prove(*unproven); !status.ok()) return status;
      if (const absl::Status status = try_values(); !status.ok()) return status;
    }
  }

  bool lacks_proof(int64_t value) const {
    const Tried& tried = tried_.at(value);
    const bool is_known = tried.prediction.verdict != prediction::Verdict::kNotKnown;
    return may_go_on(tried) || (is_known && !tried.harmless_reads.empty());
  }

  // An evaluation that comes after the steps that were seen may take more.
  bool may_go_on(const Tried& tried) const {
    return !options_.until_exit && !tried.has_gone_on &&
           tried.prediction.verdict == prediction::Verdict::kFits &&
           tried.prediction.ended == prediction::Ended::kAfterStep;
  }

  // Makes the runs that are lacking: one that goes on, and those that try harmless reads, too.
  absl::Status prove(int64_t value) {
    const prediction::Verdict before = tried_[value].prediction.verdict;
    DryRunRequest request = session_.request(value);
    request.verdict_only = tried_[value].is_verdict_only;
    request.goes_on = may_go_on(tried_[value]);
    request.made = std::move(tried_[value].runs);
    goes_on_ |= request.goes_on;
    if (const absl::Status status = predict(value, std::move(request)); !status.ok()) return status;
    const Prediction& prediction = tried_[value].prediction;
    search_.replace(prediction::fit_point(value, prediction));
    if (prediction.verdict != before) {
      harmless_reads_.clear();
      tries_all_reads_ = true;
    }
    return absl::OkStatus();
  }

  absl::Status predict(int64_t value, DryRunRequest request) {
    auto prediction = session_.predict(value, request);
    if (!prediction.ok()) return prediction.status();
    Tried& tried = tried_[value];
    tried.prediction = *std::move(prediction);
    if (!tried.prediction.reason.empty()) failed_ = tried.prediction.program;
    tried.runs = session_.last_runs();
    tried.is_verdict_only = request.verdict_only;
    tried.has_gone_on |= request.goes_on;
    tried.harmless_reads = std::move(request.harmless_reads);
    note_harmless_reads(tried);
    return absl::OkStatus();
  }

  // What allocates alike with all values of a read does so with a few more images, too: it is not
  // tried again before the search has ended.
  void note_harmless_reads(const Tried& tried) {
    if (tries_all_reads_) return;
    for (const prediction::MeasuredRead& read : tried.prediction.unknown_reads) {
      if (!read.site.empty() && read.effect == prediction::MeasuredRead::Effect::kNone)
        harmless_reads_.insert(read.site);
    }
  }

  absl::Status report(FitReport& report) {
    report.gpu = options_.gpu;
    report.arguments = arguments_with_value(options_);
    report.bounds = options_.bounds;
    report.tried = search_.tried();
    report.outcome = search_.outcome();
    report.seconds = ended_after_s_;
    for (prediction::FitPoint& point : report.tried) {
      if (report.outcome.end == prediction::FitEnd::kProgramFailed ||
          point.value != report.outcome.next || !point.peaks)
        continue;
      Tried& tried = tried_[point.value];
      Prediction& prediction = tried.prediction;
      auto remedies = session_.try_remedies(point.value, std::move(tried.runs), prediction);
      if (!remedies.ok()) return remedies.status();
      report.measured = *std::move(remedies);
      point = prediction::fit_point(point.value, prediction);
      report.remedied = point;
      if (prediction.peak) report.estimated = prediction::estimated_remedies(*prediction.peak);
    }
    if (report.outcome.largest) report.note = tried_[*report.outcome.largest].prediction.note;
    report.runs = session_.runs();
    return absl::OkStatus();
  }

  int64_t seconds() const {
    return (std::chrono::steady_clock::now() - began_) / std::chrono::seconds(1);
  }

  const FitOptions& options_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  Session session_;
  FitSearch search_;
  bool goes_on_ = false;
  std::map<int64_t, Tried> tried_;  // by value
  std::set<std::string> harmless_reads_;
  bool tries_all_reads_ = false;
  prediction::ProgramEnd failed_;
  int64_t ended_after_s_ = 0;
};

absl::Status write(const FitOptions& options, const FitReport& report) {
  if (!options.svg_file.empty()) {
    const absl::Status status = write_file(options.svg_file, "picture", report.to_svg());
    if (!status.ok()) return status;
  }
  if (options.json && options.json_file.empty())
    return write_standard_output(report.to_json() + "\n");
  if (options.json) {
    const absl::Status status = write_file(options.json_file, "result", report.to_json() + "\n");
    if (!status.ok()) return status;
  }
  return write_standard_output(report.to_text(width_of_output()));
}

}  // namespace

std::vector<std::string> program_with(const FitOptions& options, int64_t value) {
  std::vector<std::string> words = {options.program.front()};
  for (size_t i = 1; i < options.program.size(); ++i)
    words.push_back(prediction::with_value(options.program[i], value));
  for (const std::string& argument : options.arguments)
    words.push_back(prediction::with_value(argument, value));
  return words;
}

std::vector<std::string> arguments_with_value(const FitOptions& options) {
  std::vector<std::string> result;
  for (size_t i = 1; i < options.program.size(); ++i) {
    if (absl::StrContains(options.program[i], kPlace)) result.push_back(options.program[i]);
  }
  for (const std::string& argument : options.arguments) {
    if (absl::StrContains(argument, kPlace)) result.push_back(argument);
  }
  return result;
}

int fit_command(const FitOptions& options) {
  const Fitness fitness = check_program(options.program[0]);
  if (!fitness.refusal.empty()) {
    tell({"memledger fit: ", fitness.refusal});
    return kCannotRun;
  }
  if (const auto locations = find_locations(); !locations.ok()) {
    tell({"memledger fit: ", std::string(locations.status().message())});
    return kCannotRun;
  }
  note_signals(&note_signal);
  const auto found = Search(options).find();
  if (caught_signal != 0) return 128 + caught_signal;
  if (!found.ok()) {
    tell({"memledger fit: ", std::string(found.status().message())});
    return kCannotRun;
  }
  if (const std::string why = why_not_run(found->failed); !why.empty()) {
    tell({kCommand, ": ", why});
    return found->failed.status;
  }
  tell_last_lines(kCommand, found->failed);
  tell_of_files(kCommand, found->files);
  if (const absl::Status written = write(options, found->report); !written.ok()) {
    tell_error(kCommand, written);
    return EXIT_FAILURE;
  }
  return prediction::exit_status(found->report);
}

}  // namespace memledger::runner
