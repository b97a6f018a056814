#include "runner/dry_run.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "prediction/measure_variables.h"
#include "prediction/measurement.h"
#include "prediction/run_files.h"
#include "runner/allocator_setting.h"
#include "runner/child_process.h"
#include "runner/environment.h"
#include "runner/own_libraries.h"
#include "runner/run_command.h"
#include "runner/run_specification.h"
#include "runner/scratch_folder.h"
#include "runner/writes/write_hold.h"
#include "text/file_text.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;
using prediction::Prediction;
using prediction::Run;
using std::chrono::steady_clock;

constexpr int kShownLines = 20;
constexpr auto kPollEvery = std::chrono::milliseconds(20);
constexpr auto kTellEvery = std::chrono::milliseconds(500);
constexpr int kMaxLoops = 8;          // that sizes drive, of one program
constexpr size_t kRunsOfRequest = 4;  // both ends, each with both orders of addresses

// How far a run went on that showed more, and others have to come.
struct Distance {
  int64_t steps = 0;                   // 0: to the program's end
  std::chrono::milliseconds limit{0};  // not longer; 0: there is no such run
};

// Sizes that drive loops: the capped ones, and those whose loop a cap did not end.
struct SizeLoops {
  std::vector<prediction::SizeLoop> capped;
  std::vector<std::string> no_drivers;

  void note(const prediction::SizeLoop& loop) {
    const auto known =
        std::find_if(capped.begin(), capped.end(),
                     [&](const prediction::SizeLoop& one) { return one.driver == loop.driver; });
    if (!loop.is_same) {
      if (known == capped.end()) capped.push_back(loop);
      return;
    }
    if (known != capped.end()) capped.erase(known);
    no_drivers.push_back(loop.driver);
  }
};

// One run to be made.
struct Plan {
  const DryRunRequest* request;
  std::string specification;  // with all options of its end
  Run run;
  std::string folder;
  int seconds = 0;  // after which it is ended, if that is less than the caller's; 0: it is not
  std::optional<ChildProcess> child;
  bool was_alone = true;                              // while it ran, no other did
  std::optional<steady_clock::time_point> enough_at;  // when it is asked to end, if it goes on
  Distance distance;
  SizeLoops loops;
  std::optional<prediction::SizeLoop> loop;  // for which it was ended
  bool is_told = false;
  bool is_over = false;
};

// How long a run goes on at most after it has shown its peak.
constexpr auto kMaxGoingOn = std::chrono::seconds(30);
// After how long a process is killed that was asked to end and waits for something.
constexpr auto kMaxEnding = std::chrono::seconds(5);

// And one that assumes something else of what is read: as its first runs, and some more.
constexpr int kLeastSecondsToAssume = 20;
constexpr int64_t kTimesAsLongToAssume = 3;

bool assumes_other_truths(const Run& run) {
  return std::any_of(run.assumed_reads.begin(), run.assumed_reads.end(),
                     [](const auto& read) { return read.value == prediction::kAssumeOther; });
}

const char* until_value(const DryRunnerOptions& options, const Plan& plan) {
  if (options.until_exit) return "exit";
  // No two steps are alike.
  const bool varies = plan.run.varies_sizes || assumes_other_truths(plan.run);
  if (plan.run.goes_on || plan.run.as_far)
    return varies ? prediction::kUntilEnoughAnyStep : prediction::kUntilEnough;
  return varies ? prediction::kUntilAnyStep : "step";
}

// What the run's processes find in kAssumptionsVariable.
std::string assumptions_of(const Plan& plan) {
  std::string text;
  for (const std::string& assumption : plan.request->assumptions) {
    if (const std::optional<Assumption> parsed = parse_assumption(assumption)) {
      absl::StrAppend(&text, prediction::kAssumeAtLine, "\t", parsed->place, "\t", parsed->value,
                      "\n");
    }
  }
  for (const prediction::AssumedRead& read : plan.run.assumed_reads)
    absl::StrAppend(&text, read.site, "\t", read.value, "\n");
  for (const prediction::SizeLoop& loop : plan.loops.capped)
    absl::StrAppend(&text, prediction::kAssumeCapped, "\t", loop.driver, "\t", loop.place, "\n");
  for (const std::string& site : plan.loops.no_drivers)
    absl::StrAppend(&text, prediction::kAssumeNoDriver, "\t", site, "\n");
  return text;
}

// What the caller's environment asks of a program that is watched.
constexpr const char* kReportVariables[] = {environment::kLog, environment::kSaveReport,
                                            environment::kTimeline, environment::kReportOn};

// The order of Python's sets is the order of allocations of some programs.
constexpr char kHashSeed[] = "PYTHONHASHSEED";

// Where torchrun's processes meet, unless its command line says where; and those of a program that
// reads it from its environment. Runs at the same time must not meet.
constexpr char kTorchrunsPort[] = "PET_MASTER_PORT", kMasterPort[] = "MASTER_PORT";

// Returns a port that nobody listens on now; 0 where none is to be had.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool is_known = bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(socket);
  return is_known ? ntohs(address.sin_port) : 0;
}

