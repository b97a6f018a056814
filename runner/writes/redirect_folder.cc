#include "runner/writes/redirect_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prediction/measure_variables.h"
#include "runner/writes/layer_files.h"

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

// The folders by the paths that the kernel has for them.
std::string list_of(const std::vector<std::string>& folders) {
  std::string list;
  for (const std::string& folder : folders) {
    std::error_code error;
    const std::string path = fs::canonical(folder, error).string();
    if (!error) absl::StrAppend(&list, path, std::string(1, '\0'));
  }
  return list;
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

bool is_there(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0;
}

}  // namespace

absl::StatusOr<uint64_t> make_redirect_folder(const std::string& folder,
                                              const std::vector<std::string>& allowed) {
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
  const std::string list = list_of(allowed),
                    list_path = absl::StrCat(folder, "/", prediction::kAllowedFolders);
  if (list.size() > prediction::kMaxAllowedFoldersBytes)
    return absl::FailedPreconditionError("too many folders to be written for real");
  if (!write_file(list_path, list.data(), list.size(), 0400)) return failed(list_path);
  return key;
}

prediction::Writes read_redirect_folder(const std::string& folder) {
  const std::string root = absl::StrCat(folder, "/", prediction::kRedirectedRoot);
  LayerFiles files;
  files.add_folder(AT_FDCWD, root, {});
  const std::set<std::string> removed =
      removed_paths(absl::StrCat(folder, "/", prediction::kRemovedPaths));
  std::string gone;  // a folder that was removed with all that was in it
  for (const std::string& path : removed) {
    if (is_there(root + path) || (!gone.empty() && absl::StartsWith(path, gone + "/"))) continue;
    files.add_removed(path);
    gone = path;
  }
  return files.writes();
}

}  // namespace memledger::runner
