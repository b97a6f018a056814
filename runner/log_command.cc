#include "runner/log_command.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tracker/log_reader.h"

namespace memledger::runner {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;

int usage_error(const std::string& what) {
  fmt::print(stderr, "memledger log: {}; memledger log [--svg=FILE] FILE [FILE2]\n", what);
  return kUsageError;
}

int write_svg(const std::string& path, const std::string& svg) {
  std::FILE* const file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  bool written = file != nullptr && std::fwrite(svg.data(), 1, svg.size(), file) == svg.size();
  if (file != nullptr) written = (file == stdout ? std::fflush(file) : std::fclose(file)) == 0 && written;
  if (written) return 0;
  fmt::print(stderr, "memledger log: cannot write {}: {}\n", path, std::strerror(errno));
  return kFailed;
}

}  // namespace

int log_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> files;
  std::optional<std::string> svg;
  bool only_files = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view rest = arguments[i];
    if (only_files || rest.empty() || rest[0] != '-') {
      files.push_back(arguments[i]);
    } else if (rest == "--") {
      only_files = true;
    } else if (absl::ConsumePrefix(&rest, "--svg")) {
      if (absl::ConsumePrefix(&rest, "=")) {
        svg = std::string(rest);
      } else if (rest.empty() && i + 1 < arguments.size()) {
        svg = arguments[++i];
      } else {
        return usage_error("--svg needs a file");
      }
      if (svg->empty()) return usage_error("--svg needs a file");
    } else {
      return usage_error(fmt::format("there is no option `{}`", arguments[i]));
    }
  }
  if (files.empty()) return usage_error("which log?");
  if (files.size() > 2) return usage_error("one log, or two to compare");
  if (files.size() == 2 && svg) return usage_error("--svg draws one log");

  std::vector<MemoryLog> logs;
  for (const std::string& file : files) {
    absl::StatusOr<MemoryLog> log = read_log(file);
    if (!log.ok()) {
      fmt::print(stderr, "memledger log: {}\n", std::string(log.status().message()));
      return kFailed;
    }
    logs.push_back(*std::move(log));
  }
  if (logs.size() == 2) {
    fmt::print("{}", log_comparison(logs[0], logs[1]));
    return 0;
  }
  if (svg && *svg == "-") return write_svg("-", log_svg(logs[0]));
  fmt::print("{}", log_summary(logs[0]));
  for (const LogRun& run : logs[0].runs) {
    if (!run.blocks.empty()) fmt::print("\n{}", log_plot(run));
  }
  return svg ? write_svg(*svg, log_svg(logs[0])) : 0;
}

}  // namespace memledger::runner
