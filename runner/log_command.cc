#include "runner/log_command.h"

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "text/output.h"
#include "tracker/log/log_digest.h"

namespace memledger::runner {
namespace {

constexpr int kFailed = 1;

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

int log_command(const LogOptions& options) {
  std::vector<LogDigest> logs;
  for (const std::string& file : options.files) {
    absl::StatusOr<LogDigest> log = read_log_digest(file);
    if (!log.ok()) return exit_status(log.status());
    logs.push_back(*std::move(log));
  }
  if (logs.size() == 2) {
    const absl::StatusOr<std::string> text = log_comparison(logs[0], logs[1]);
    return exit_status(text.ok() ? write_standard_output(*text) : text.status());
  }
  if (options.svg && *options.svg == "-")
    return exit_status(write_svg(*options.svg, log_svg(logs[0])));
  std::string text = log_summary(logs[0]);
  for (const LogRunDigest& run : logs[0].runs) {
    if (run.blocks > 0) text += "\n" + log_plot(run);
  }
  const int printed = exit_status(write_standard_output(text));
  const int drawn = options.svg ? exit_status(write_svg(*options.svg, log_svg(logs[0]))) : 0;
  return printed != 0 ? printed : drawn;
}

}  // namespace memledger::runner
