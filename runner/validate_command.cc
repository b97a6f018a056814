#include "runner/validate_command.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prediction/prediction.h"
#include "runner/dry_run.h"
#include "runner/dry_run_messages.h"
#include "runner/environment.h"
#include "runner/program_file.h"
#include "runner/scratch_folder.h"
#include "text/json.h"
#include "text/output.h"
#include "virtual_gpu/calibration.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;
using prediction::DevicePrediction;
using prediction::Interval;
using prediction::Prediction;
using prediction::Run;
using virtual_gpu::Calibration;

constexpr int kFailed = 12;
constexpr int kCannotRun = 126;
constexpr char kSchema[] = "memledger.validation/1";

// One figure of one device on both sides.
struct Row {
  std::string device;  // cuda:0
  std::string figure;
  int64_t real = 0;
  Interval predicted;

  bool is_inside() const { return predicted.low <= real && real <= predicted.high; }
};

// For what processes write of themselves. Throws where there is none.
class CalibrationFolder {
 public:
  CalibrationFolder() {
    if (folder_.path().empty()) throw std::runtime_error("there is no temporary folder");
  }
  const std::string& path() const { return folder_.path(); }
  std::string stem() const { return path() + "/calibration"; }

 private:
  const ScratchFolder folder_;
};

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, " ");
  return digits;
}

DryRunnerOptions runner_options(const ValidateOptions& options) {
  DryRunnerOptions result;
  result.until_exit = options.until_exit;
  result.timeout_s = options.timeout_s;
  result.writes = options.writes;
  return result;
}

// Throws where the program did not do on the real device what it has to.
void check_real_run(const Run& run) {
  if (const std::string why = why_not_run(run.program); !why.empty()) throw std::runtime_error(why);
  if (run.failed_allocation())
    throw std::runtime_error("the program ran out of memory on the real device");
  if (run.program.timed_out)
    throw std::runtime_error("the program did not end in time on the real device");
  if (run.has_ended_well()) return;
  if (run.program.status == 0)
    throw std::runtime_error("the program used no GPU: is one there, and visible?");
  if (!run.program.last_lines.empty()) {
    write_standard_error(absl::StrCat("memledger validate: the last lines of the program:\n",
                                      run.program.last_lines, "\n"));
  }
  throw std::runtime_error(
      absl::StrCat("the program ended with ", run.program.status, " on the real device"));
}

bool has_driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

Run run_on_real(const ValidateOptions& options, const std::vector<std::string>& program,
                const std::string& calibration_stem) {
  DryRunRequest request;
  request.gpu = options.real_side;
  request.program = program;
  request.variables = {{environment::kMeasureReal, "1"},
                       {environment::kCalibration, calibration_stem}};
  if (options.real_side.empty() && !has_driver()) {
    throw std::runtime_error(
        "this machine has no NVIDIA driver (libcuda.so.1): validate compares a GPU that is here "
        "with the virtual one of its name");
  }
  DryRunner runner(runner_options(options));
  absl::StatusOr<Run> run = runner.measure(request);
  if (!run.ok()) throw std::runtime_error(std::string(run.status().message()));
  check_real_run(*run);
  return *std::move(run);
}

// Returns what processes that ran one after the other, or side by side, saw of the first device:
// the most of each; nothing where none used it.
Calibration read_calibrations(const std::string& folder) {
  Calibration sum;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const virtual_gpu::ParsedCalibration parsed = virtual_gpu::parse_calibration_json(text);
    if (!parsed.calibration)
      throw std::runtime_error("a process wrote no calibration: " + parsed.error);
    const Calibration& one = *parsed.calibration;
    sum.device = one.device;
    sum.is_of_process = sum.is_of_process && one.is_of_process;
    sum.context_bytes = std::max(sum.context_bytes, one.context_bytes);
    sum.libraries_bytes = std::max(sum.libraries_bytes, one.libraries_bytes);
    for (const virtual_gpu::CalibratedConvolution& seen : one.convolutions) sum.add(seen);
  }
  return sum;
}

void write_calibration(const std::string& path, const Calibration& calibration) {
  if (calibration.device.empty())
    throw std::runtime_error("the program did not use the first device");
  const absl::Status status =
      write_file(path, "calibration", virtual_gpu::calibration_json(calibration));
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  tell({"memledger validate: the calibration of ", calibration.device, " is in ", path, ", with ",
        std::to_string(calibration.convolutions.size()), " convolutions"});
}

// The virtual machine that has the real one's devices, as many as the program used.
std::string specification_of(const std::vector<DevicePrediction>& devices) {
  std::string specification;
  for (const DevicePrediction& device : devices) {
    if (device.gpu.empty())
      throw std::runtime_error("NVML does not tell what device this is: name it with --gpu=NAME");
    absl::StrAppend(&specification, specification.empty() ? "" : "+",
                    profile_name_of(device.gpu, device.capacity_bytes), ":", device.capacity_bytes,
                    "B");
  }
  return specification;
}

