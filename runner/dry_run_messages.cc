#include "runner/dry_run_messages.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

constexpr auto kSilentFor = std::chrono::seconds(2);
constexpr size_t kFilesShown = 5;
constexpr size_t kLineWidth = 79;

// A line that wraps cannot be taken back.
size_t line_width() {
  winsize size{};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return is_known ? std::min<size_t>(size.ws_col - 1, kLineWidth) : kLineWidth;
}

std::string shown_path(const std::string& path) {
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string() + "/";
  return printable(absl::StartsWith(path, folder) ? path.substr(folder.size()) : path);
}

std::string list_of(const std::set<std::string>& files) {
  std::string list;
  size_t shown = 0;
  for (const std::string& file : files) {
    if (shown++ == kFilesShown) break;
    absl::StrAppend(&list, list.empty() ? "" : ", ", shown_path(file));
  }
  if (files.size() > kFilesShown)
    absl::StrAppend(&list, " and ", files.size() - kFilesShown, " more");
  return list;
}

}  // namespace

void ProgressLine::show(const DryRunProgress& progress) {
  if (isatty(STDERR_FILENO) == 0 || std::chrono::steady_clock::now() - began_ < kSilentFor) return;
  is_shown_ = true;
  write_standard_error("\r\033[K" + text_of(progress).substr(0, line_width()));
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

void TouchedFiles::add(const prediction::Prediction& prediction) {
  written.insert(prediction.written_files.begin(), prediction.written_files.end());
  restored.insert(prediction.restored_files.begin(), prediction.restored_files.end());
  have_zeros = have_zeros || !prediction.devices.empty();
}

void tell_of_files(const std::string& command, const TouchedFiles& files) {
  if (!files.restored.empty())
    tell({command, ": what the program changed is as it was before: ", list_of(files.restored)});
  std::set<std::string> left;
  std::set_difference(files.written.begin(), files.written.end(), files.restored.begin(),
                      files.restored.end(), std::inserter(left, left.end()));
  if (left.empty()) return;
  if (!files.have_zeros)
    return tell({command, ": the program wrote ",
                 left.size() == 1 ? "a file: " : "files: ", list_of(left)});
  tell({command, ": warning: the program wrote ", left.size() == 1 ? "a file" : "files",
        ", and values from the GPU are zeros in ", left.size() == 1 ? "it" : "them", ": ",
        list_of(left)});
}

void tell_error(const std::string& command, const absl::Status& status) {
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "memledger: ");
  tell({command, ": ", std::string(message)});
}

std::string why_not_run(const prediction::ProgramEnd& program) {
  constexpr int kCannotRun = 126, kNotFound = 127;
  constexpr char kTold[] = "memledger run: ";
  const bool is_status = program.status == kCannotRun || program.status == kNotFound;
  // One line, and that is ours: a shell ends like this, too.
  if (!is_status || !absl::StartsWith(program.last_lines, kTold) ||
      absl::StrContains(program.last_lines, '\n'))
    return "";
  return program.last_lines.substr(sizeof kTold - 1);
}

}  // namespace memledger::runner
