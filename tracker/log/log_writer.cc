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
#include <optional>
#include <ostream>
#include <sstream>
#include <system_error>

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
    text += (i == 0 ? "" : ", ") + log_text::printable(unread[i]);
  if (unread.size() > kNamesShown) text += " … (" + std::to_string(unread.size()) + " tensors)";
  return text;
}

}  // namespace

std::string log_header(std::chrono::system_clock::time_point time,
                       std::optional<int64_t> tensor_bytes, int64_t allocated_bytes) {
  return "GPU Memory Track | " + log_text::date(time) +
         " | Total Tensor Used Memory:" + log_text::total(tensor_bytes) +
         "Mb Total Allocated Memory:" + log_text::total(allocated_bytes) + "Mb\n\n\n";
}

std::string log_block(const SnapshotDiff& diff, const LogDetail& detail, bool below_header) {
  std::string text;
  if (detail.rows) {
    if (diff.from_snapshot)
      text += "  no earlier instant to compare with: the rows are everything alive\n";
    for (const DiffRow& row : diff.rows) text += to_string(row) + '\n';
  }
  if (!text.empty() || !below_header) text += '\n';
  text += diff.at_line() + '\n';
  if (detail.verbose) {
    text += "  hooks: " + std::to_string(diff.health.unknown_frees) + " unknown frees, " +
            std::to_string(diff.health.dropped_records) + " dropped records, " +
            std::to_string(diff.health.swallowed_exceptions) + " swallowed exceptions\n";
    if (diff.unseen_before_tracking) text += "  before tracking: ?\n";
    if (diff.tracking_was_off) text += "  tracking was off: ?\n";
    if (!diff.unread.empty())
      text += "  not LibTorch's memory, or not to be seen: " + unread_text(diff.unread) + "\n";
  }
  return text + '\n';
}

std::string resolved_folder(const std::string& folder) {
  fs::path path(folder);
  if (path.is_relative()) {
    const char* const user_stands_in = std::getenv("BUILD_WORKING_DIRECTORY");
    if (user_stands_in != nullptr && *user_stands_in != '\0')
      path = fs::path(user_stands_in) / path;
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
    // Not again: a forked child may stand in another folder.
    if (path_.empty()) path_ = (folder / options_.file_name).string();
    file_ = open_to_append(path_);
    if (file_ < 0) return errno;
    // A process that was killed may have left half a block.
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
          ". It goes on without."});
    return;
  }
  if (options_.file_name.empty()) {
    tell({"memledger: process ", std::to_string(process_), " was forked; its log is ", path_});
  }
  const int64_t change = diff.born_bytes() - diff.died_bytes();
  std::optional<int64_t> before = diff.tensor_bytes;
  if (before.has_value()) *before -= change;
  missing_header_ += log_header(diff.time, before, diff.allocated_bytes - change);
}

void LogWriter::write_header(std::optional<int64_t> tensor_bytes, int64_t allocated_bytes) {
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
    text += (below_header_ ? "" : "\n") + std::string("  ") + std::to_string(missing_blocks_) +
            " blocks are missing here: the file could not be written\n";
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
  // What is taken back after half a write must not be another process's. Where locks do not work,
  // there are none.
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
  struct stat ours, there;
  if (reported_gone_ || ::fstat(file_, &ours) != 0 || !S_ISREG(ours.st_mode)) return;
  if (ours.st_nlink == 0) {
    tell({"memledger: the log ", path_,
          " was deleted. The program goes on; what is logged from now on cannot be found."});
  } else if (::stat(path_.c_str(), &there) != 0 || there.st_ino != ours.st_ino ||
             there.st_dev != ours.st_dev) {
    tell({"memledger: the log ", path_, " was moved. It goes on in its new place."});
  } else {
    return;
  }
  reported_gone_ = true;
}

}  // namespace memledger