std::vector<Row> rows_of(const std::vector<DevicePrediction>& real,
                         const std::vector<DevicePrediction>& predicted) {
  std::vector<Row> rows;
  for (const DevicePrediction& device : real) {
    const auto other = std::find_if(
        predicted.begin(), predicted.end(),
        [&](const DevicePrediction& candidate) { return candidate.device == device.device; });
    if (other == predicted.end())
      throw std::runtime_error(device.device + " was used on the real side only");
    const auto add = [&](const char* figure, Interval DevicePrediction::*interval) {
      rows.push_back({device.device, figure, (device.*interval).high, (*other).*interval});
    };
    add("allocated peak", &DevicePrediction::allocated_peak);
    add("reserved peak", &DevicePrediction::reserved_peak);
    add("process peak", &DevicePrediction::process_peak);
    add("context", &DevicePrediction::context);
  }
  return rows;
}

std::string text_of(const std::string& specification, const std::vector<DevicePrediction>& real,
                    const std::vector<Row>& rows) {
  std::string text;
  for (const DevicePrediction& device : real) {
    absl::StrAppend(&text, fmt::format("{}: {}, {} MiB\n", device.device, device.gpu,
                                       device.capacity_bytes >> 20));
  }
  absl::StrAppend(&text, "virtual: ", specification, "\n\n",
                  fmt::format("{:<8}{:<16}{:>16}{:>16}{:>16}  {}\n", "device", "bytes", "real",
                              "low", "high", "inside"));
  for (const Row& row : rows) {
    const std::string inside = row.is_inside() ? "yes"
                               : row.real > row.predicted.high
                                   ? "above by " + grouped(row.real - row.predicted.high)
                                   : "below by " + grouped(row.predicted.low - row.real);
    absl::StrAppend(&text, fmt::format("{:<8}{:<16}{:>16}{:>16}{:>16}  {}\n", row.device,
                                       row.figure, grouped(row.real), grouped(row.predicted.low),
                                       grouped(row.predicted.high), inside));
  }
  return text;
}

std::string json_of(const std::string& specification, const std::vector<DevicePrediction>& real,
                    const std::vector<Row>& rows) {
  Json devices = Json::array();
  for (const DevicePrediction& device : real) {
    Json figures = Json::object();
    for (const Row& row : rows) {
      if (row.device != device.device) continue;
      std::string key = row.figure;
      std::replace(key.begin(), key.end(), ' ', '_');
      figures[key] = {{"real", row.real},
                      {"low", row.predicted.low},
                      {"high", row.predicted.high},
                      {"inside", row.is_inside()}};
    }
    devices.push_back({{"device", device.device},
                       {"gpu", device.gpu},
                       {"capacity_bytes", device.capacity_bytes},
                       {"figures", figures}});
  }
  return to_text({{"schema", kSchema}, {"virtual_gpu", specification}, {"devices", devices}}) +
         "\n";
}

void write(const ValidateOptions& options, const std::string& text, const std::string& json) {
  absl::Status status;
  if (options.json && !options.json_file.empty())
    status = write_file(options.json_file, "validation", json);
  if (status.ok())
    status = write_standard_output(options.json && options.json_file.empty() ? json : text);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

void compare_program(const ValidateOptions& options) {
  const CalibrationFolder folder;
  const Run real = run_on_real(options, options.program, folder.stem());
  const Calibration calibration = read_calibrations(folder.path());
  const std::vector<DevicePrediction> devices = prediction::predict("", {real}).devices;
  if (!calibration.is_of_process) {
    tell(
        {"memledger validate: NVML does not tell what the process holds, so process and context "
         "are "
         "all that the device has in use, whoever has it"});
  }
  if (!options.calibration_file.empty()) write_calibration(options.calibration_file, calibration);
  DryRunRequest request;
  request.gpu = options.gpu.empty() ? specification_of(devices) : options.gpu;
  request.program = options.program;
  DryRunner runner(runner_options(options));
  const auto predictions = runner.predict({request});
  if (!predictions.ok()) throw std::runtime_error(std::string(predictions.status().message()));
  const Prediction& predicted = predictions->front();
  if (predicted.devices.empty())
    throw std::runtime_error("on the virtual device: " + predicted.sentence());
  const std::vector<Row> rows = rows_of(devices, predicted.devices);
  write(options, text_of(request.gpu, devices, rows), json_of(request.gpu, devices, rows));
}

int compare_built_in(const ValidateOptions& options) {
  NetworkOptions networks = options.networks;
  networks.gpu = options.gpu;
  networks.real_side = options.real_side;
  if (networks.program.empty()) {
    networks.program =
        fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "tests/gpu/measure_models";
  }
  if (!fs::exists(networks.program)) {
    throw std::runtime_error(
        "name a program, memledger validate -- PROGRAM: the built-in networks come with the "
        "repository only, ./bazelw run //tests/gpu:validate");
  }
  const int status = compare_networks(networks);
  if (options.calibration_file.empty()) return status;
  std::vector<std::string> program = {networks.program};
  program.insert(program.end(), networks.names.begin(), networks.names.end());
  const CalibrationFolder folder;
  ValidateOptions whole = options;
  whole.until_exit = true;
  run_on_real(whole, program, folder.stem());
  write_calibration(options.calibration_file, read_calibrations(folder.path()));
  return status;
}

}  // namespace

int validate_command(const ValidateOptions& options) {
  try {
    if (options.program.empty()) return compare_built_in(options);
    const Fitness fitness = check_program(options.program[0]);
    if (!fitness.refusal.empty()) {
      tell({"memledger validate: ", fitness.refusal});
      return kCannotRun;
    }
    compare_program(options);
    return 0;
  } catch (const std::exception& error) {
    tell({"memledger validate: ", error.what()});
    return kFailed;
  }
}

}  // namespace memledger::runner
