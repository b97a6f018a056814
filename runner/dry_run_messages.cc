#include "runner/dry_run_messages.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

constexpr auto kSilentFor = std::chrono::seconds(2);
constexpr size_t kFilesShown = 5;
constexpr size_t kLineWidth = 79;

std::string shown_path(const std::string& path) {
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string() + "/";
  return printable(absl::StartsWith(path, folder) ? path.substr(folder.size()) : path);
}

}  // namespace

void ProgressLine::show(const DryRunProgress& progress) {
  if (isatty(STDERR_FILENO) == 0 || std::chrono::steady_clock::now() - began_ < kSilentFor) return;
  is_shown_ = true;
  write_standard_error("\r\033[K" + text_of(progress).substr(0, kLineWidth));
}

void ProgressLine::clear() {
  if (std::exchange(is_shown_, false)) write_standard_error("\r\033[K");
}

std::string ProgressLine::text_of(const DryRunProgress& progress) const {
  std::string text = absl::StrCat(title_, ": run", progress.running > 1 ? "s " : " ",
                                  std::min(progress.ended + 1, progress.total));
  if (progress.running > 1) absl::StrAppend(&text, " to ", progress.ended + progress.running);
  absl::StrAppend(&text, " of ", progress.total, ", ");
  if (progress.steps > 0) absl::StrAppend(&text, "after optimizer step ", progress.steps, ", ");
  absl::StrAppend(&text, (std::chrono::steady_clock::now() - began_) / std::chrono::seconds(1),
                  " s");
  return progress.label.empty() ? text : absl::StrCat(text, ", ", printable(progress.label));
}

void tell_last_lines(const std::string& command, const prediction::ProgramEnd& program) {
  if (program.last_lines.empty()) return;
  write_standard_error(
      absl::StrCat(command, ": the last lines of the program:\n", program.last_lines, "\n"));
}

void warn_of_written_files(const std::string& command, const std::set<std::string>& files) {
  if (files.empty()) return;
  std::string list;
  size_t shown = 0;
  for (const std::string& file : files) {
    if (shown++ == kFilesShown) break;
    absl::StrAppend(&list, list.empty() ? "" : ", ", shown_path(file));
  }
  if (files.size() > kFilesShown)
    absl::StrAppend(&list, " and ", files.size() - kFilesShown, " more");
  tell({command, ": warning: the program wrote ", files.size() == 1 ? "a file" : "files",
        ", and values from the GPU are zeros in them: ", list});
}

}  // namespace memledger::runner
