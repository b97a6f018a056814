#include "runner/run_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runner/locations.h"
#include "virtual_gpu/specification.h"

namespace memledger::runner {
namespace {

constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

// The value of `--name=value` or `--name value`; moves `i` over what it took.
absl::StatusOr<std::optional<std::string>> value_of(absl::string_view name, const std::vector<std::string>& arguments, size_t& i) {
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

// In front of what the caller preloads. The dynamic linker splits at spaces and colons, and knows no escape.
absl::Status preload(const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    if (library.find_first_of(" :") != std::string::npos) {
      return absl::FailedPreconditionError(
          absl::StrCat(library, " cannot be preloaded, as its path contains a space or a colon: install memledger elsewhere"));
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
  if (arguments.quiet) {
    unsetenv("MEMLEDGER");
  } else {
    setenv("MEMLEDGER", "1", 1);
  }
  if (!arguments.log_folder.empty()) setenv("MEMLEDGER_LOG", arguments.log_folder.c_str(), 1);
  if (!arguments.timeline.empty()) {
    // The caller's folder, wherever the program stands when it ends.
    std::error_code error;
    const std::filesystem::path file = std::filesystem::absolute(arguments.timeline, error);
    setenv("MEMLEDGER_TIMELINE", error ? arguments.timeline.c_str() : file.c_str(), 1);
  }
  return preload(libraries);
}

}  // namespace

absl::StatusOr<RunArguments> parse_run_arguments(const std::vector<std::string>& arguments) {
  RunArguments result;
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
    bool known = false;
    for (const auto& [name, target] :
         {std::pair{"--virtual-gpu", &result.virtual_gpu}, std::pair{"--log", &result.log_folder},
          std::pair{"--timeline", &result.timeline}}) {
      absl::StatusOr<std::optional<std::string>> value = value_of(name, arguments, i);
      if (!value.ok()) return value.status();
      if (!value->has_value()) continue;
      *target = **std::move(value);
      known = true;
      break;
    }
    if (!known) return absl::InvalidArgumentError(absl::StrCat("there is no option `", argument, "`; see `memledger help`"));
  }
  result.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (result.program.empty()) return absl::InvalidArgumentError("which program? memledger run [OPTION]… -- PROGRAM [ARGUMENT]…");
  if (!result.virtual_gpu.empty()) {
    const virtual_gpu::ParsedSpecification parsed = virtual_gpu::parse_specification(result.virtual_gpu);
    if (!parsed.specification.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("--virtual-gpu=", result.virtual_gpu, ": ", parsed.error));
    }
  }
  return result;
}

int run_program(const RunArguments& arguments) {
  if (const absl::Status status = set_environment(arguments); !status.ok()) {
    fmt::print(stderr, "memledger run: {}\n", std::string(status.message()));
    return kCannotRun;
  }
  std::vector<char*> argv;
  for (const std::string& word : arguments.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  fmt::print(stderr, "memledger run: cannot run {}: {}\n", arguments.program[0], std::strerror(error));
  return error == ENOENT ? kNotFound : kCannotRun;
}

}  // namespace memledger::runner