// In the child of a process without other threads.
int become_program(const DryRunnerOptions& options, const Plan& plan,
                   const std::vector<std::pair<std::string, std::string>>& variables) {
  setenv(prediction::kMeasureVariable, plan.folder.c_str(), /*overwrite=*/1);
  setenv(prediction::kUntilVariable, until_value(options, plan), /*overwrite=*/1);
  setenv(prediction::kAssumptionsVariable, assumptions_of(plan).c_str(), /*overwrite=*/1);
  add_to_allocator_variable(plan.request->allocator_setting);
  for (const auto& [name, value] : plan.request->variables)
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  setenv(kHashSeed, "0", /*overwrite=*/0);
  if (const int port = free_port(); port != 0) {
    setenv(kTorchrunsPort, std::to_string(port).c_str(), /*overwrite=*/0);
    if (std::getenv(kMasterPort) != nullptr)
      setenv(kMasterPort, std::to_string(port).c_str(), /*overwrite=*/1);
  }
  for (const char* const name : kReportVariables) unsetenv(name);
  RunOptions run;
  run.quiet = true;
  run.virtual_gpu = plan.specification;
  run.program = plan.request->program;
  return run_program(run);
}

ProgramImage image_of(const DryRunnerOptions& options, const Plan& plan,
                      const std::vector<std::pair<std::string, std::string>>& variables) {
  ProgramImage image = options.image(plan.specification, plan.request->program);
  image.set(prediction::kMeasureVariable, plan.folder);
  image.set(prediction::kUntilVariable, until_value(options, plan));
  image.set(prediction::kAssumptionsVariable, assumptions_of(plan));
  for (const auto& [name, value] : plan.request->variables) image.set(name, value);
  for (const auto& [name, value] : variables) image.set(name, value);
  image.set_default(kHashSeed, "0");
  for (const char* const name : kReportVariables) image.unset(name);
  return image;
}

