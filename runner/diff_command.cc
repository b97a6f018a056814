#include "runner/diff_command.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "compare/difference_formats.h"
#include "compare/read_saved.h"
#include "runner/log_command.h"
#include "text/file_text.h"
#include "text/output.h"

namespace memledger::runner {
namespace {

constexpr int kDiffers = 1;
constexpr int kFailed = 2;

// Logs may be long, and `memledger log` keeps none whole.
constexpr size_t kBeginning = size_t{1} << 16;

absl::Status unreadable(const std::string& path, int error) {
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(error)));
}

absl::StatusOr<std::string> beginning_of(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return unreadable(path, errno);
  std::string text(kBeginning, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return unreadable(path, errno);
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::StatusOr<compare::SavedFile> read_file(const std::string& path, compare::Moment moment) {
  const absl::StatusOr<std::string> beginning = beginning_of(path);
  if (!beginning.ok()) return beginning.status();
  // A pipe can be read once only.
  const bool is_whole = beginning->size() < kBeginning;
  return compare::read_saved(path, is_whole ? *beginning : file_text(path), moment);
}

absl::StatusOr<compare::SavedFile> read_folder(const std::string& path, compare::Moment moment) {
  std::error_code error;
  std::vector<compare::SavedFile> processes;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".json") continue;
    absl::StatusOr<compare::SavedFile> process = read_file(entry->path().string(), moment);
    if (!process.ok()) return process.status();
    processes.push_back(*std::move(process));
  }
  if (error) return unreadable(path, error.value());
  return compare::joined(path, std::move(processes));
}

absl::StatusOr<compare::SavedFile> read(const std::string& path, compare::Moment moment) {
  return is_folder(path) ? read_folder(path, moment) : read_file(path, moment);
}

int failed(const absl::Status& status) {
  tell({"memledger diff: ", std::string(status.message())});
  return kFailed;
}

bool is_log(const std::string& path) {
  if (is_folder(path)) return false;
  const absl::StatusOr<std::string> beginning = beginning_of(path);
  return beginning.ok() && compare::is_log(*beginning);
}

int compare_logs(const DiffOptions& options) {
  if (options.markdown || options.json || options.exit_code || options.limit)
    return failed(absl::InvalidArgumentError(
        "logs are compared as text only; leave out --markdown, --json, --exit-code and "
        "--fail-above"));
  LogOptions logs;
  logs.files = options.files;
  return log_command(logs) == 0 ? 0 : kFailed;
}

absl::Status write(const compare::Difference& difference, const DiffOptions& options) {
  if (options.json) {
    const std::string text = to_text(compare::difference_json(difference)) + "\n";
    if (options.json_file.empty()) return write_standard_output(text);
    const absl::Status status = write_file(options.json_file, "difference", text);
    if (!status.ok()) return status;
  }
  compare::ShownRows shown;
  if (options.all_rows) shown.most = std::numeric_limits<size_t>::max();
  return write_standard_output(options.markdown ? difference_markdown(difference, shown)
                                                : difference_text(difference, shown));
}

}  // namespace

int diff_command(const DiffOptions& options) {
  const std::string &first = options.files[0], &second = options.files[1];
  const bool is_first_log = is_log(first), is_second_log = is_log(second);
  if (is_first_log && is_second_log) return compare_logs(options);
  if (is_first_log || is_second_log)
    return failed(absl::InvalidArgumentError(
        absl::StrCat(is_first_log ? first : second, " is a log of MemTracker and ",
                     is_first_log ? second : first, " is none; give two logs, or two reports")));
  absl::StatusOr<compare::SavedFile> before = read(first, options.moment);
  if (!before.ok()) return failed(before.status());
  absl::StatusOr<compare::SavedFile> after = read(second, options.moment);
  if (!after.ok()) return failed(after.status());
  const absl::StatusOr<compare::Difference> difference = compare_files(*before, *after);
  if (!difference.ok()) return failed(difference.status());
  if (const absl::Status status = write(*difference, options); !status.ok()) return failed(status);
  const compare::AccountChange* const above =
      options.limit ? first_above(*difference, *options.limit) : nullptr;
  if (above != nullptr) {
    tell({"memledger diff: ", title_of(*above), " ", above->moment, ": ",
          above->change() ? "it rose by " + std::to_string(*above->change()) +
                                " bytes, more than --fail-above allows"
                          : "a total is not known, so --fail-above fails"});
    return kDiffers;
  }
  return options.exit_code && difference->differs() ? kDiffers : 0;
}

}  // namespace memledger::runner
