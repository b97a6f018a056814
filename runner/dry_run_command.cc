#include "runner/dry_run_command.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "prediction/measurement.h"
#include "prediction/prediction.h"
#include "runner/child_process.h"
#include "runner/environment.h"
#include "runner/program_file.h"
#include "runner/run_command.h"
#include "text/output.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;
using prediction::Prediction;
using prediction::Run;
using prediction::Verdict;
using std::chrono::steady_clock;

constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;
constexpr int kShownLines = 20;
constexpr auto kPollEvery = std::chrono::milliseconds(20);
constexpr auto kSilentFor = std::chrono::seconds(2);
constexpr char kAllocatorVariable[] = "PYTORCH_CUDA_ALLOC_CONF";
constexpr char kExpandable[] = "expandable_segments:True";
constexpr int kNoLimitGib = 1024;  // the most that a virtual GPU can have

std::atomic<int> caught_signal{0};
void note_signal(int signal) { caught_signal = signal; }

// A folder of our own, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "memledger-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~ScratchFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One run to be made.
struct Plan {
  std::string specification;  // with all options of its end
  std::string allocator_setting;
  Run run;
  std::string folder;
  std::optional<ChildProcess> child;
};

// Adds `option=value` where the user has not said otherwise.
void add_option(std::string& specification, const char* option, const char* value) {
  if (!absl::StrContains(specification, absl::StrCat(",", option, "=")))
    absl::StrAppend(&specification, ",", option, "=", value);
}

std::string on_end(std::string specification, Run::End end) {
  const bool is_low = end == Run::End::kLow;
  add_option(specification, "events", is_low ? "once" : "late");
  add_option(specification, "reads", is_low ? "none" : "all");
  add_option(specification, "workspaces", is_low ? "expected" : "upper");
  return specification;
}

// The same devices with more memory than any program takes.
std::string without_limit(const std::string& specification) {
  const auto parsed = virtual_gpu::parse_specification(specification);
  const size_t comma = specification.find(',');
  const std::string devices = specification.substr(0, comma);
  std::string result;
  for (size_t begin = 0; begin <= devices.size();) {
    const size_t end = std::min(devices.find('+', begin), devices.size());
    const std::string device = devices.substr(begin, end - begin);
    absl::StrAppend(&result, result.empty() ? "" : "+");
    // A file says how much memory its device has.
    device[0] == '@'
        ? absl::StrAppend(&result, device)
        : absl::StrAppend(&result, device.substr(0, device.find(':')), ":", kNoLimitGib, "GiB");
    begin = end + 1;
  }
  if (comma != std::string::npos) result += specification.substr(comma);
  if (parsed.specification) {
    const auto& first = parsed.specification->devices.front();
    if (parsed.specification->context_bytes_of(first) == 0) add_option(result, "context", "0B");
  }
  return result;
}

int become_program(const DryRunOptions& options, const Plan& plan) {
  setenv(prediction::kUntilVariable, options.until_exit ? "exit" : "step", /*overwrite=*/1);
  if (!plan.allocator_setting.empty())
    setenv(kAllocatorVariable, plan.allocator_setting.c_str(), /*overwrite=*/1);
  unsetenv(environment::kLog);
  RunOptions run;
  run.quiet = true;
  run.virtual_gpu = plan.specification;
  run.program = options.program;
  return run_program(run);
}

std::vector<prediction::Measurement> read_measurements(const std::string& folder) {
  std::vector<prediction::Measurement> measurements;
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    std::ifstream file(path);
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    auto measurement = prediction::parse_measurement(text);
    if (measurement.ok()) {
      measurements.push_back(*std::move(measurement));
    } else {
      tell({"memledger dry-run: a process's figures are unreadable: ",
            std::string(measurement.status().message())});
    }
  }
  return measurements;
}

