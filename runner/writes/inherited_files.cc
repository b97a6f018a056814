#include "runner/writes/inherited_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "text/names.h"

namespace memledger::runner {
namespace {

// Returns what readlink() says; a file that was removed has no path that leads to it.
std::string link_of(int number) {
  std::array<char, 32> link{};
  std::array<char, PATH_MAX> path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", number);
  const ssize_t length = readlink(link.data(), path.data(), path.size());
  return length <= 0 ? "" : std::string(path.data(), static_cast<size_t>(length));
}

bool leads_to(const std::string& path, const struct stat& file) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && found.st_dev == file.st_dev &&
         found.st_ino == file.st_ino;
}

std::vector<int> open_descriptors() {
  std::vector<int> numbers;
  DIR* const list = opendir("/proc/self/fd");
  if (list == nullptr) return numbers;
  while (const dirent* const entry = readdir(list)) {
    int number = 0;
    if (absl::SimpleAtoi(entry->d_name, &number) && number > STDERR_FILENO && number != dirfd(list))
      numbers.push_back(number);
  }
  closedir(list);
  return numbers;
}

}  // namespace

absl::StatusOr<InheritedFiles> InheritedFiles::read() {
  InheritedFiles result;
  for (const int number : open_descriptors()) {
    struct stat found {};
    const int flags = fcntl(number, F_GETFL);
    if ((fcntl(number, F_GETFD) & FD_CLOEXEC) != 0 || flags < 0 || fstat(number, &found) != 0 ||
        !(S_ISREG(found.st_mode) || S_ISDIR(found.st_mode)))
      continue;
    std::string path = link_of(number);
    // Memory, which no file system holds.
    if (absl::StartsWith(path, "/memfd:")) continue;
    const bool is_written =
        (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY && S_ISREG(found.st_mode);
    if (!leads_to(path, found)) {
      // Nobody else can reach it.
      if (!is_written && S_ISREG(found.st_mode) && found.st_nlink == 0) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("descriptor ", number, " is open ", is_written ? "for writing " : "", "on ",
                       printable(path), ", which cannot be kept from the program: close it"));
    }
    const off_t offset = S_ISREG(found.st_mode) ? lseek(number, 0, SEEK_CUR) : 0;
    result.files_.push_back({number, flags & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW),
                             offset < 0 ? 0 : offset, std::move(path)});
  }
  return result;
}

bool InheritedFiles::open_again() {
  for (const File& file : files_) {
    const int again = open(file.path.c_str(), file.flags | O_CLOEXEC);
    const bool is_done = again >= 0 &&
                         (file.offset == 0 || lseek(again, file.offset, SEEK_SET) >= 0) &&
                         dup2(again, file.number) == file.number;
    if (again >= 0 && again != file.number) close(again);
    if (!is_done) {
      failed_ = file.path.c_str();
      return false;
    }
  }
  return true;
}

}  // namespace memledger::runner
