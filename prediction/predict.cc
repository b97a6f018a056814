#include "prediction/predict.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "prediction/measure_variables.h"
#include "prediction/measured_call.h"
#include "prediction/measurement.h"
#include "prediction/recorded_call.h"
#include "runner/dry_run.h"
#include "runner/environment.h"
#include "runner/program_image.h"
#include "runner/scratch_folder.h"
#include "text/file_text.h"
#include "text/names.h"
#include "text/output.h"
#include "virtual_gpu/device_use.h"
#include "virtual_gpu/specification.h"

namespace memledger {
namespace {

namespace fs = std::filesystem;
using prediction::RecordedCall;

// The key of the call that a new process is for, and the folder of what the calls before returned.
constexpr char kCallVariable[] = "MEMLEDGER_PREDICT_CALL";
constexpr char kRecordsVariable[] = "MEMLEDGER_PREDICT_RECORDS";
constexpr char kUnsettledFile[] = "unsettled";
constexpr int kStepThrew = 114;

// Set while a call predicts or runs its step.
std::atomic<bool> is_busy{false};
std::atomic<predict_internal::FindRunningTest> find_running_test{nullptr};

predict_internal::RunningTest running_test() {
  const predict_internal::FindRunningTest find = find_running_test.load();
  return find == nullptr ? predict_internal::RunningTest() : find();
}

class Busy {
 public:
  Busy() : is_first_(!is_busy.exchange(true)) {}
  ~Busy() {
    if (is_first_) is_busy = false;
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  bool is_first() const { return is_first_; }

 private:
  const bool is_first_;
};

// What measures a process, in libmemledger.so.
struct Measurer {
  decltype(&memledger_measured_call_begins) begins = nullptr;
  decltype(&memledger_measured_call_peaks) peaks = nullptr;
  decltype(&memledger_measured_call_ended) ended = nullptr;
  explicit operator bool() const {
    return begins != nullptr && peaks != nullptr && ended != nullptr;
  }
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

Measurer find_measurer_in(void* library) {
  Measurer measurer;
  find(library, "memledger_measured_call_begins", measurer.begins);
  find(library, "memledger_measured_call_peaks", measurer.peaks);
  find(library, "memledger_measured_call_ended", measurer.ended);
  return measurer;
}

Measurer find_measurer() {
  // The library that the runner brings is local to where it was loaded.
  if (const char* const path = secure_getenv(environment::kLibrary)) {
    if (void* const library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD)) {
      const Measurer measurer = find_measurer_in(library);
      dlclose(library);  // it stays, as it was loaded before
      if (measurer) return measurer;
    }
  }
  return find_measurer_in(RTLD_DEFAULT);
}

bool has_virtual_gpu() { return dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses") != nullptr; }

// Returns which call this is: a new process of the same test comes to the same keys.
std::string next_key(SourceLocation where) {
  static auto* const calls = new std::map<std::string, int>;
  const std::string place = absl::StrCat(running_test().name, " ", where.file(), ":", where.line());
  return absl::StrCat(place, " #", ++(*calls)[place]);
}

// A folder for what calls returned, for new processes to read. Lives as long as this process.
class Records {
 public:
  static absl::StatusOr<Records*> get() {
    static auto* const records = new Records;
    if (records->folder().empty())
      return absl::UnavailableError(absl::StrCat("no temporary folder: ", std::strerror(errno)));
    return records;
  }

  const std::string& folder() const { return folder_.path(); }
  void begin() const {
    std::error_code error;
    fs::remove(fs::path(folder()) / kUnsettledFile, error);
  }
  bool has_settled() const {
    std::error_code error;
    return !fs::exists(fs::path(folder()) / kUnsettledFile, error);
  }
  absl::Status add(const RecordedCall& call) {
    return write_file(absl::StrCat(folder(), "/", ++count_, ".json"), "prediction",
                      prediction::to_json(call));
  }

 private:
  Records() : process_(getpid()) {
    static const Records* const records = this;
    std::atexit([] {
      std::error_code ignored;
      if (getpid() == records->process_) fs::remove_all(records->folder(), ignored);
    });
  }

  const pid_t process_;
  const runner::ScratchFolder folder_;
  int count_ = 0;
};

void remove_option(std::string& specification, const std::string& option) {
  std::vector<std::string> parts = absl::StrSplit(specification, ',');
  parts.erase(
      std::remove_if(parts.begin() + 1, parts.end(),
                     [&](const std::string& part) { return absl::StartsWith(part, option + "="); }),
      parts.end());
  specification = absl::StrJoin(parts, ",");
}

std::string with_capacity(const std::string& specification, int64_t bytes) {
  const size_t comma = std::min(specification.find(','), specification.size());
  std::vector<std::string> devices = absl::StrSplit(specification.substr(0, comma), '+');
  for (std::string& device : devices)
    device = absl::StrCat(device.substr(0, device.find(':')), ":", bytes, "B");
  return absl::StrCat(absl::StrJoin(devices, "+"), specification.substr(comma));
}

absl::StatusOr<std::string> specification_of(const PredictOptions& options) {
  std::string specification = options.gpu;
  if (specification.empty()) {
    const char* const own = secure_getenv(virtual_gpu::kSpecificationVariable);
    specification = own == nullptr || *own == '\0' ? "h200" : own;
    // The new processes would find the memory of this one taken.
    remove_option(specification, "share");
  }
  if (options.capacity_bytes) {
    if (absl::StrContains(specification, '@')) {
      return absl::InvalidArgumentError(
          "PredictOptions::capacity_bytes: a device of a file has the memory that its file says");
    }
    specification = with_capacity(specification, *options.capacity_bytes);
  }
  const virtual_gpu::ParsedSpecification parsed = virtual_gpu::parse_specification(specification);
  if (!parsed.specification) return absl::InvalidArgumentError(parsed.error);
  return virtual_gpu::with_absolute_paths(specification);
}

absl::Status check(const PredictOptions& options) {
  if (options.least_runs < 1 || options.most_runs < options.least_runs) {
    return absl::InvalidArgumentError(absl::StrCat("PredictOptions: a step cannot run at least ",
                                                   options.least_runs, " and at most ",
                                                   options.most_runs, " times"));
  }
  if (options.timeout_s < 1)
    return absl::InvalidArgumentError("PredictOptions::timeout_s: less than a second");
  return absl::OkStatus();
}

// Returns what the step threw; empty: nothing.
std::string run_until_settled(const std::function<void()>& step, const PredictOptions& options,
                              const Measurer& measurer, bool& has_settled) {
  try {
    int64_t before = -1;
    for (int run = 1; run <= options.most_runs && !has_settled; ++run) {
      step();
      const int64_t peaks = measurer.peaks();
      has_settled = run >= options.least_runs && peaks == before;
      before = peaks;
    }
    return "";
  } catch (const c10::Error& error) {
    // what() would look up the lines of a whole stack, which takes seconds.
    return absl::StrCat("the step threw: ",
                        std::string(first_line(error.what_without_backtrace())));
  } catch (const std::exception& error) {
    return absl::StrCat("the step threw: ", std::string(first_line(error.what())));
  } catch (...) {
    return "the step threw what is no std::exception";
  }
}

// Whether this process is for a run in which no two steps are alike.
bool sizes_vary() {
  const char* const gpu = secure_getenv(virtual_gpu::kSpecificationVariable);
  return gpu != nullptr && absl::StrContains(gpu, ",reads=varied");
}

// In a process that was started for this call.
[[noreturn]] void run_step(const std::function<void()>& step, const PredictOptions& options,
                           const Measurer& measurer) {
  bool has_settled = false;
  measurer.begins();
  const std::string cause = run_until_settled(step, options, measurer, has_settled);
  const char* const records = secure_getenv(kRecordsVariable);
  if (!has_settled && !sizes_vary() && options.most_runs > 1 && cause.empty() && records != nullptr)
    std::ofstream(fs::path(records) / kUnsettledFile) << '\n';
  measurer.ended(cause.empty() ? nullptr : cause.c_str());
  _exit(cause.empty() ? EXIT_SUCCESS : kStepThrew);
}

// Returns the words of this program's command line.
std::vector<std::string> command_line() {
  std::vector<std::string> words =
      absl::StrSplit(file_text("/proc/self/cmdline"), absl::ByChar('\0'));
  if (!words.empty() && words.back().empty()) words.pop_back();
  return words;
}

// Returns the command that starts this program a second time. What would write the program's own
// reports, and what would choose among its tests, is not for the new process.
runner::ProgramImage image_of_this_program(const std::string& specification,
                                           const std::vector<std::string>& program) {
  const char* const folder = secure_getenv(environment::kFolder);
  // By its path, which is the same in a run's own mounts; one that was replaced has none.
  std::error_code error;
  fs::path file = fs::read_symlink("/proc/self/exe", error);
  if (error || !fs::exists(file, error)) file = "/proc/self/exe";
  runner::ProgramImage image(file, program, folder == nullptr ? "" : folder);
  image.set(virtual_gpu::kSpecificationVariable, specification);
  image.set(environment::kQuiet, "1");
  for (const char* const variable :
       {environment::kReport, environment::kTimeline, environment::kLines, "XML_OUTPUT_FILE",
        "GTEST_OUTPUT", "TEST_PREMATURE_EXIT_FILE", "TEST_TOTAL_SHARDS", "GTEST_TOTAL_SHARDS"})
    image.unset(variable);
  return image;
}

// Adds to the prediction what only a call knows.
Prediction concluded(Prediction prediction, const RecordedCall& call) {
  // The statuses are ours, and mean nothing to the reader.
  prediction.reason = absl::StrReplaceAll(
      prediction.reason, {{absl::StrCat("the program ended with ", kStepThrew, ", by "), ""},
                          {absl::StrCat("the program ended with ", prediction::kNoCall),
                           "this program, started anew, ended before it came to this call"}});
  if (prediction.verdict == Verdict::kFits && !call.has_settled) {
    prediction.verdict = Verdict::kNotKnown;
    prediction.reason = "the peak still moved in the step's last run";
  }
  return prediction;
}

absl::StatusOr<Prediction> predict_anew(const std::string& specification, const std::string& key,
                                        const PredictOptions& options) {
  const absl::StatusOr<Records*> records = Records::get();
  if (!records.ok()) return records.status();
  (*records)->begin();
  runner::DryRunRequest request;
  request.gpu = specification;
  request.program = command_line();
  for (const std::string& word : running_test().arguments) request.program.push_back(word);
  request.variables = {{prediction::kUntilVariable, prediction::kUntilCall},
                       {kCallVariable, key},
                       {kRecordsVariable, (*records)->folder()}};
  request.writable = {(*records)->folder()};
  runner::DryRunnerOptions runner_options;
  runner_options.until_exit = true;
  runner_options.timeout_s = options.timeout_s;
  if (options.allow_writes) runner_options.writes.policy = runner::WritePolicy::kAllow;
  runner_options.image = &image_of_this_program;
  runner::DryRunner runner(runner_options);
  absl::StatusOr<std::vector<Prediction>> predictions = runner.predict({request});
  if (!predictions.ok()) return predictions.status();
  const RecordedCall call{key, specification, runner.runs().front(), (*records)->has_settled()};
  if (const absl::Status status = (*records)->add(call); !status.ok()) return status;
  return concluded(std::move(predictions->front()), call);
}

// The answer that the process that started this one got at the same place.
absl::StatusOr<Prediction> recorded(const std::string& key) {
  const char* const folder = secure_getenv(kRecordsVariable);
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder == nullptr ? "" : folder, error)) {
    const absl::StatusOr<RecordedCall> call =
        prediction::parse_recorded_call(file_text(entry.path()));
    if (call.ok() && call->key == key)
      return concluded(prediction::predict(call->specification, call->runs), *call);
  }
  return absl::FailedPreconditionError(
      "memledger::predict(): this program, started anew, took another way than before");
}

}  // namespace

absl::StatusOr<Prediction> predict(const std::function<void()>& step, const PredictOptions& options,
                                   SourceLocation where) {
  const Busy busy;
  if (!busy.is_first()) {
    return absl::FailedPreconditionError(
        "memledger::predict() inside a step, or while another thread predicts");
  }
  const Measurer measurer = find_measurer();
  if (!has_virtual_gpu() || !measurer) {
    return absl::FailedPreconditionError(
        "memledger::predict() needs a virtual GPU: start this program by `memledger run "
        "--virtual-gpu=GPU -- PROGRAM`, or link it with //:memledger_virtual_gpu (CMake: "
        "memledger::virtual_gpu)");
  }
  if (const absl::Status status = check(options); !status.ok()) return status;
  const absl::StatusOr<std::string> specification = specification_of(options);
  if (!specification.ok()) return specification.status();
  const std::string key = next_key(where);
  const char* const wanted = secure_getenv(kCallVariable);
  if (wanted == nullptr) return predict_anew(*specification, key, options);
  if (key == wanted) run_step(step, options, measurer);
  return recorded(key);
}

TestVerdict fits_on(std::string_view gpu, const std::function<void()>& step,
                    const PredictOptions& options, SourceLocation where) {
  PredictOptions on_gpu = options;
  on_gpu.gpu = std::string(gpu);
  const absl::StatusOr<Prediction> prediction = predict(step, on_gpu, where);
  if (!prediction.ok()) return TestVerdict::failed(std::string(prediction.status().message()));
  std::string message = absl::StrCat(prediction->specification, ": ", prediction->sentence());
  return prediction->verdict == Verdict::kFits ? TestVerdict::passed(std::move(message))
                                               : TestVerdict::failed(std::move(message));
}

namespace predict_internal {

bool set_running_test(FindRunningTest find) {
  find_running_test = find;
  return true;
}

}  // namespace predict_internal

namespace prediction {

std::ostream& operator<<(std::ostream& out, Verdict verdict) { return out << to_string(verdict); }

std::ostream& operator<<(std::ostream& out, const Interval& interval) {
  return out << interval.low << " to " << interval.high << " bytes";
}

std::ostream& operator<<(std::ostream& out, const DevicePrediction& device) {
  return out << device.device << " (" << printable(device.gpu) << "): " << device.verdict << ", "
             << device.process_peak << " of " << device.capacity_bytes;
}

std::ostream& operator<<(std::ostream& out, const Prediction& prediction) {
  return out << prediction.to_text();
}

}  // namespace prediction
}  // namespace memledger