// Makes runs, some at a time.
class Runs {
 public:
  Runs(const DryRunOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  absl::Status make(std::vector<Plan>& plans) {
    total_ += plans.size();
    size_t next = 0, running = 0;
    while (next < plans.size() || running > 0) {
      if (caught_signal != 0) {
        for (Plan& plan : plans) {
          if (plan.child) plan.child->kill();
        }
        return absl::CancelledError("");
      }
      while (next < plans.size() && running < at_once()) {
        if (const absl::Status status = start(plans[next]); !status.ok()) return status;
        ++next;
        ++running;
      }
      for (size_t i = 0; i < next; ++i) {
        if (!plans[i].child || !has_ended(plans[i])) continue;
        finish(plans[i]);
        --running;
        ++done_;
      }
      tell_progress();
      std::this_thread::sleep_for(kPollEvery);
    }
    clear_progress();
    return absl::OkStatus();
  }

 private:
  static size_t at_once() { return std::clamp(std::thread::hardware_concurrency(), 1u, 4u); }

  absl::Status start(Plan& plan) {
    plan.folder = absl::StrCat(folder_, "/", ++started_);
    std::error_code error;
    fs::create_directory(plan.folder, error);
    if (error) return absl::UnavailableError(absl::StrCat(plan.folder, ": ", error.message()));
    auto child = ChildProcess::start(plan.folder + "/output", prediction::kMeasureVariable,
                                     plan.folder, [&] { return become_program(options_, plan); });
    if (!child.ok()) return child.status();
    plan.child = *std::move(child);
    return absl::OkStatus();
  }

  bool has_ended(Plan& plan) const {
    if (plan.child->poll()) return true;
    if (plan.child->age() < std::chrono::seconds(options_.timeout_s)) return false;
    plan.child->kill(/*timed_out=*/true);
    return true;
  }

  static void finish(Plan& plan) {
    plan.run.program.status = plan.child->end().status;
    plan.run.program.timed_out = plan.child->end().timed_out;
    plan.run.program.last_lines = last_lines(plan.folder + "/output", kShownLines);
    plan.run.processes = read_measurements(plan.folder);
    plan.child.reset();
  }

  void tell_progress() {
    const auto now = steady_clock::now();
    if (isatty(STDERR_FILENO) == 0 || now - began_ < kSilentFor || now < next_line_) return;
    next_line_ = now + std::chrono::seconds(1);
    has_line_ = true;
    write_standard_error(absl::StrCat("\rmemledger dry-run: ", done_, " of ", total_,
                                      " runs have ended, after ",
                                      (now - began_) / std::chrono::seconds(1), " s "));
  }
  void clear_progress() {
    if (std::exchange(has_line_, false)) write_standard_error("\r\033[K");
  }

  const DryRunOptions& options_;
  const std::string folder_;
  const steady_clock::time_point began_ = steady_clock::now();
  steady_clock::time_point next_line_;
  bool has_line_ = false;
  size_t started_ = 0, done_ = 0, total_ = 0;
};

Plan plan_of(const std::string& specification, Run::End end, bool is_limited,
             const std::string& allocator_setting = "") {
  Plan plan;
  plan.run.end = end;
  plan.run.is_limited = is_limited;
  plan.specification = on_end(is_limited ? specification : without_limit(specification), end);
  plan.allocator_setting = allocator_setting;
  return plan;
}

// What was run for one specification.
struct Case {
  std::string specification;
  std::vector<Run> runs;
  std::vector<Run> with_expandable;
};

// A run whose memory was short does not tell how much the program takes.
bool was_short(const Run& run) {
  for (const prediction::Measurement& process : run.processes) {
    for (const prediction::MeasuredDevice& device : process.devices) {
      if (device.retries > 0 || device.failures > 0) return true;
    }
  }
  return false;
}

absl::Status run_ends(Runs& runs, std::vector<Case>& cases) {
  std::vector<Plan> plans;
  for (const Case& one : cases) {
    for (const Run::End end : {Run::End::kLow, Run::End::kHigh})
      plans.push_back(plan_of(one.specification, end, /*is_limited=*/true));
  }
  if (const absl::Status status = runs.make(plans); !status.ok()) return status;
  for (size_t i = 0; i < plans.size(); ++i) cases[i / 2].runs.push_back(std::move(plans[i].run));
  return absl::OkStatus();
}

absl::Status run_without_limit(Runs& runs, std::vector<Case>& cases) {
  std::vector<Plan> plans;
  std::vector<Case*> whose;
  for (Case& one : cases) {
    for (const Run& run : one.runs) {
      if (!was_short(run)) continue;
      plans.push_back(plan_of(one.specification, run.end, /*is_limited=*/false));
      whose.push_back(&one);
    }
  }
  if (const absl::Status status = runs.make(plans); !status.ok()) return status;
  for (size_t i = 0; i < plans.size(); ++i) whose[i]->runs.push_back(std::move(plans[i].run));
  return absl::OkStatus();
}

absl::Status run_expandable(Runs& runs, std::vector<Case>& cases) {
  std::vector<Plan> plans;
  std::vector<Case*> whose;
  for (Case& one : cases) {
    const Verdict verdict = prediction::predict(one.specification, one.runs).verdict;
    if (verdict != Verdict::kDoesNotFit && verdict != Verdict::kNotKnown) continue;
    for (const Run::End end : {Run::End::kLow, Run::End::kHigh}) {
      plans.push_back(plan_of(one.specification, end, /*is_limited=*/true, kExpandable));
      whose.push_back(&one);
    }
  }
  if (const absl::Status status = runs.make(plans); !status.ok()) return status;
  for (size_t i = 0; i < plans.size(); ++i)
    whose[i]->with_expandable.push_back(std::move(plans[i].run));
  return absl::OkStatus();
}

Prediction predict(const Case& one) {
  Prediction result = prediction::predict(one.specification, one.runs);
  if (one.with_expandable.empty()) return result;
  const Prediction tried = prediction::predict(one.specification, one.with_expandable);
  if (tried.devices.empty()) return result;
  prediction::SettingTried setting{kExpandable, tried.devices.front().reserved_peak, tried.verdict};
  for (const prediction::DevicePrediction& device : tried.devices) {
    setting.reserved_peak.low = std::max(setting.reserved_peak.low, device.reserved_peak.low);
    setting.reserved_peak.high = std::max(setting.reserved_peak.high, device.reserved_peak.high);
  }
  result.settings.push_back(setting);
  if (result.verdict == Verdict::kDoesNotFit && tried.verdict == Verdict::kFits)
    result.remedy = "expandable_segments";
  return result;
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
  const ScratchFolder folder;
  if (folder.path().empty()) {
    tell({"memledger dry-run: no temporary folder: ", std::strerror(errno)});
    return kCannotRun;
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, &note_signal);
  Runs runs(options, folder.path());
  std::vector<Case> cases;
  for (const std::string& gpu : options.gpus) cases.push_back({gpu, {}, {}});
  absl::Status status = run_ends(runs, cases);
  if (status.ok()) status = run_without_limit(runs, cases);
  if (status.ok()) status = run_expandable(runs, cases);
  if (caught_signal != 0) return 128 + caught_signal;
  if (!status.ok()) {
    tell({"memledger dry-run: ", std::string(status.message())});
    return kCannotRun;
  }
  std::vector<Prediction> predictions;
  for (const Case& one : cases) predictions.push_back(predict(one));
  for (const Prediction& prediction : predictions) tell_failure(prediction);
  if (predictions.front().program.status == kNotFound) return kNotFound;
  if (const absl::Status written = write(options, predictions); !written.ok())
    tell({"memledger dry-run: ", std::string(written.message())});
  return prediction::exit_status(predictions);
}

}  // namespace memledger::runner
