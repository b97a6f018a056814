#include "runner/writes/redirect_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prediction/measure_variables.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

absl::Status failed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

bool write_file(const std::string& path, const void* data, size_t bytes, mode_t mode) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (file < 0) return false;
  const bool is_written = write(file, data, bytes) == static_cast<ssize_t>(bytes);
  return close(file) == 0 && is_written;
}

// Paths of what was removed, by the links that stand for it.
std::set<std::string> removed_paths(const fs::path& folder) {
  std::set<std::string> paths;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::string path = fs::read_symlink(entry.path(), error).string();
    if (!error) paths.insert(std::move(path));
  }
  return paths;
}

// Calls with each file, link and empty folder; what cannot be read is left out.
template <typename Function>
void for_each_file(const fs::path& folder, const Function& function) {
  std::error_code error;
  bool is_empty = true;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    is_empty = false;
    if (entry.symlink_status(error).type() == fs::file_type::directory) {
      for_each_file(entry.path(), function);
    } else {
      function(entry.path());
    }
  }
  if (is_empty && !error) function(folder);
}

bool is_there(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0;
}

}  // namespace

absl::StatusOr<uint64_t> make_redirect_folder(const std::string& folder) {
  for (const char* const name :
       {prediction::kRedirectedRoot, prediction::kRemovedPaths, prediction::kUnnamedFiles}) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (mkdir(path.c_str(), 0700) != 0) return failed(path);
  }
  uint64_t key = 0;
  while (key == 0) {
    if (getrandom(&key, sizeof key, 0) != sizeof key) return failed("getrandom");
  }
  const std::string key_path = absl::StrCat(folder, "/", prediction::kAttributeKey);
  if (!write_file(key_path, &key, sizeof key, 0400)) return failed(key_path);
  const std::string filter_path = absl::StrCat(folder, "/", prediction::kRemovedFilter);
  const std::string zeros(prediction::kRemovedFilterBytes, '\0');
  if (!write_file(filter_path, zeros.data(), zeros.size(), 0600)) return failed(filter_path);
  return key;
}

WouldBeFiles read_redirect_folder(const std::string& folder) {
  WouldBeFiles all;
  const std::string root = absl::StrCat(folder, "/", prediction::kRedirectedRoot);
  std::set<std::string> written;
  for_each_file(root, [&](const fs::path& file) {
    struct stat status;
    if (file == root || lstat(file.c_str(), &status) != 0) return;
    std::string path = file.string().substr(root.size());
    const bool is_folder = S_ISDIR(status.st_mode);
    // One that only stands for a folder in which something was removed again.
    if (is_folder && is_there(path)) return;
    const uint64_t bytes = S_ISREG(status.st_mode) ? static_cast<uint64_t>(status.st_size) : 0;
    written.insert(path);
    all.bytes += bytes;
    all.files.push_back({std::move(path), bytes, false});
  });
  for (const std::string& path :
       removed_paths(absl::StrCat(folder, "/", prediction::kRemovedPaths))) {
    const bool is_replaced = written.count(path) > 0 || is_there(root + path);
    if (!is_replaced) all.files.push_back({path, 0, true});
  }
  std::sort(all.files.begin(), all.files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return all;
}

}  // namespace memledger::runner
