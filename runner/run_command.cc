#include "runner/run_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runner/locations.h"
#include "runner/program_file.h"
#include "text/output.h"
#include "tracker/line_table.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

// The value of `--name=value` or `--name value`; moves `i` over what it took.
absl::StatusOr<std::optional<std::string>> value_of(absl::string_view name,
                                                    const std::vector<std::string>& arguments,
                                                    size_t& i) {
  absl::string_view rest = arguments[i];
  if (!absl::ConsumePrefix(&rest, name)) return std::nullopt;
  if (rest.empty()) {
    if (i + 1 >= arguments.size() || arguments[i + 1] == "--") {
      return absl::InvalidArgumentError(absl::StrCat(name, " needs a value: ", name, "=…"));
    }
    return arguments[++i];
  }
  if (!absl::ConsumePrefix(&rest, "=")) return std::nullopt;
  if (rest.empty()) return absl::InvalidArgumentError(absl::StrCat(name, "= needs a value"));
  return std::string(rest);
}

// In front of what the caller preloads. The dynamic linker splits at spaces and colons, and knows
// no escape.
absl::Status preload(const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    if (library.find_first_of(" :") != std::string::npos) {
      return absl::FailedPreconditionError(
          absl::StrCat(library,
                       " cannot be preloaded, as its path contains a space or a colon: install "
                       "memledger elsewhere"));
    }
  }
  std::string value = absl::StrJoin(libraries, ":");
  const char* const before = std::getenv("LD_PRELOAD");
  if (before != nullptr && *before != '\0') absl::StrAppend(&value, ":", before);
  setenv("LD_PRELOAD", value.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

absl::Status set_environment(const RunArguments& arguments) {
  absl::StatusOr<Locations> locations = find_locations();
  if (!locations.ok()) return locations.status();
  std::vector<std::string> libraries = {locations->preload_library};
  if (!arguments.virtual_gpu.empty()) {
    absl::StatusOr<std::vector<std::string>> virtual_gpu = virtual_gpu_libraries(*locations);
    if (!virtual_gpu.ok()) return virtual_gpu.status();
    libraries.insert(libraries.end(), virtual_gpu->begin(), virtual_gpu->end());
    setenv(virtual_gpu::kSpecificationVariable, arguments.virtual_gpu.c_str(), 1);
  }
  setenv("MEMLEDGER_LIBRARY", locations->library.c_str(), 1);
  setenv("MEMLEDGER_LIBTORCH", MEMLEDGER_LIBTORCH, 1);
  const bool lines = !arguments.functions.empty();
  const char* const callers_folder = std::getenv("MEMLEDGER_LOG");
  const bool to_files =
      !arguments.log_folder.empty() || (callers_folder != nullptr && *callers_folder != '\0');
  if ((arguments.report || !lines) && (!arguments.quiet || to_files)) {
    setenv("MEMLEDGER", "1", 1);
  } else {
    unsetenv("MEMLEDGER");
  }
  if (arguments.quiet) {
    setenv("MEMLEDGER_QUIET", "1", 1);
  } else {
    unsetenv("MEMLEDGER_QUIET");
  }
  if (lines) {
    setenv("MEMLEDGER_LINES", absl::StrJoin(arguments.functions, "\n").c_str(), 1);
    setenv("MEMLEDGER_LINE_COLUMNS", absl::StrJoin(arguments.columns, "\n").c_str(), 1);
    for (const auto& [variable, value] : {std::pair{"MEMLEDGER_LINES_GPU", arguments.gpu},
                                          std::pair{"MEMLEDGER_LINES_TEXT", arguments.text_file},
                                          std::pair{"MEMLEDGER_LINES_JSON", arguments.json_file},
                                          std::pair{"MEMLEDGER_LINES_HTML", arguments.html_file}}) {
      setenv(variable, value.c_str(), 1);
    }
  } else {
    unsetenv("MEMLEDGER_LINES");
  }
  if (!arguments.log_folder.empty()) setenv("MEMLEDGER_LOG", arguments.log_folder.c_str(), 1);
  if (!arguments.timeline.empty()) setenv("MEMLEDGER_TIMELINE", arguments.timeline.c_str(), 1);
  // Paths are of the caller's folder, wherever the program and its children stand. Of this run is
  // what is written from now on.
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (!error) setenv("MEMLEDGER_FOLDER", here.c_str(), 1);
  setenv(kRunVariable, run_that_begins_now().c_str(), 1);
  return preload(libraries);
}

// Sets the columns, too.
absl::Status check_line_profile(RunArguments& arguments, const std::vector<std::string>& columns,
                                bool default_columns) {
  if (arguments.functions.empty()) {
    const bool asked = !columns.empty() || !default_columns || !arguments.gpu.empty() ||
                       !arguments.text_file.empty() || !arguments.json_file.empty() ||
                       !arguments.html_file.empty();
    if (asked)
      return absl::InvalidArgumentError(
          "-c, -D, -g, -r, -T and --html are of the line profile: of which function? -f FUNCTION");
    return absl::OkStatus();
  }
  for (const std::string& function : arguments.functions) {
    if (function.find('\n') != std::string::npos)
      return absl::InvalidArgumentError("-f: a function's name has no line break");
  }
  if (default_columns) {
    for (const LineColumn column : default_line_columns())
      arguments.columns.push_back(column.name());
  }
  for (const std::string& column : columns) {
    if (!LineColumn::parse(column)) {
      return absl::InvalidArgumentError(
          absl::StrCat("-c ", column, ": there is no such column; there are ", all_column_names()));
    }
    arguments.columns.push_back(column);
  }
  if (arguments.columns.empty())
    return absl::InvalidArgumentError("-D leaves no column: name one with -c");
  int gpu = 0;
  if (!arguments.gpu.empty() && (!absl::SimpleAtoi(arguments.gpu, &gpu) || gpu < 0 || gpu > 127)) {
    return absl::InvalidArgumentError(
        absl::StrCat("-g ", arguments.gpu, ": a GPU is a number from 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunArguments> parse_run_arguments(const std::vector<std::string>& arguments) {
  RunArguments result;
  bool default_columns = true;
  std::vector<std::string> columns;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.empty() || argument[0] != '-') break;
    if (argument == "--help" || argument == "-h") {
      result.help = true;
      return result;
    }
    if (argument == "--quiet" || argument == "-q") {
      result.quiet = true;
      continue;
    }
    if (argument == "-D" || argument == "--no-default-columns") {
      default_columns = false;
      continue;
    }
    if (argument == "--report") {
      result.report = true;
      continue;
    }
    bool known = false;
    for (const auto& [name, target] :
         {std::pair{"--function", &result.functions}, std::pair{"-f", &result.functions},
          std::pair{"--column", &columns}, std::pair{"-c", &columns}}) {
      absl::StatusOr<std::optional<std::string>> value = value_of(name, arguments, i);
      if (!value.ok()) return value.status();
      if (!value->has_value()) continue;
      target->push_back(**std::move(value));
      known = true;
      break;
    }
    if (known) continue;
    for (const auto& [name, target] :
         {std::pair{"--virtual-gpu", &result.virtual_gpu}, std::pair{"--log", &result.log_folder},
          std::pair{"--html", &result.html_file}, std::pair{"--text", &result.text_file},
          std::pair{"-T", &result.text_file}, std::pair{"--json", &result.json_file},
          std::pair{"-r", &result.json_file}, std::pair{"--gpu", &result.gpu},
          std::pair{"-g", &result.gpu}, std::pair{"--timeline", &result.timeline}}) {
      absl::StatusOr<std::optional<std::string>> value = value_of(name, arguments, i);
      if (!value.ok()) return value.status();
      if (!value->has_value()) continue;
      *target = **std::move(value);
      known = true;
      break;
    }
    if (!known)
      return absl::InvalidArgumentError(
          absl::StrCat("there is no option `", argument, "`; see `memledger help`"));
  }
  result.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (result.program.empty())
    return absl::InvalidArgumentError(
        "which program? memledger run [OPTION]… -- PROGRAM [ARGUMENT]…");
  if (const absl::Status status = check_line_profile(result, columns, default_columns);
      !status.ok())
    return status;
  if (!result.virtual_gpu.empty()) {
    const virtual_gpu::ParsedSpecification parsed =
        virtual_gpu::parse_specification(result.virtual_gpu);
    if (!parsed.specification.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--virtual-gpu=", result.virtual_gpu, ": ", parsed.error));
    }
  }
  return result;
}

int run_program(const RunArguments& arguments) {
  if (const absl::Status status = set_environment(arguments); !status.ok()) {
    tell({"memledger run: ", std::string(status.message())});
    return kCannotRun;
  }
  const Fitness fitness = check_program(arguments.program[0]);
  if (!fitness.refusal.empty()) {
    tell({"memledger run: ", fitness.refusal});
    return kCannotRun;
  }
  if (!fitness.note.empty() && !arguments.quiet) tell({"memledger run: ", fitness.note});
  std::vector<char*> argv;
  for (const std::string& word : arguments.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  tell({"memledger run: cannot run ", arguments.program[0], ": ", std::strerror(error)});
  return error == ENOENT ? kNotFound : kCannotRun;
}

}  // namespace memledger::runner
