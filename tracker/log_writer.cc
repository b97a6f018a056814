#include "tracker/log_writer.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "tracker/log_text.h"

namespace memledger {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamesShown = 3;
constexpr int kMostFilesInOneSecond = 10000;

std::string reason(int error) { return std::generic_category().message(error); }

// -1 and errno.
int open_retrying(const std::string& path, int flags) {
  int file = -1;
  do {
    file = ::open(path.c_str(), flags | O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  } while (file < 0 && errno == EINTR);
  return file;
}

std::string unread_text(const std::vector<std::string>& unread) {
  std::string text;
  for (size_t i = 0; i < unread.size() && i < kNamesShown; ++i) text += (i == 0 ? "" : ", ") + log_text::printable(unread[i]);
  if (unread.size() > kNamesShown) text += " … (" + std::to_string(unread.size()) + " tensors)";
  return text;
}

}  // namespace

std::string log_header(std::chrono::system_clock::time_point time, std::optional<int64_t> tensor_bytes, int64_t allocated_bytes) {
  return "GPU Memory Track | " + log_text::date(time) + " | Total Tensor Used Memory:" + log_text::total(tensor_bytes) +
         "Mb Total Allocated Memory:" + log_text::total(allocated_bytes) + "Mb\n\n\n";
}

std::string log_block(const SnapshotDiff& diff, const LogDetail& detail, bool below_header) {
  std::string text;
  if (detail.rows) {
    if (diff.from_snapshot) text += "  no earlier instant to compare with: the rows are everything alive\n";
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
    if (!diff.unread.empty()) text += "  not LibTorch's memory, or not to be seen: " + unread_text(diff.unread) + "\n";
  }
  return text + '\n';
}

std::string resolved_folder(const std::string& folder) {
  fs::path path(folder);
  if (path.is_relative()) {
    const char* const user_stands_in = std::getenv("BUILD_WORKING_DIRECTORY");
    if (user_stands_in != nullptr && *user_stands_in != '\0') path = fs::path(user_stands_in) / path;
  }
  std::error_code error;
  const fs::path absolute = fs::absolute(path.empty() ? fs::path(".") : path, error);
  return (error ? path : absolute).lexically_normal().string();
}

LogWriter::LogWriter(const Options& options) : time_(options.time), detail_(options.detail) {
  const fs::path folder = resolved_folder(options.folder);
  std::error_code error;
  fs::create_directories(folder, error);
  TORCH_CHECK(!error, "memledger: cannot make the folder ", folder.string(), " for the log: ", error.message(),
              ". Give TrackerOptions::path a folder that can be written.");
  if (!options.file_name.empty()) {
    path_ = (folder / options.file_name).string();
    file_ = open_retrying(path_, 0);
  } else {
    const std::string stem = (folder / (log_text::date(options.time) + "-gpu_mem_track")).string();
    for (int number = 1; number <= kMostFilesInOneSecond; ++number) {
      path_ = stem + (number == 1 ? "" : "-" + std::to_string(number)) + ".txt";
      // Exclusive: two trackers, or two processes, never share a log.
      file_ = open_retrying(path_, O_EXCL);
      if (file_ >= 0 || errno != EEXIST) break;
    }
  }
  TORCH_CHECK(file_ >= 0, "memledger: cannot make the log ", path_, ": ", reason(errno),
              ". Give TrackerOptions::path a folder that can be written.");
}

LogWriter::~LogWriter() { ::close(file_); }

void LogWriter::write_header(std::optional<int64_t> tensor_bytes, int64_t allocated_bytes) {
  const std::string header = log_header(time_, tensor_bytes, allocated_bytes);
  if (!append(header)) missing_header_ = header;
}

void LogWriter::write(const SnapshotDiff& diff) {
  report_if_deleted();
  std::string text = missing_header_;
  if (missing_blocks_ > 0) {
    text += (below_header_ ? "" : "\n") + std::string("  ") + std::to_string(missing_blocks_) +
            " blocks are missing here: the file could not be written\n";
  }
  text += log_block(diff, detail_, below_header_ && missing_blocks_ == 0);
  if (!append(text)) {
    ++missing_blocks_;
    return;
  }
  missing_header_.clear();
  missing_blocks_ = 0;
  below_header_ = false;
}

bool LogWriter::append(const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file_, text.data() + written, text.size() - written);
    if (count > 0) {
      written += static_cast<size_t>(count);
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    const int error = count < 0 ? errno : ENOSPC;
    struct stat status;
    if (written > 0 && ::fstat(file_, &status) == 0 && S_ISREG(status.st_mode)) {
      // Half a block is worse than none.
      if (::ftruncate(file_, status.st_size - static_cast<off_t>(written)) != 0) errno = 0;
    }
    if (!reported_failure_) {
      std::fprintf(stderr, "memledger: cannot write the log %s: %s. The program goes on; blocks may be missing from the log.\n",
                   path_.c_str(), reason(error).c_str());
    }
    reported_failure_ = true;
    return false;
  }
  return true;
}

void LogWriter::report_if_deleted() {
  struct stat status;
  if (reported_deletion_ || ::fstat(file_, &status) != 0 || status.st_nlink > 0) return;
  std::fprintf(stderr, "memledger: the log %s was deleted. The program goes on; what is logged from now on cannot be found.\n",
               path_.c_str());
  reported_deletion_ = true;
}

}  // namespace memledger