std::vector<prediction::Measurement> read_measurements(const std::string& folder) {
  std::vector<prediction::Measurement> measurements;
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  for (const fs::path& path : files) {
    auto measurement = prediction::parse_measurement(file_text(path));
    if (measurement.ok()) {
      for (prediction::MeasuredRead& read :
           prediction::read_copies_of(folder, measurement->process))
        measurement->unknown_reads.push_back(std::move(read));
      measurement->process = 0;  // differs from run to run
      measurements.push_back(*std::move(measurement));
    } else {
      tell({"memledger dry-run: a process's figures are unreadable: ",
            std::string(measurement.status().message())});
    }
  }
  const auto key = [](const prediction::Measurement& measurement) {
    return std::make_pair(measurement.rank, prediction::to_json(measurement));
  };
  std::sort(measurements.begin(), measurements.end(),
            [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return measurements;
}

// Why nothing is known of processes that used a device and left no measurement. Where the run was
// ended early, those that are watched may have been killed by that.
std::string why_unwatched(const Run& run, const std::string& folder) {
  std::string why = prediction::read_why_unwatched(folder);
  if (!why.empty() || run.unwatched_uses.empty()) return why;
  if (run.processes.empty()) return "no process with LibTorch was watched to its end";
  if (std::any_of(run.unwatched_uses.begin(), run.unwatched_uses.end(),
                  [](const prediction::DeviceUse& use) { return !use.is_watched; }))
    return "one of its processes used a GPU without being watched";
  const bool ran_to_its_end =
      run.program.status == 0 &&
      std::all_of(run.processes.begin(), run.processes.end(),
                  [](const auto& process) { return process.ended == prediction::Ended::kAtExit; });
  return ran_to_its_end ? "a process was killed before it could tell what it took" : "";
}

// Makes measurements of what the driver saw of processes that are not watched, of a run that ended
// by itself. One that failed counts where memory was refused.
void measure_by_driver(const std::string& folder, const std::string& specification, Run& run) {
  const bool ended_early =
      run.program.timed_out || run.was_enough ||
      std::any_of(run.processes.begin(), run.processes.end(),
                  [](const auto& process) { return process.ended != prediction::Ended::kAtExit; });
  const bool was_killed =
      std::any_of(run.unwatched_uses.begin(), run.unwatched_uses.end(),
                  [](const prediction::DeviceUse& use) { return use.is_watched; });
  const bool was_refused =
      std::any_of(run.unwatched_uses.begin(), run.unwatched_uses.end(),
                  [](const prediction::DeviceUse& use) { return use.times_refused > 0; });
  if (run.unwatched_uses.empty() || ended_early || was_killed) return;
  if (run.program.status != 0 && !was_refused) return;
  for (prediction::Measurement& measurement : prediction::read_driver_measurements(folder)) {
    measurement.process = 0;  // differs from run to run
    // A process that does not return names none.
    if (measurement.libraries.empty() && absl::StrContains(specification, "libraries=real"))
      measurement.libraries = "not named, perhaps with cuDNN";
    run.processes.push_back(std::move(measurement));
  }
  run.unwatched_uses.clear();
  run.why_by_driver = std::exchange(run.why_unwatched, "");
}

// Both ends are alike to a program that asks no GPU for anything.
bool used_no_gpu(const Run& run) {
  return run.program.status == 0 && !run.program.timed_out && run.processes.empty() &&
         run.unwatched_uses.empty();
}

// Whether it may have failed as sizes that only the device has were the smallest possible.
bool may_lack_sizes(const Plan& plan) {
  if (plan.run.end != Run::End::kLow || plan.run.assumes_sizes) return false;
  return !has_option(plan.request->gpu, "reads") && plan.request->made.empty() &&
         std::any_of(plan.run.processes.begin(), plan.run.processes.end(),
                     [](const prediction::Measurement& process) {
                       return std::any_of(process.unknown_reads.begin(),
                                          process.unknown_reads.end(), [](const auto& read) {
                                            return read.kind ==
                                                   prediction::MeasuredRead::Kind::kSize;
                                          });
                     });
}

// Such a value may well be refused, and the answer stays open where it is. Any other that fails
// counts as one that the program does not take.
bool assumes_large_numbers(const Run& run) {
  return std::all_of(run.assumed_reads.begin(), run.assumed_reads.end(), [](const auto& read) {
    return read.value == prediction::kAssumeLarge || read.value == prediction::kAssumeMillion ||
           read.value == prediction::kAssumeHuge;
  });
}

bool failed_otherwise(const Run& run) { return !run.has_ended_well() && !run.failed_allocation(); }

size_t runs_at_once() { return std::clamp(std::thread::hardware_concurrency(), 1u, 4u); }

absl::StatusOr<WriteHold> hold_of(const WriteOptions& writes, const ScratchFolder& folder) {
  if (folder.path().empty())
    return absl::UnavailableError(absl::StrCat("no temporary folder: ", std::strerror(errno)));
  WriteHoldOptions hold;
  hold.writes = writes;
  hold.runs_at_once = static_cast<int>(runs_at_once());
  hold.scratch = folder.path();
  return WriteHold::choose(hold);
}

// The run with what was to be made, and nothing of what came of it.
Run not_made_yet(const Run& run) {
  Run result = run;
  result.program = {};
  result.steps = result.took_ms = 0;
  result.was_enough = false;
  result.processes.clear();
  result.why_unwatched.clear();
  result.unwatched_uses.clear();
  result.why_by_driver.clear();
  result.writes = {};
  return result;
}

Plan not_made_yet(const Plan& plan) {
  Plan result;
  result.request = plan.request;
  result.specification = plan.specification;
  result.run = not_made_yet(plan.run);
  result.seconds = plan.seconds;
  result.distance = plan.distance;
  result.loops = plan.loops;
  return result;
}

bool has_shown_its_peak(const std::string& folder) {
  const std::vector<prediction::Progress> all = prediction::read_all_progress(folder);
  return std::any_of(all.begin(), all.end(),
                     [](const prediction::Progress& one) { return one.settled_at > 0; });
}

// Makes runs, some at a time.
class Runs {
 public:
  Runs(const DryRunnerOptions& options, const std::string& folder, const WriteHold& hold)
      : options_(options), folder_(folder), hold_(hold) {}

  const std::string& folder() const { return folder_; }
  void expect(size_t runs) { expected_ += runs; }
  size_t ended() const { return ended_; }
  bool has_more() const { return ended_ < expected_; }
  const DryRunnerOptions& options() const { return options_; }

  // `ended` is called for each run that has ended.
  absl::Status make(std::vector<Plan>& plans,
                    const std::function<void(const Plan&)>& ended = nullptr) {
    told_ = &ended;
    if (const absl::Status status = make_at_once(plans, runs_at_once()); !status.ok())
      return status;
    for (Plan& plan : plans) {
      if (plan.was_alone || plan.loop || plan.run.program.timed_out || used_no_gpu(plan.run) ||
          !failed_otherwise(plan.run) || fails_by_itself(plan, plans))
        continue;
      if (const absl::Status status = make_alone(plan); !status.ok()) return status;
      are_disturbed_ |= !failed_otherwise(plan.run);
      // It fails by itself, and so do the others, unless each assumes something else.
      if (failed_otherwise(plan.run) && plan.run.assumed_reads.empty()) break;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status make_at_once(std::vector<Plan>& plans, size_t most) {
    size_t next = 0, running = 0;
    while (next < plans.size() || running > 0) {
      if (options_.is_cancelled && options_.is_cancelled()) {
        kill_all(plans);
        return absl::CancelledError("the dry-run was cancelled");
      }
      while (next < plans.size() && running < most) {
        if (!plans[next].is_over) {
          if (const absl::Status status = start(plans[next]); !status.ok()) {
            kill_all(plans);
            return status;
          }
          ++running;
        }
        ++next;
      }
      for (size_t i = 0; i < next; ++i) {
        if (!plans[i].child) continue;
        plans[i].was_alone = plans[i].was_alone && running == 1;
        if (!has_ended(plans[i])) continue;
        if (const absl::Status status = finish(plans[i]); !status.ok()) {
          kill_all(plans);
          return status;
        }
        --running;
        ++ended_;
        if (*told_ && !plans[i].loop && !failed_otherwise(plans[i].run)) (*told_)(plans[i]);
        if (used_no_gpu(plans[i].run)) running -= end_others(plans[i], plans);
      }
      tell_progress(plans, running);
      wait(plans);
    }
    return absl::OkStatus();
  }

  // Ends the other runs of a request as this one ended. Returns how many ran.
  static size_t end_others(const Plan& ended, std::vector<Plan>& plans) {
    size_t were_running = 0;
    for (Plan& plan : plans) {
      if (plan.request != ended.request || plan.is_over) continue;
      if (plan.child) {
        plan.child->kill();
        plan.child.reset();
        ++were_running;
      }
      plan.run.program = ended.run.program;
      plan.run.writes = ended.run.writes;
      plan.is_over = true;
    }
    return were_running;
  }

  // Whether what the run assumes explains that it failed, and not those that ran alongside it.
  bool fails_by_itself(const Plan& plan, const std::vector<Plan>& plans) const {
    if (!plan.run.assumed_reads.empty()) return !are_disturbed_ && assumes_large_numbers(plan.run);
    if (!may_lack_sizes(plan)) return false;
    return std::any_of(plans.begin(), plans.end(), [&](const Plan& other) {
      return other.request == plan.request && other.run.end == Run::End::kHigh &&
             !failed_otherwise(other.run);
    });
  }

  absl::Status make_alone(Plan& plan) {
    std::vector<Plan> again;
    again.push_back(not_made_yet(plan));
    const std::function<void(const Plan&)> silent;
    const auto* const told = std::exchange(told_, &silent);
    const absl::Status status = make_at_once(again, 1);
    told_ = told;
    plan.run = std::move(again[0].run);
    plan.loop = again[0].loop;
    plan.was_alone = true;
    return status;
  }

  absl::Status start(Plan& plan) {
    plan.folder = absl::StrCat(folder(), "/", ++started_);
    std::error_code error;
    fs::create_directory(plan.folder, error);
    if (error) return absl::UnavailableError(absl::StrCat(plan.folder, ": ", error.message()));
    const HeldRun run = held(plan);
    const auto variables = hold_.variables(run);
    std::optional<ProgramImage> image;
    if (options_.image) image.emplace(image_of(options_, plan, variables)).finish();
    auto child = hold_.start(
        run, [&] { return image ? image->become() : become_program(options_, plan, variables); });
    if (!child.ok()) return child.status();
    plan.child = *std::move(child);
    return absl::OkStatus();
  }

  HeldRun held(const Plan& plan) const {
    HeldRun run;
    run.folder = plan.folder;
    run.program = plan.request->program;
    run.writable = plan.request->writable;
    run.tag = absl::StrCat(prediction::kMeasureVariable, "=", plan.folder);
    return run;
  }

  static void wait(const std::vector<Plan>& plans) {
    std::vector<const ChildProcess*> running;
    for (const Plan& plan : plans) {
      if (plan.child) running.push_back(&*plan.child);
    }
    if (!running.empty()) ChildProcess::wait_for_any(running, kPollEvery);
  }

  static void kill_all(std::vector<Plan>& plans) {
    for (Plan& plan : plans) {
      if (plan.child) plan.child->kill();
    }
  }

  int timeout_s(const Plan& plan) const {
    return plan.seconds > 0 ? std::min(options_.timeout_s, plan.seconds) : options_.timeout_s;
  }

  // Returns when a run that goes on has shown enough; nothing before that is known.
  std::optional<steady_clock::time_point> when_enough(const Plan& plan) const {
    const steady_clock::time_point now = steady_clock::now();
    const bool has_shown = has_shown_its_peak(plan.folder);
    if (plan.run.goes_on) {
      if (!has_shown) return std::nullopt;
      return now + std::min<steady_clock::duration>(now - began_, kMaxGoingOn);
    }
    const bool is_there = plan.distance.steps > 0 &&
                          prediction::read_progress(plan.folder).steps > plan.distance.steps;
    if (has_shown && (is_there || plan.child->age() > plan.distance.limit)) return now;
    return std::nullopt;
  }

  void end_what_goes_on(Plan& plan) const {
    if (!plan.run.goes_on && !plan.run.as_far) return;
    const steady_clock::time_point now = steady_clock::now();
    if (!plan.enough_at) plan.enough_at = when_enough(plan);
    if (!plan.enough_at) return;
    // It ends before its time is over, which would say that it took too long.
    const auto left = std::chrono::seconds(timeout_s(plan)) - kMaxEnding - plan.child->age();
    if (now < *plan.enough_at && left > std::chrono::seconds(0)) return;
    plan.enough_at = std::min(*plan.enough_at, now);
    if (!std::exchange(plan.is_told, true))
      (void)write_file(absl::StrCat(plan.folder, "/", prediction::kUntilEnough), "request", "");
    if (now > *plan.enough_at + kMaxEnding) plan.child->kill();
  }

  bool has_ended(Plan& plan) const {
    if (plan.child->poll()) return true;
    plan.loop = prediction::read_size_loop(plan.folder);
    if (plan.loop) {
      plan.child->kill();
      return true;
    }
    end_what_goes_on(plan);
    if (plan.child->age() < std::chrono::seconds(timeout_s(plan))) return false;
    plan.child->kill(/*timed_out=*/true);
    return true;
  }

  absl::Status finish(Plan& plan) const {
    prediction::ProgramEnd& program = plan.run.program;
    program.status = plan.child->end().status;
    program.timed_out = plan.child->end().timed_out;
    program.timeout_s = timeout_s(plan);
    plan.run.took_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(plan.child->age()).count();
    program.read_input = plan.child->end().read_input;
    program.last_lines = plan.child->output().last_lines(kShownLines);
    plan.run.steps = prediction::read_progress(plan.folder).steps;
    plan.run.was_enough = plan.is_told;
    plan.run.processes = read_measurements(plan.folder);
    plan.run.unwatched_uses = prediction::read_unwatched_uses(plan.folder);
    plan.run.why_unwatched = why_unwatched(plan.run, plan.folder);
    measure_by_driver(plan.folder, plan.specification, plan.run);
    plan.child.reset();
    plan.is_over = true;
    absl::StatusOr<prediction::Writes> writes = hold_.writes(held(plan));
    if (!writes.ok()) return writes.status();
    plan.run.writes = *std::move(writes);
    return absl::OkStatus();
  }

  void tell_progress(const std::vector<Plan>& plans, size_t running) {
    const auto now = steady_clock::now();
    if (!options_.progress || now < next_telling_) return;
    next_telling_ = now + kTellEvery;
    DryRunProgress progress;
    progress.ended = ended_;
    progress.running = running;
    progress.total = std::max(expected_, ended_ + running);
    progress.elapsed = now - began_;
    bool has_one = false;
    for (const Plan& plan : plans) {
      if (!plan.child) continue;
      const prediction::Progress of_run = prediction::read_progress(plan.folder);
      if (has_one && of_run.steps >= progress.steps) continue;
      has_one = true;
      progress.steps = of_run.steps;
      progress.label = of_run.label;
    }
    options_.progress(progress);
  }

  const DryRunnerOptions& options_;
  const std::string& folder_;
  const WriteHold& hold_;
  const steady_clock::time_point began_ = steady_clock::now();
  steady_clock::time_point next_telling_;
  size_t started_ = 0, ended_ = 0, expected_ = 0;
  bool are_disturbed_ = false;  // one failed only because others ran alongside it
  const std::function<void(const Plan&)>* told_ = nullptr;
};

// What was run for one request.
struct Case {
  const DryRunRequest* request;
  std::string specification;  // with the choice of libraries
  std::vector<Run> runs;
  Distance distance;
  SizeLoops loops = {};
};

// Which run of a case to make.
struct RunKind {
  Run::End end;
  Run::Addresses addresses;
  bool is_limited = true;
  bool assumes_sizes = false;
  std::vector<prediction::AssumedRead> assumed_reads = {};
  bool varies_sizes = false;
  int64_t held_back_bytes = 0;
  bool goes_on = false;
  bool as_far = false;
  int seconds = 0;
};

void note_harmless_reads(const DryRunRequest& request, Run& run) {
  for (prediction::Measurement& process : run.processes) {
    for (prediction::MeasuredRead& read : process.unknown_reads)
      read.is_harmless = request.harmless_reads.count(read.site) > 0;
  }
}

// The runs of several cases that are made together, and whose they are.
class Wave {
 public:
  absl::Status add(Case& of, const RunKind& kind, const std::string& folder) {
    Plan plan;
    plan.request = of.request;
    plan.run.end = kind.end;
    plan.run.addresses = kind.addresses;
    plan.run.is_limited = kind.is_limited;
    plan.run.assumes_sizes = kind.assumes_sizes;
    plan.run.assumed_reads = kind.assumed_reads;
    plan.seconds = kind.seconds;
    plan.run.varies_sizes = kind.varies_sizes;
    plan.run.held_back_bytes = kind.held_back_bytes;
    plan.run.goes_on = kind.goes_on;
    plan.run.as_far = kind.as_far || of.distance.limit.count() > 0;
    plan.distance = of.distance;
    plan.loops = of.loops;
    plan.specification = of.specification;
    plan.run.assumes_ones =
        has_option(of.specification, "numbers") && !has_option(of.request->gpu, "numbers");
    if (!kind.is_limited || kind.held_back_bytes > 0) {
      auto other = kind.is_limited ? with_less(plan.specification, kind.held_back_bytes, folder)
                                   : without_limit(plan.specification, folder);
      if (!other.ok()) return other.status();
      plan.specification = *std::move(other);
    }
    if (kind.assumes_sizes)
      plan.specification = with_option(std::move(plan.specification), "reads", "all");
    if (kind.varies_sizes)
      plan.specification = with_option(std::move(plan.specification), "reads", "varied");
    plan.specification = on_end(std::move(plan.specification), kind.end, kind.addresses);
    plans_.push_back(std::move(plan));
    cases_.push_back(&of);
    return absl::OkStatus();
  }

  absl::Status make(Runs& runs) {
    const auto tell = [&](const Plan& ended) { tell_so_far(runs, ended); };
    if (const absl::Status status = runs.make(plans_, tell); !status.ok()) return status;
    if (const absl::Status status = make_again_with_caps(runs); !status.ok()) return status;
    for (size_t i = 0; i < plans_.size(); ++i) {
      note_harmless_reads(*cases_[i]->request, plans_[i].run);
      cases_[i]->runs.push_back(std::move(plans_[i].run));
    }
    return absl::OkStatus();
  }

 private:
  // Makes those again that were ended for a loop. A program may have several.
  absl::Status make_again_with_caps(Runs& runs) {
    for (int round = 1; round <= kMaxLoops; ++round) {
      std::vector<size_t> numbers;
      for (size_t i = 0; i < plans_.size(); ++i) {
        if (!plans_[i].loop) continue;
        cases_[i]->loops.note(*plans_[i].loop);
        // The last of these runs ends as it may.
        if (round == kMaxLoops) cases_[i]->loops.no_drivers.emplace_back(prediction::kAllSizes);
        numbers.push_back(i);
      }
      if (numbers.empty()) break;
      std::vector<Plan> again;
      for (const size_t i : numbers) {
        again.push_back(not_made_yet(plans_[i]));
        again.back().loops = cases_[i]->loops;
      }
      runs.expect(again.size());
      const std::function<void(const Plan&)> silent;
      if (const absl::Status status = runs.make(again, silent); !status.ok()) return status;
      for (size_t i = 0; i < numbers.size(); ++i) plans_[numbers[i]] = std::move(again[i]);
    }
    return absl::OkStatus();
  }

  void tell_so_far(const Runs& runs, const Plan& ended) const {
    if (!runs.options().so_far || !runs.has_more()) return;
    const Case& of = *cases_[static_cast<size_t>(&ended - plans_.data())];
    std::vector<Run> made = of.runs;
    for (size_t i = 0; i < plans_.size(); ++i) {
      if (cases_[i] == &of && plans_[i].is_over && !plans_[i].loop) made.push_back(plans_[i].run);
    }
    runs.options().so_far(prediction::predict(of.request->gpu, made), made.size());
  }

  std::vector<Plan> plans_;
  std::vector<Case*> cases_;
};

// A run whose memory was short does not show how much the program takes.
bool was_short(const Run& run) {
  for (const prediction::Measurement& process : run.processes) {
    for (const prediction::MeasuredDevice& device : process.devices) {
      if (device.retries > 0 || device.failures > 0) return true;
    }
  }
  return false;
}

constexpr Run::End kLow = Run::End::kLow, kHigh = Run::End::kHigh;
constexpr Run::Addresses kDown = Run::Addresses::kDown, kUp = Run::Addresses::kUp;

// The runs that a request brings. Where this process itself is started again, it keeps the
// libraries that it has.
Case case_of(const DryRunRequest& request, const DryRunnerOptions& options) {
  std::string specification =
      options.image ? request.gpu : with_library_choice(request.gpu, request.program);
  Case result{&request, std::move(specification), request.made, {}};
  for (Run& run : result.runs) note_harmless_reads(request, run);
  return result;
}

// The first runs of a request, and those in the other order of addresses that are sure to come.
size_t expected_runs(const DryRunRequest& request) {
  if (!request.made.empty()) return 0;
  return request.verdict_only || has_option(request.gpu, "addresses") ? 2 : kRunsOfRequest;
}

// One run of each end, each in an order of its own.
absl::Status run_first(Runs& runs, std::vector<Case>& cases) {
  Wave wave;
  for (Case& of : cases) {
    if (!of.runs.empty()) continue;
    absl::Status status = wave.add(of, {kLow, kDown}, runs.folder());
    if (status.ok()) status = wave.add(of, {kHigh, kUp}, runs.folder());
    if (!status.ok()) return status;
  }
  return wave.make(runs);
}

// A program may fail where it finds nothing and expected something, and go on at the other end.
absl::Status replace_failed_low(Runs& runs, std::vector<Case>& cases) {
  Wave wave;
  for (Case& of : cases) {
    const bool can_differ = !has_option(of.request->gpu, "reads") && of.request->made.empty();
    if (!can_differ || !failed_otherwise(of.runs[0]) || failed_otherwise(of.runs[1])) continue;
    if (of.runs[0].program.timed_out) continue;
    of.runs.erase(of.runs.begin());
    runs.expect(1);
    RunKind kind{kLow, kDown};
    kind.assumes_sizes = true;
    if (const absl::Status status = wave.add(of, kind, runs.folder()); !status.ok()) return status;
  }
  return wave.make(runs);
}

// Whether a program failed that only the driver saw, which copied what nobody knows.
bool failed_by_unknown_copies(const Run& run) {
  return failed_otherwise(run) && !run.program.timed_out && run.assumed_reads.empty() &&
         std::any_of(run.unwatched_uses.begin(), run.unwatched_uses.end(),
                     [](const prediction::DeviceUse& use) { return use.copies_to_host > 0; });
}

// A check such as `if not loss.isfinite(): raise` fails where all copies are zeros. Where both ends
// fail so, they are made with ones.
absl::Status replace_failed_by_ones(Runs& runs, std::vector<Case>& cases) {
  Wave wave;
  std::vector<std::pair<Case*, Case>> before;
  for (Case& of : cases) {
    const bool can_differ = !has_option(of.request->gpu, "numbers") && of.request->made.empty();
    if (!can_differ || !std::all_of(of.runs.begin(), of.runs.end(), &failed_by_unknown_copies))
      continue;
    before.emplace_back(&of, of);
    of.specification = with_option(of.specification, "numbers", "one");
    of.runs.clear();
    runs.expect(2);
    absl::Status status = wave.add(of, {kLow, kDown}, runs.folder());
    if (status.ok()) status = wave.add(of, {kHigh, kUp}, runs.folder());
    if (!status.ok()) return status;
  }
  if (const absl::Status status = wave.make(runs); !status.ok()) return status;
  for (auto& [of, with_zeros] : before) {
    const bool fail_too = std::any_of(of->runs.begin(), of->runs.end(), &failed_otherwise);
    if (fail_too) *of = std::move(with_zeros);
  }
  return absl::OkStatus();
}

// Returns which runs of the other order of addresses are wanted. Where only the verdict is, none
// if it is known.
std::vector<RunKind> in_other_order(const Case& of) {
  if (has_option(of.request->gpu, "addresses")) return {};
  // What fails with another value than is likely may be among those that the request brings.
  const auto fails = [](const Run& run) {
    return failed_otherwise(run) && run.assumed_reads.empty();
  };
  if (std::any_of(of.runs.begin(), of.runs.end(), fails)) return {};
  const Run& low = of.runs[0].end == kLow ? of.runs[0] : of.runs[1];
  const Run& high = of.runs[0].end == kLow ? of.runs[1] : of.runs[0];
  RunKind low_kind{kLow, kUp};
  low_kind.assumes_sizes = low.assumes_sizes;
  RunKind high_kind{kHigh, kDown};
  high_kind.goes_on = of.request->goes_on;
  if (!of.request->verdict_only) return {low_kind, high_kind};
  if (low.failed_allocation()) return {low_kind};
  if (high.failed_allocation()) return {};
  return {low_kind, high_kind};
}

// Whether the request brings such a run of an end.
bool was_made(const Case& of, const RunKind& kind) {
  const std::vector<Run>& made = of.request->made;
  return std::any_of(made.begin(), made.end(), [&](const Run& run) {
    return run.end == kind.end && run.addresses == kind.addresses && run.is_limited &&
           run.assumed_reads.empty() && !run.varies_sizes && run.held_back_bytes == 0 &&
           (run.goes_on || !kind.goes_on);
  });
}

absl::Status run_other_order(Runs& runs, std::vector<Case>& cases) {
  Wave wave;
  for (Case& of : cases) {
    for (const RunKind& kind : in_other_order(of)) {
      if (was_made(of, kind)) continue;
      if (expected_runs(*of.request) < kRunsOfRequest) runs.expect(1);
      if (const absl::Status status = wave.add(of, kind, runs.folder()); !status.ok())
        return status;
    }
  }
  return wave.make(runs);
}

// What goes on alongside others takes longer than it took alone.
Distance distance_of(const Run& run) {
  constexpr int kTimesAsLong = 4;
  constexpr std::chrono::seconds kLeast(5);
  Distance distance;
  distance.limit = kLeast + kTimesAsLong * std::chrono::milliseconds(run.took_ms);
  for (const prediction::Measurement& process : run.processes) {
    if (process.ended == prediction::Ended::kAfterStep)
      distance.steps = std::max(distance.steps, process.steps);
  }
  return distance;
}

// Whether all orders and ends agree with what the run that went on showed later.
absl::Status run_as_far(Runs& runs, std::vector<Case>& cases) {
  Wave wave;
  for (Case& of : cases) {
    if (!prediction::needs_others_as_far(of.runs)) continue;
    std::vector<RunKind> kinds;
    for (const Run& run : of.runs) {
      if (run.goes_on) of.distance = distance_of(run);
      if (run.goes_on || !run.assumed_reads.empty()) continue;
      RunKind kind{run.end, run.addresses};
      kind.assumes_sizes = run.assumes_sizes;
      kind.as_far = true;
      kinds.push_back(kind);
    }
    for (const RunKind& kind : kinds) {
      runs.expect(1);
      if (const absl::Status status = wave.add(of, kind, runs.folder()); !status.ok())
        return status;
    }
  }
  return wave.make(runs);
}

// `varied`: those of varied sizes, else those of the ends.
absl::Status run_without_limit(Runs& runs, std::vector<Case>& cases, bool varied) {
  Wave wave;
  for (Case& of : cases) {
    if (of.request->verdict_only) continue;
    for (const Run& run : of.runs) {
      if (!was_short(run) || !run.assumed_reads.empty() || run.varies_sizes != varied) continue;
      // It is made again to come further.
      if (of.distance.limit.count() > 0 && !run.as_far && !run.goes_on) continue;
      runs.expect(1);
      RunKind kind{run.end, run.addresses};
      kind.is_limited = false;
      kind.assumes_sizes = run.assumes_sizes;
      kind.varies_sizes = run.varies_sizes;
      if (const absl::Status status = wave.add(of, kind, runs.folder()); !status.ok())
        return status;
    }
  }
  return wave.make(runs);
}

// Adds such runs of the high end, one in each order of addresses that there is.
absl::Status add_in_both_orders(Case& of, RunKind kind, Runs& runs, Wave& wave) {
  for (const Run::Addresses addresses : {kUp, kDown}) {
    if (addresses == kDown && has_option(of.request->gpu, "addresses")) continue;
    runs.expect(1);
    kind.addresses = addresses;
    if (const absl::Status status = wave.add(of, kind, runs.folder()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Whether it fits where sizes that only the device has differ from one read to the next.
absl::Status run_varied_sizes(Runs& runs, std::vector<Case>& cases) {
  Wave wave;
  for (Case& of : cases) {
    // The user has said what to assume.
    if (has_option(of.request->gpu, "reads")) continue;
    const prediction::VariedSizes wanted = prediction::varied_sizes_to_test(of.runs);
    if (!wanted.are_needed) continue;
    RunKind kind{kHigh, kUp};
    kind.varies_sizes = true;
    kind.held_back_bytes = wanted.held_back_bytes;
    if (const absl::Status status = add_in_both_orders(of, kind, runs, wave); !status.ok())
      return status;
  }
  return wave.make(runs);
}

// A program that waits for a value may never get it.
int seconds_to_assume(const std::vector<Run>& runs) {
  int64_t longest = 0;
  for (const Run& run : runs) {
    if (run.assumed_reads.empty()) longest = std::max(longest, run.took_ms);
  }
  return std::max<int>(kLeastSecondsToAssume,
                       static_cast<int>(longest * kTimesAsLongToAssume / 1000));
}

// The order of addresses of an end's first run.
Run::Addresses addresses_of(const std::vector<Run>& runs, Run::End end) {
  const auto run =
      std::find_if(runs.begin(), runs.end(), [&](const Run& one) { return one.end == end; });
  return run == runs.end() ? kDown : run->addresses;
}

// Whether the end's runs assume sizes, as the program fails without any.
bool assumes_sizes(const std::vector<Run>& runs, Run::End end) {
  return std::any_of(runs.begin(), runs.end(), [end](const Run& run) {
    return run.end == end && run.assumes_sizes && run.assumed_reads.empty();
  });
}

// Whether it does not fit with what is likely.
bool fails_likely(const Case& of) {
  return std::any_of(of.runs.begin(), of.runs.end(),
                     [](const Run& run) { return run.failed_allocation(); });
}

const Run* run_that_went_on(const Case& of) {
  const auto run =
      std::find_if(of.runs.begin(), of.runs.end(), [](const Run& one) { return one.goes_on; });
  return run == of.runs.end() ? nullptr : &*run;
}

// Whether anything depends on what the program read without anybody knowing it. Some runs follow
// from others.
absl::Status run_other_reads(Runs& runs, std::vector<Case>& cases) {
  for (bool any = true; std::exchange(any, false);) {
    Wave wave;
    for (Case& of : cases) {
      for (prediction::AssumingRun& wanted : prediction::assuming_runs(of.request->gpu, of.runs)) {
        if (of.request->verdict_only && fails_likely(of)) break;
        any = true;
        runs.expect(1);
        RunKind kind{wanted.end, addresses_of(of.runs, wanted.end)};
        kind.assumed_reads = std::move(wanted.assumed_reads);
        kind.seconds = seconds_to_assume(of.runs);
        kind.assumes_sizes = assumes_sizes(of.runs, wanted.end);
        const Distance usual = of.distance;
        if (const Run* const further = wanted.as_far ? run_that_went_on(of) : nullptr) {
          kind.addresses = further->addresses;
          of.distance = distance_of(*further);
        }
        const absl::Status status = wave.add(of, kind, runs.folder());
        of.distance = usual;
        if (!status.ok()) return status;
      }
    }
    if (const absl::Status status = wave.make(runs); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Whether what fits narrowly fits with less, too.
absl::Status run_with_less(Runs& runs, std::vector<Case>& cases) {
  Wave wave;
  for (Case& of : cases) {
    RunKind kind{kHigh, kUp};
    kind.held_back_bytes = prediction::margin_to_test(of.runs);
    if (kind.held_back_bytes == 0) continue;
    if (const absl::Status status = add_in_both_orders(of, kind, runs, wave); !status.ok())
      return status;
  }
  return wave.make(runs);
}

}  // namespace

std::optional<Assumption> parse_assumption(std::string_view text) {
  const size_t equals = text.rfind('=');
  const size_t colon = text.substr(0, equals).rfind(':');
  if (equals == std::string_view::npos || colon == std::string_view::npos || colon == 0) return {};
  const std::string_view line = text.substr(colon + 1, equals - colon - 1);
  const bool is_line = !line.empty() && line.find_first_not_of("0123456789") == line.npos;
  if (!is_line || text.find_first_of("\t\n") != text.npos) return {};
  Assumption assumption{std::string(text.substr(0, equals)), 0};
  const std::string value(text.substr(equals + 1));
  if (value == "true") {
    assumption.value = 1;
  } else if (value != "false" && !absl::SimpleAtod(value, &assumption.value)) {
    return {};
  }
  return assumption;
}

absl::StatusOr<std::vector<Prediction>> DryRunner::predict(
    const std::vector<DryRunRequest>& requests) {
  const ScratchFolder folder;
  const absl::StatusOr<WriteHold> hold = hold_of(options_.writes, folder);
  if (!hold.ok()) return hold.status();
  Runs runs(options_, folder.path(), *hold);
  std::vector<Case> cases;
  for (const DryRunRequest& request : requests) {
    runs.expect(expected_runs(request));
    cases.push_back(case_of(request, options_));
  }
  absl::Status status = run_first(runs, cases);
  if (status.ok()) status = replace_failed_by_ones(runs, cases);
  if (status.ok()) status = replace_failed_low(runs, cases);
  if (status.ok()) status = run_other_order(runs, cases);
  if (status.ok()) status = run_as_far(runs, cases);
  if (status.ok()) status = run_other_reads(runs, cases);
  if (status.ok()) status = run_without_limit(runs, cases, /*varied=*/false);
  if (status.ok()) status = run_varied_sizes(runs, cases);
  if (status.ok()) status = run_without_limit(runs, cases, /*varied=*/true);
  if (status.ok()) status = run_with_less(runs, cases);
  runs_made_ += runs.ended();
  if (!status.ok()) return status;
  std::vector<Prediction> predictions;
  runs_.clear();
  for (Case& of : cases) {
    Prediction prediction = prediction::predict(of.request->gpu, of.runs);
    const std::string note = notes_on_memory(of.request->gpu, prediction.devices);
    absl::StrAppend(&prediction.note, prediction.note.empty() || note.empty() ? "" : "\n", note);
    predictions.push_back(std::move(prediction));
    runs_.push_back(std::move(of.runs));
  }
  return predictions;
}

absl::StatusOr<Run> DryRunner::measure(const DryRunRequest& request) {
  const ScratchFolder folder;
  WriteOptions writes;
  writes.policy = WritePolicy::kAllow;
  const absl::StatusOr<WriteHold> hold = hold_of(writes, folder);
  if (!hold.ok()) return hold.status();
  Runs runs(options_, folder.path(), *hold);
  runs.expect(1);
  std::vector<Plan> plans(1);
  plans[0].request = &request;
  plans[0].specification = request.gpu;
  if (const absl::Status status = runs.make(plans); !status.ok()) return status;
  return std::move(plans[0].run);
}

}  // namespace memledger::runner
