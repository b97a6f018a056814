#include "runner/run_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "prediction/measure_variables.h"
#include "runner/linked_libtorch.h"
#include "runner/locations.h"
#include "runner/program_file.h"
#include "text/output.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;
constexpr char kTritonDriver[] = "TRITON_LIBCUDA_PATH";

// Puts the libraries in front of what the caller preloads. The dynamic linker splits at spaces and
// colons, and knows no escape.
absl::Status preload(const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    if (library.find_first_of(" :") != std::string::npos) {
      return absl::FailedPreconditionError(
          absl::StrCat(library,
                       " cannot be preloaded, because its path contains a space or a colon: "
                       "install memledger elsewhere"));
    }
  }
  std::string value = absl::StrJoin(libraries, ":");
  const char* const before = std::getenv("LD_PRELOAD");
  if (before != nullptr && *before != '\0') absl::StrAppend(&value, ":", before);
  setenv("LD_PRELOAD", value.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

// Whether reports go to files, as this command line or the caller's environment says.
bool writes_to_files(const RunOptions& options) {
  const char* const callers_folder = std::getenv(environment::kLog);
  return !options.log_folder.empty() || (callers_folder != nullptr && *callers_folder != '\0');
}

environment::Settings settings_of(const RunOptions& options) {
  environment::Settings settings;
  const bool is_wanted = options.report || options.lines.functions.empty();
  settings.report = is_wanted && (!options.quiet || writes_to_files(options));
  settings.full_report = options.full_report;
  settings.quiet = options.quiet;
  settings.log_folder = options.log_folder;
  settings.saved_report = options.saved_report;
  settings.timeline = options.timeline;
  settings.stacks = options.stacks;
  settings.detail = options.detail;
  settings.lines = options.lines;
  settings.report_on = options.report_on;
  settings.report_near = options.report_near.value_or(environment::kDefaultReportNear);
  settings.process = getpid();  // which the program keeps
  std::error_code error;
  settings.folder = std::filesystem::current_path(error).string();
  return settings;
}

void set_variables(const std::vector<environment::Variable>& variables) {
  for (const environment::Variable& variable : variables) {
    if (variable.value) {
      setenv(variable.name.c_str(), variable.value->c_str(), /*overwrite=*/1);
    } else {
      unsetenv(variable.name.c_str());
    }
  }
}

absl::Status set_environment(const RunOptions& options,
                             std::vector<std::string>* virtual_gpu_libraries_used) {
  absl::StatusOr<Locations> locations = find_locations();
  if (!locations.ok()) return locations.status();
  std::vector<environment::Variable> variables = environment::format(settings_of(options));
  variables.push_back({environment::kLibrary, locations->library});
  variables.push_back({environment::kLibTorch, MEMLEDGER_LIBTORCH});
  variables.push_back({kRunVariable, run_that_begins_now()});
  std::vector<std::string> libraries = {locations->preload_library};
  if (std::getenv(prediction::kMeasureVariable) != nullptr)
    libraries.push_back(locations->measure_library);
  if (!options.virtual_gpu.empty()) {
    absl::StatusOr<std::vector<std::string>> virtual_gpu = virtual_gpu_libraries(*locations);
    if (!virtual_gpu.ok()) return virtual_gpu.status();
    libraries.insert(libraries.end(), virtual_gpu->begin(), virtual_gpu->end());
    *virtual_gpu_libraries_used = *virtual_gpu;
    variables.push_back({virtual_gpu::kSpecificationVariable,
                         virtual_gpu::with_absolute_paths(options.virtual_gpu)});
    // Triton links its launchers with the driver, which it looks for on disk.
    if (std::getenv(kTritonDriver) == nullptr)
      variables.push_back({kTritonDriver, locations->virtual_gpu_folder});
  }
  set_variables(variables);
  return preload(libraries);
}

}  // namespace

int run_program(const RunOptions& options) {
  std::vector<std::string> virtual_gpu_libraries_used;
  if (const absl::Status status = set_environment(options, &virtual_gpu_libraries_used);
      !status.ok()) {
    tell({"memledger run: ", std::string(status.message())});
    return kCannotRun;
  }
  const Fitness fitness = check_program(options.program[0]);
  if (!fitness.refusal.empty()) {
    tell({"memledger run: ", fitness.refusal});
    return kCannotRun;
  }
  if (!virtual_gpu_libraries_used.empty()) {
    const std::string refusal = why_libtorch_does_not_fit(
        options.program[0], virtual_gpu_libraries_used, MEMLEDGER_LIBTORCH);
    if (!refusal.empty()) {
      tell({"memledger run: ", refusal});
      return kCannotRun;
    }
  }
  if (!fitness.note.empty() && !options.quiet) tell({"memledger run: ", fitness.note});
  std::vector<char*> argv;
  for (const std::string& word : options.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  tell({"memledger run: cannot run ", options.program[0], ": ", std::strerror(error)});
  return error == ENOENT ? kNotFound : kCannotRun;
}

}  // namespace memledger::runner
