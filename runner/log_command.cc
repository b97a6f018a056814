#include "runner/log_command.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "text/output.h"
#include "tracker/log/log_digest.h"

namespace memledger::runner {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;

int usage_error(const std::string& what) {
  tell({"memledger log: ", what, "; memledger log [--svg=FILE] FILE [FILE2]"});
  return kUsageError;
}

int exit_status(const absl::Status& status) {
  if (status.ok()) return 0;
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "memledger: ");
  tell({"memledger log: ", std::string_view(message.data(), message.size())});
  return kFailed;
}

absl::Status write_svg(const std::string& path, const std::string& svg) {
  return path == "-" ? write_standard_output(svg) : write_file(path, "SVG", svg);
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
      return usage_error("there is no option `" + arguments[i] + "`");
    }
  }
  if (files.empty()) return usage_error("which log?");
  if (files.size() > 2) return usage_error("one log, or two to compare");
  if (files.size() == 2 && svg) return usage_error("--svg draws one log");

  std::vector<LogDigest> logs;
  for (const std::string& file : files) {
    absl::StatusOr<LogDigest> log = read_log_digest(file);
    if (!log.ok()) return exit_status(log.status());
    logs.push_back(*std::move(log));
  }
  if (logs.size() == 2) {
    const absl::StatusOr<std::string> text = log_comparison(logs[0], logs[1]);
    return exit_status(text.ok() ? write_standard_output(*text) : text.status());
  }
  if (svg && *svg == "-") return exit_status(write_svg(*svg, log_svg(logs[0])));
  std::string text = log_summary(logs[0]);
  for (const LogRunDigest& run : logs[0].runs) {
    if (run.blocks > 0) text += "\n" + log_plot(run);
  }
  const int told = exit_status(write_standard_output(text));
  const int drawn = svg ? exit_status(write_svg(*svg, log_svg(logs[0]))) : 0;
  return told != 0 ? told : drawn;
}

}  // namespace memledger::runner
