#include "runner/dry_run.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prediction/measurement.h"
#include "runner/allocator_setting.h"
#include "runner/child_process.h"
#include "runner/environment.h"
#include "runner/run_command.h"
#include "text/output.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;
using prediction::Prediction;
using prediction::Run;
using std::chrono::steady_clock;

constexpr int kShownLines = 20;
constexpr auto kPollEvery = std::chrono::milliseconds(20);
constexpr int kNoLimitGib = 1024;  // the most that a virtual GPU can have

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
  const DryRunRequest* request;
  std::string specification;  // with all options of its end
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
  add_option(specification, "context", is_low ? "least" : "most");
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

int become_program(const DryRunnerOptions& options, const Plan& plan) {
  setenv(prediction::kUntilVariable, options.until_exit ? "exit" : "step", /*overwrite=*/1);
  add_to_allocator_variable(plan.request->allocator_setting);
  for (const auto& [name, value] : plan.request->variables)
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  unsetenv(environment::kLog);
  RunOptions run;
  run.quiet = true;
  run.virtual_gpu = plan.specification;
  run.program = plan.request->program;
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
  Runs(const DryRunnerOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  absl::Status make(std::vector<Plan>& plans) {
    total_ += plans.size();
    size_t next = 0, running = 0;
    while (next < plans.size() || running > 0) {
      if (options_.is_cancelled && options_.is_cancelled()) {
        for (Plan& plan : plans) {
          if (plan.child) plan.child->kill();
        }
        return absl::CancelledError("the dry-run was cancelled");
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
        ++ended_;
      }
      if (options_.progress) options_.progress({ended_, total_, steady_clock::now() - began_});
      std::this_thread::sleep_for(kPollEvery);
    }
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

  const DryRunnerOptions& options_;
  const std::string folder_;
  const steady_clock::time_point began_ = steady_clock::now();
  size_t started_ = 0, ended_ = 0, total_ = 0;
};

// What was run for one request.
struct Case {
  const DryRunRequest* request;
  std::vector<Run> runs;
};

Plan plan_of(const DryRunRequest& request, Run::End end, bool is_limited) {
  Plan plan;
  plan.request = &request;
  plan.run.end = end;
  plan.run.is_limited = is_limited;
  plan.specification = on_end(is_limited ? request.gpu : without_limit(request.gpu), end);
  return plan;
}

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
      plans.push_back(plan_of(*one.request, end, /*is_limited=*/true));
  }
  if (const absl::Status status = runs.make(plans); !status.ok()) return status;
  for (size_t i = 0; i < plans.size(); ++i) cases[i / 2].runs.push_back(std::move(plans[i].run));
  return absl::OkStatus();
}

absl::Status run_without_limit(Runs& runs, std::vector<Case>& cases) {
  std::vector<Plan> plans;
  std::vector<Case*> whose;
  for (Case& one : cases) {
    if (one.request->verdict_only) continue;
    for (const Run& run : one.runs) {
      if (!was_short(run)) continue;
      plans.push_back(plan_of(*one.request, run.end, /*is_limited=*/false));
      whose.push_back(&one);
    }
  }
  if (const absl::Status status = runs.make(plans); !status.ok()) return status;
  for (size_t i = 0; i < plans.size(); ++i) whose[i]->runs.push_back(std::move(plans[i].run));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Prediction>> DryRunner::predict(
    const std::vector<DryRunRequest>& requests) {
  const ScratchFolder folder;
  if (folder.path().empty())
    return absl::UnavailableError(absl::StrCat("no temporary folder: ", std::strerror(errno)));
  Runs runs(options_, folder.path());
  std::vector<Case> cases;
  for (const DryRunRequest& request : requests) cases.push_back({&request, {}});
  if (const absl::Status status = run_ends(runs, cases); !status.ok()) return status;
  if (const absl::Status status = run_without_limit(runs, cases); !status.ok()) return status;
  std::vector<Prediction> predictions;
  for (const Case& one : cases)
    predictions.push_back(prediction::predict(one.request->gpu, one.runs));
  return predictions;
}

}  // namespace memledger::runner
