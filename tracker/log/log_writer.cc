#include "tracker/log/log_writer.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <string_view>
#include <system_error>

#include "text/names.h"
#include "text/output.h"
#include "tracker/log/log_text.h"

namespace memledger {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamesShown = 3;

std::string reason(int error) { return std::generic_category().message(error); }

bool ends_within_a_line(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  struct stat status;
  char last = '\n';
  const bool read = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
                    ::pread(file, &last, 1, status.st_size - 1) == 1;
  ::close(file);
  return read && last != '\n';
}

std::string unread_text(const std::vector<std::string>& unread) {
  std::string text;
  for (size_t i = 0; i < unread.size() && i < kNamesShown; ++i)
    text += (i == 0 ? "" : ", ") + printable(unread[i]);
  if (unread.size() > kNamesShown) text += " … (" + std::to_string(unread.size()) + " tensors)";
  return text;
}

std::optional<int64_t> minus(std::optional<int64_t> bytes, int64_t change) {
  if (bytes.has_value()) *bytes -= change;
  return bytes;
}

std::string note(std::initializer_list<std::string_view> parts) {
  std::string text = log_text::kNote;
  for (const std::string_view part : parts) text += part;
  return text + '\n';
}

std::string verbose_notes(const SnapshotDiff& diff) {
  std::string text =
      note({"hooks: ", std::to_string(diff.health.unknown_frees), " unknown frees, ",
            std::to_string(diff.health.dropped_records), " dropped records, ",
            std::to_string(diff.health.swallowed_exceptions), " swallowed exceptions"});
  if (diff.unseen_before_tracking) text += note({"before tracking: ?"});
  if (diff.tracking_was_off) text += note({"tracking was off: ?"});
  if (!diff.unread.empty())
    text += note({"not LibTorch's memory, or not to be seen: ", unread_text(diff.unread)});
  return text;
}

std::string unread_gradients_note(const SnapshotDiff& diff) {
  if (diff.unread_gradients.empty()) return "";
  return note({"gradients not read beside other threads (training_paused): ",
               unread_text(diff.unread_gradients)});
}

}  // namespace

std::string log_header(std::chrono::system_clock::time_point time,
                       std::optional<int64_t> tensor_bytes,
                       std::optional<int64_t> allocated_bytes) {
  return log_text::kHeader + log_text::date(time) + log_text::kColumnEnd +
         log_text::totals(tensor_bytes, allocated_bytes) + "\n\n\n";
}

std::string log_block(const SnapshotDiff& diff, const LogDetail& detail, bool below_header) {
  std::string text;
  if (detail.rows) {
    if (diff.from_snapshot) {
      text +=
          note({log_text::kNoEarlierInstant, " to compare with: the rows are everything alive"});
    }
    for (const DiffRow& row : diff.rows) text += to_string(row) + '\n';
  }
  if (!text.empty() || !below_header) text += '\n';
  text += diff.at_line() + '\n';
  if (detail.rows) text += unread_gradients_note(diff);
  if (detail.verbose) text += verbose_notes(diff);
  return text + '\n';
}

std::string resolved_folder(const std::string& folder) {
  fs::path path(folder);
  if (path.is_relative()) {
    const char* const users_folder = std::getenv("BUILD_WORKING_DIRECTORY");
    if (users_folder != nullptr && *users_folder != '\0') path = fs::path(users_folder) / path;
  }
  std::error_code error;
  const fs::path absolute = fs::absolute(path.empty() ? fs::path(".") : path, error);
  return (error ? path : absolute).lexically_normal().string();
}

LogWriter::LogWriter(const Options& options) : options_(options), process_(::getpid()) {
  const fs::path folder = resolved_folder(options.folder);
  std::error_code error;
  fs::create_directories(folder, error);
  TORCH_CHECK(!error, "memledger: cannot make the folder ", folder.string(),
              " for the log: ", error.message(),
              ". Give TrackerOptions::path a folder that can be written.");
  const int failure = open(options.time);
  TORCH_CHECK(failure == 0, "memledger: cannot make the log ", path_, ": ", reason(failure),
              ". Give TrackerOptions::path a folder that can be written.");
}

LogWriter::~LogWriter() {
  if (file_ >= 0) ::close(file_);
}

