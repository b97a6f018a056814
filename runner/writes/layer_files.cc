#include "runner/writes/layer_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runner/writes/mount_table.h"

namespace memledger::runner {
namespace {

using prediction::LayerFile;
using prediction::Writes;

std::string cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return cache;
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? absl::StrCat(home, "/.cache") : "";
}

bool has_attribute(int folder, const char* name, const char* attribute) {
  char path[64 + NAME_MAX];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d/%s", folder, name);
  return lgetxattr(path, attribute, nullptr, 0) >= 0;
}

}  // namespace

LayerFiles::LayerFiles() : cache_(cache_folder()) {}

void LayerFiles::add(const std::string& path, int64_t bytes, bool is_removed) {
  if (is_removed) {
    ++writes_.removed_count;
  } else {
    ++writes_.written_count;
    writes_.bytes += bytes;
  }
  if (writes_.files.size() < prediction::kMaxLayerFiles)
    writes_.files.push_back({path, bytes, is_removed});
}

void LayerFiles::walk(int at, const char* name, const std::string& path,
                      const std::set<std::string>* known, uint64_t device) {
  const int folder = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* const list = folder < 0 ? nullptr : fdopendir(folder);
  if (list == nullptr) {
    if (folder >= 0) close(folder);
    return;
  }
  while (const dirent* const entry = readdir(list)) {
    const char* const inner = entry->d_name;
    struct stat found {};
    if (std::strcmp(inner, ".") == 0 || std::strcmp(inner, "..") == 0 ||
        fstatat(folder, inner, &found, AT_SYMLINK_NOFOLLOW) != 0 || found.st_dev != device)
      continue;
    const std::string inner_path = absl::StrCat(path == "/" ? "" : path, "/", inner);
    if (std::strcmp(inner, "__pycache__") == 0 || (!cache_.empty() && inner_path == cache_))
      continue;
    const bool is_whiteout = S_ISCHR(found.st_mode) && found.st_rdev == makedev(0, 0);
    if (S_ISDIR(found.st_mode)) {
      // One that was renamed shows what is in it elsewhere.
      if (has_attribute(folder, inner, "trusted.overlay.redirect")) add(inner_path, 0, false);
      walk(folder, inner, inner_path, known, device);
    } else if (known == nullptr || known->count(inner_path) == 0) {
      // Only the owner or the mode were changed.
      const bool has_content =
          S_ISREG(found.st_mode) && !has_attribute(folder, inner, "trusted.overlay.metacopy");
      add(inner_path, has_content && !is_whiteout ? found.st_size : 0, is_whiteout);
    }
  }
  closedir(list);
}

void LayerFiles::add_upper_layer(int at, const std::string& path, const std::string& folder) {
  struct stat found {};
  if (fstatat(at, path.c_str(), &found, 0) == 0)
    walk(at, path.c_str(), folder, nullptr, found.st_dev);
}

void LayerFiles::add_folder(int at, const std::string& path,
                            const std::vector<std::string>& known) {
  const std::set<std::string> paths(known.begin(), known.end());
  struct stat found {};
  if (fstatat(at, path.c_str(), &found, 0) == 0) walk(at, path.c_str(), "/", &paths, found.st_dev);
}

void LayerFiles::add_removed(const std::string& path) {
  const bool is_cached = absl::StrContains(path, "/__pycache__/") ||
                         (!cache_.empty() && absl::StartsWith(path, cache_ + "/"));
  if (!is_cached) add(path, 0, /*is_removed=*/true);
}

Writes LayerFiles::writes() const {
  Writes writes = writes_;
  std::sort(writes.files.begin(), writes.files.end(),
            [](const LayerFile& a, const LayerFile& b) { return a.path < b.path; });
  return writes;
}

std::string to_record(const Writes& writes) {
  std::string record = absl::StrCat(writes.written_count, " ", writes.removed_count, " ",
                                    writes.bytes, std::string(1, '\0'));
  for (const LayerFile& file : writes.files) {
    absl::StrAppend(&record, file.is_removed ? "D" : "W", file.bytes, " ", file.path,
                    std::string(1, '\0'));
  }
  for (const std::string& folder : writes.read_only)
    absl::StrAppend(&record, "R0 ", folder, std::string(1, '\0'));
  for (const std::string& path : writes.host_files)
    absl::StrAppend(&record, "H0 ", path, std::string(1, '\0'));
  return record;
}

Writes writes_of_record(const std::string& record) {
  Writes writes;
  const std::vector<std::string> parts = absl::StrSplit(record, '\0');
  const std::vector<std::string> counts = absl::StrSplit(parts[0], ' ');
  if (counts.size() != 3 || !absl::SimpleAtoi(counts[0], &writes.written_count) ||
      !absl::SimpleAtoi(counts[1], &writes.removed_count) ||
      !absl::SimpleAtoi(counts[2], &writes.bytes))
    return Writes();
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t space = parts[i].find(' ');
    if (space == std::string::npos || space == 0) continue;
    LayerFile file;
    file.path = parts[i].substr(space + 1);
    file.is_removed = parts[i][0] == 'D';
    if (!absl::SimpleAtoi(parts[i].substr(1, space - 1), &file.bytes)) continue;
    if (parts[i][0] == 'R') {
      writes.read_only.push_back(std::move(file.path));
    } else if (parts[i][0] == 'H') {
      writes.host_files.push_back(std::move(file.path));
    } else {
      writes.files.push_back(std::move(file));
    }
  }
  return writes;
}

}  // namespace memledger::runner
