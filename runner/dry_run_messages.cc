#include "runner/dry_run_messages.h"

#include <signal.h>
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
#include "text/bytes.h"
#include "text/names.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

constexpr auto kSilentFor = std::chrono::seconds(2);
constexpr int64_t kFilesShown = 5;
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

// `out/model.pt (96.00M), log.txt (120.00B) and 3 more`
std::string list_of(const TouchedFiles& files, bool removed, int64_t count) {
  std::string list;
  int64_t shown = 0;
  for (const auto& [path, file] : files.files) {
    if (file.is_removed != removed) continue;
    if (shown == kFilesShown) break;
    ++shown;
    absl::StrAppend(&list, list.empty() ? "" : ", ", shown_path(path));
    if (!removed) absl::StrAppend(&list, " (", readable_size(file.bytes), ")");
  }
  if (list.empty()) return list;
  if (count > shown) absl::StrAppend(&list, " and ", count - shown, " more");
  return ": " + list;
}

// Compiled code, in the caches of Triton, Inductor, CUDA, PyTorch's extensions and Python, has no
// values of a GPU.
bool is_of_compiler(const std::string& path) {
  constexpr const char* kCaches[] = {"/.triton/",          "/triton_cache/", "/torchinductor_",
                                     "/torch_extensions/", "/ComputeCache/", "/__pycache__/"};
  return std::any_of(std::begin(kCaches), std::end(kCaches),
                     [&](const char* cache) { return absl::StrContains(path, cache); });
}

std::string number_of_files(int64_t count) {
  return count == 1 ? "a file" : absl::StrCat(count, " files");
}

}  // namespace

bool ProgressLine::is_silent() const {
  return std::chrono::steady_clock::now() - began_ < kSilentFor;
}

void ProgressLine::show(const DryRunProgress& progress) {
  if (is_silent()) return;
  if (isatty(STDERR_FILENO) != 0) {
    is_shown_ = true;
    return write_standard_error("\r\033[K" + text_of(progress).substr(0, line_width()));
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_line_) return;
  next_line_ = now + kLineEvery;
  tell({text_of(progress)});
}

void ProgressLine::show_so_far(const prediction::Prediction& so_far, size_t runs) {
  if (is_silent()) return;
  std::string text = so_far.headline();
  std::string& said = said_[so_far.specification];
  if (std::exchange(said, text) == text) return;
  clear();
  tell({title_, ": after ", std::to_string(runs), runs == 1 ? " run" : " runs",
        ", more follow: ", text});
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

void TouchedFiles::add(const prediction::Writes& writes) {
  const bool is_held = writes.held_by != prediction::WritesHeldBy::kNothing;
  int64_t compiled = 0;
  for (const prediction::LayerFile& file : writes.files) {
    if (!is_held && is_of_compiler(file.path)) {
      ++compiled;
      continue;
    }
    prediction::LayerFile& known = files.try_emplace(file.path, file).first->second;
    known.is_removed = known.is_removed && file.is_removed;
    known.bytes = std::max(known.bytes, file.bytes);
  }
  written_count = std::max(written_count, writes.written_count - compiled);
  removed_count = std::max(removed_count, writes.removed_count);
  bytes = std::max(bytes, writes.bytes);
  are_held = is_held;
}

void TouchedFiles::add(const prediction::Prediction& prediction) {
  add(prediction.writes);
  have_zeros = have_zeros || !prediction.devices.empty();
}

void tell_of_files(const std::string& command, const TouchedFiles& files,
                   std::string_view otherwise) {
  const std::string written = number_of_files(files.written_count);
  const std::string list = list_of(files, /*removed=*/false, files.written_count);
  if (files.are_held) {
    std::string text;
    if (files.written_count > 0)
      text = absl::StrCat("written ", written, ", ", readable_size(files.bytes), list);
    if (files.removed_count > 0) {
      absl::StrAppend(&text, text.empty() ? "" : "; and ", "removed ",
                      number_of_files(files.removed_count),
                      list_of(files, /*removed=*/true, files.removed_count));
    }
    if (!text.empty()) tell({command, ": ", otherwise, " the program would have ", text});
  } else if (files.written_count > 0 && !files.have_zeros) {
    tell({command, ": the program wrote ", written, list});
  } else if (files.written_count > 0) {
    tell({command, ": warning: the program wrote ", written,
          ", and values from the GPU are zeros in ", files.written_count == 1 ? "it" : "them",
          list});
  }
}

void note_signals(void (*note)(int signal)) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (::signal(number, note) == SIG_IGN) ::signal(number, SIG_IGN);
  }
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