int LogWriter::open(std::chrono::system_clock::time_point time) {
  const fs::path folder = resolved_folder(options_.folder);
  if (!options_.file_name.empty()) {
    // Kept in a forked child, whose working directory may be another one.
    if (path_.empty()) path_ = (folder / options_.file_name).string();
    file_ = open_to_append(path_);
    if (file_ < 0) return errno;
    // A killed process may have left half a block.
    if (ends_within_a_line(path_)) missing_header_ = "\n";
    return 0;
  }
  std::string date = log_text::date(time);
  if (!options_.colons) std::replace(date.begin(), date.end(), ':', '-');
  const fs::path own_folder = path_.empty() ? folder : fs::path(path_).parent_path();
  const std::string stem = (own_folder / (date + "-gpu_mem_track")).string();
  // Two trackers, or two processes, never share a log.
  NewFile file;
  const int error = make_new_file(stem, ".txt", file);
  path_ = file.path;
  file_ = file.descriptor;
  return error;
}

void LogWriter::begin_in_forked_child(const SnapshotDiff& diff) {
  process_ = ::getpid();
  if (file_ >= 0) ::close(file_);  // the parent has its own
  missing_header_.clear();
  missing_blocks_ = 0;
  below_header_ = true;
  const int failure = open(diff.time);
  if (failure != 0) {
    tell({"memledger: process ", std::to_string(process_),
          " was forked and cannot make a log of its own, ", path_, ": ", reason(failure),
          ". It goes on without a log."});
    return;
  }
  if (options_.file_name.empty()) {
    tell({"memledger: process ", std::to_string(process_), " was forked; its log is ", path_});
  }
  const int64_t change = diff.born_bytes() - diff.died_bytes();
  missing_header_ +=
      log_header(diff.time, minus(diff.tensor_bytes, change), minus(diff.allocated_bytes, change));
}

void LogWriter::write_header(std::optional<int64_t> tensor_bytes,
                             std::optional<int64_t> allocated_bytes) {
  const std::string header =
      missing_header_ + log_header(options_.time, tensor_bytes, allocated_bytes);
  if (options_.echo != nullptr) write_to(*options_.echo, header, "echo of the log");
  missing_header_ = append(header) ? "" : header;
}

void LogWriter::write(const SnapshotDiff& diff) {
  if (::getpid() != process_) begin_in_forked_child(diff);
  const std::string block = log_block(diff, options_.detail, below_header_ && missing_blocks_ == 0);
  if (options_.echo != nullptr) write_to(*options_.echo, block, "echo of the log");
  if (file_ < 0) return;
  report_if_gone();
  std::string text = missing_header_;
  if (missing_blocks_ > 0) {
    text += below_header_ ? "" : "\n";
    text += note({std::to_string(missing_blocks_), " ", log_text::kBlocksMissing,
                  ": the file could not be written"});
  }
  text += block;
  if (!append(text)) {
    ++missing_blocks_;
    return;
  }
  missing_header_.clear();
  missing_blocks_ = 0;
  below_header_ = false;
}

bool LogWriter::append(const std::string& text) {
  // A failed write is taken back by truncating, which must not cut what another process appended.
  // Some file systems have no locks.
  const bool shared = !options_.file_name.empty() && ::flock(file_, LOCK_EX) == 0;
  const int error = append_whole(file_, text);
  if (shared) ::flock(file_, LOCK_UN);
  if (error == 0) return true;
  if (!reported_failure_) {
    tell({"memledger: cannot write the log ", path_, ": ", reason(error),
          ". The program goes on; blocks may be missing from the log."});
  }
  reported_failure_ = true;
  return false;
}

void LogWriter::report_if_gone() {
  struct stat ours, at_path;
  if (reported_gone_ || ::fstat(file_, &ours) != 0 || !S_ISREG(ours.st_mode)) return;
  if (ours.st_nlink == 0) {
    tell({"memledger: the log ", path_,
          " was deleted. The program goes on; what is logged from now on is lost."});
  } else if (::stat(path_.c_str(), &at_path) != 0 || at_path.st_ino != ours.st_ino ||
             at_path.st_dev != ours.st_dev) {
    tell({"memledger: the log ", path_, " was moved. It goes on in its new place."});
  } else {
    return;
  }
  reported_gone_ = true;
}

}  // namespace memledger
