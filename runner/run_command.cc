#include "runner/run_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "prediction/measure_variables.h"
#include "runner/linked_libtorch.h"
#include "runner/locations.h"
#include "runner/own_libraries.h"
#include "runner/program_file.h"
#include "runner/written_list.h"
#include "text/output.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;
constexpr char kTritonDriver[] = "TRITON_LIBCUDA_PATH";
constexpr char kPath[] = "PATH";

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
  setenv(environment::kPreloaded, value.c_str(), /*overwrite=*/1);
  const char* const before = std::getenv("LD_PRELOAD");
  if (before != nullptr && *before != '\0') absl::StrAppend(&value, ":", before);
  setenv("LD_PRELOAD", value.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

// Whether reports go to files, as this command line or the caller's environment says.
bool writes_to_files(const RunOptions& options) {
  if (options.log_folder) return !options.log_folder->empty();
  const char* const callers_folder = std::getenv(environment::kLog);
  return callers_folder != nullptr && *callers_folder != '\0';
}

// The variables of options that were given without a value: format() leaves those alone.
std::vector<environment::Variable> taken_back(const RunOptions& options) {
  std::vector<environment::Variable> variables;
  const auto take_back = [&](const char* name, const std::optional<std::string>& option) {
    if (option && option->empty()) variables.push_back({name, std::nullopt});
  };
  take_back(environment::kLog, options.log_folder);
  take_back(environment::kSaveReport, options.saved_report);
  take_back(environment::kTimeline, options.timeline);
  take_back(environment::kStacks, options.stacks);
  take_back(environment::kDetail, options.detail);
  take_back(environment::kReportOn, options.report_on);
  return variables;
}

environment::Settings settings_of(const RunOptions& options) {
  environment::Settings settings;
  const bool is_wanted = options.report || options.lines.functions.empty();
  settings.report = is_wanted && (!options.quiet || writes_to_files(options));
  settings.full_report = options.full_report;
  settings.quiet = options.quiet;
  settings.log_folder = options.log_folder.value_or("");
  settings.saved_report = options.saved_report.value_or("");
  settings.timeline = options.timeline.value_or("");
  settings.stacks = options.stacks.value_or("");
  settings.detail = options.detail.value_or("");
  settings.lines = options.lines;
  settings.report_on = options.report_on.value_or("");
  settings.report_near = options.report_near;
  settings.training_paused = options.training_paused;
  settings.outputs = options.outputs_folder;
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

// GCC's AddressSanitizer ends a program in which a library stands before its own, though ours work
// there. The program's children are concerned as well.
environment::Variable sanitizer_options() {
  constexpr char kVariable[] = "ASAN_OPTIONS", kOption[] = "verify_asan_link_order";
  const char* const of_caller = std::getenv(kVariable);
  const std::string options = of_caller == nullptr ? "" : of_caller;
  if (absl::StrContains(options, kOption)) return {kVariable, options};
  return {kVariable, absl::StrCat(options, options.empty() ? "" : ":", kOption, "=0")};
}

// For the folder's nvidia-smi, which has no other program that anybody calls by its name.
std::string with_folder_first(const std::string& folder) {
  // What execvp() searches without PATH. An empty entry is the current folder, as is an empty PATH.
  constexpr char kWithoutPath[] = "/bin:/usr/bin";
  const char* const path = std::getenv(kPath);
  return absl::StrCat(folder, ":", path == nullptr ? kWithoutPath : path);
}

// Preloads what stands for libraries of NVIDIA's that the program lacks, and may not even call.
void add_absent_libraries(const std::string& driver_folder, const std::vector<std::string>& program,
                          std::vector<std::string>& libraries) {
  const std::string folder = driver_folder + "/absent/";
  if (access(folder.c_str(), R_OK) != 0) return;
  for (const std::string& name : missing_libraries(program)) {
    std::string path = folder + name;
    if (access(path.c_str(), R_OK) == 0) libraries.push_back(std::move(path));
  }
}

absl::Status set_environment(const RunOptions& options, bool takes_libraries,
                             std::vector<std::string>* stand_ins_used) {
  absl::StatusOr<Locations> locations = find_locations();
  if (!locations.ok()) return locations.status();
  std::vector<environment::Variable> variables = environment::format(settings_of(options));
  for (environment::Variable& variable : taken_back(options))
    variables.push_back(std::move(variable));
  variables.push_back({environment::kLibrary, locations->library});
  variables.push_back({environment::kLibTorch, MEMLEDGER_LIBTORCH});
  variables.push_back({kRunVariable, run_that_begins_now()});
  std::vector<std::string> libraries = {locations->preload_library};
  const bool notes_files = std::getenv(prediction::kMeasureVariable) != nullptr ||
                           std::getenv(prediction::kNotesVariable) != nullptr;
  if (notes_files || !options.virtual_gpu.empty()) libraries.push_back(locations->measure_library);
  if (!options.virtual_gpu.empty()) {
    const std::string list = notes_files ? "" : make_written_list(getpid());
    variables.push_back({prediction::kWrittenListVariable,
                         list.empty() ? std::nullopt : std::optional<std::string>(list)});
    const std::string chosen = with_library_choice(options.virtual_gpu, options.program);
    const auto specification = virtual_gpu::parse_specification(chosen).specification;
    const bool are_real =
        specification && specification->libraries == virtual_gpu::LibraryChoice::kReal;
    const std::string folder =
        are_real ? locations->virtual_driver_folder() : locations->virtual_gpu_folder;
    absl::StatusOr<std::vector<std::string>> virtual_gpu = virtual_gpu_libraries(folder);
    if (!virtual_gpu.ok()) return virtual_gpu.status();
    libraries.insert(libraries.end(), virtual_gpu->begin(), virtual_gpu->end());
    // Where nobody has asked for them, they were chosen as none is missing.
    if (are_real && chosen == options.virtual_gpu)
      add_absent_libraries(folder, options.program, libraries);
    // Above the driver any release of LibTorch's libraries is as good as another.
    if (!are_real) *stand_ins_used = *virtual_gpu;
    variables.push_back(
        {virtual_gpu::kSpecificationVariable, virtual_gpu::with_absolute_paths(chosen)});
    if (specification) {
      variables.push_back(
          {prediction::kDevicesVariable, std::to_string(specification->all_devices().size())});
    }
    variables.push_back({kPath, with_folder_first(locations->virtual_gpu_folder)});
    // Triton links its launchers with the driver, which it looks for on disk.
    if (std::getenv(kTritonDriver) == nullptr) variables.push_back({kTritonDriver, folder});
  }
  if (!takes_libraries) {
    set_variables(variables);
    return absl::OkStatus();
  }
  variables.push_back(sanitizer_options());
  set_variables(variables);
  return preload(libraries);
}

std::string what_is_missing(const Fitness& fitness) {
  if (fitness.refusal.empty()) return fitness.note;
  return absl::StrCat(fitness.refusal, fitness.takes_libraries
                                           ? ". It runs, but is not watched"
                                           : ". It runs, but neither it nor what it starts is "
                                             "watched");
}

}  // namespace

int run_program(const RunOptions& options) {
  const Fitness fitness = check_program(options.program[0]);
  if (!fitness.refusal.empty() && !options.virtual_gpu.empty()) {
    tell({"memledger run: ", fitness.refusal, ", so it cannot have a virtual GPU"});
    return kCannotRun;
  }
  std::vector<std::string> stand_ins_used;
  if (const absl::Status status =
          set_environment(options, fitness.takes_libraries, &stand_ins_used);
      !status.ok()) {
    tell({"memledger run: ", std::string(status.message())});
    return kCannotRun;
  }
  if (!stand_ins_used.empty()) {
    const std::string refusal =
        why_libtorch_does_not_fit(options.program[0], stand_ins_used, MEMLEDGER_LIBTORCH);
    if (!refusal.empty()) {
      tell({"memledger run: ", refusal});
      return kCannotRun;
    }
  }
  if (const std::string note = what_is_missing(fitness); !note.empty() && !options.quiet)
    tell({"memledger run: ", note});
  std::vector<char*> argv;
  for (const std::string& word : options.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  tell({"memledger run: cannot run ", options.program[0], ": ", std::strerror(error)});
  return error == ENOENT ? kNotFound : kCannotRun;
}

}  // namespace memledger::runner
