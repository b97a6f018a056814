#include "runner/inside/kept_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "prediction/measure_variables.h"

// System calls in place of functions that libmemledger_measure.so has itself.

namespace memledger::inside {
namespace {

constexpr size_t kPathBytes = 4096;
// A file that is written in place is copied, where the file system cannot share its blocks.
constexpr uint64_t kMostCopied = uint64_t{4} << 30;
constexpr int kMostEntries = 20000;  // of a folder that is renamed

char scratch[kPathBytes];  // empty: nothing is kept
const char* scratch_name;  // its last part
struct timespec began;     // the dry run
bool (*is_exempt)(const char*);

using Path = char[kPathBytes + 64];  // one that is too long is cut, and not found

int open_file(int folder, const char* path, int flags, mode_t mode = 0) {
  return static_cast<int>(syscall(SYS_openat, folder, path, flags | O_CLOEXEC, mode));
}

bool is_before(const statx_timestamp& time) {
  return time.tv_sec != began.tv_sec ? time.tv_sec < began.tv_sec
                                     : time.tv_nsec < static_cast<uint32_t>(began.tv_nsec);
}

// Either time is enough: a file gets a new birth where overlayfs copies it up, and a copy the old
// time of its last change.
bool was_there_before(const struct statx& file) {
  const bool has_birth = (file.stx_mask & STATX_BTIME) != 0;
  return (has_birth && is_before(file.stx_btime)) || is_before(file.stx_mtime);
}

// What a path leads to.
struct Found {
  Path path;  // without links on the way
  struct statx status;
};

// Returns false where nothing is there, or nothing that is to be kept.
bool find(int folder, const char* path, int flags, Found& found) {
  if (path == nullptr) return false;
  const int file = open_file(folder, path, O_PATH | flags);
  if (file < 0) return false;
  char link[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, found.path, kPathBytes);
  const bool is_known =
      statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &found.status) == 0;
  close(file);
  if (length <= 0 || length >= static_cast<ssize_t>(kPathBytes) || !is_known) return false;
  found.path[length] = '\0';
  return found.path[0] == '/' && !is_exempt(found.path);
}

void make_folders(char* path) {
  for (char* slash = strchr(path + 1, '/'); slash != nullptr; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
}

// Removes those of the folders that are empty, up to `root`.
void remove_folders(char* path, size_t root) {
  for (char* slash = strrchr(path, '/'); slash != nullptr && slash > path + root;
       slash = strrchr(path, '/')) {
    *slash = '\0';
    if (rmdir(path) != 0) return;
  }
}

// Written before what it tells of, so that nothing is ever kept that nobody knows of.
bool note(const char* path, const char* kept) {
  Path journal;
  snprintf(journal, sizeof journal, "%s/%s", scratch, prediction::kKeptJournal);
  const int file = open_file(AT_FDCWD, journal, O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (file < 0) return false;
  const iovec record[2] = {{const_cast<char*>(path), strlen(path) + 1},
                           {const_cast<char*>(kept), strlen(kept) + 1}};
  const auto bytes = static_cast<ssize_t>(record[0].iov_len + record[1].iov_len);
  const bool is_written = writev(file, record, 2) == bytes;
  close(file);
  return is_written;
}

// Notes that nothing was at this path, if a file is to be made there: one with an old time, as is
// unpacked, looks like one that was there before.
void note_absent(int folder, const char* path) {
  struct statx status;
  if (path == nullptr || statx(folder, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &status) == 0 ||
      errno != ENOENT)
    return;
  const char* const last = strrchr(path, '/');
  Path parent;
  snprintf(parent, sizeof parent, "%.*s/.", last == nullptr ? 0 : static_cast<int>(last - path),
           path);
  Found found;
  if (!find(folder, last == nullptr ? "." : parent, 0, found)) return;
  Path made;
  const int length = snprintf(made, sizeof made, "%s/%s", found.path[1] == '\0' ? "" : found.path,
                              last == nullptr ? path : last + 1);
  if (length < static_cast<int>(sizeof made) && !is_exempt(made)) note(made, "");
}

bool is_link_of(const char* kept, const Found& found) {
  struct statx status;
  return statx(AT_FDCWD, kept, AT_SYMLINK_NOFOLLOW, STATX_INO, &status) == 0 &&
         status.stx_ino == found.status.stx_ino;
}

// Links the file into the folder `.memledger-XXXXXX` of the highest folder where that can be done:
// the program might list or remove lower ones. `kept` becomes the link's path. One that is there
// already is what was at this path first; the file of now came by rename(), and was linked then.
bool link_aside(const Found& found, Path kept) {
  const char* const last = strrchr(found.path, '/');
  Path root;
  struct statx parent, status;
  snprintf(root, sizeof root, "%.*s/", static_cast<int>(last - found.path), found.path);
  if (statx(AT_FDCWD, root, 0, STATX_INO, &parent) != 0) return false;
  for (const char* end = found.path; end != nullptr && end <= last; end = strchr(end + 1, '/')) {
    const auto length = static_cast<int>(end - found.path);
    snprintf(root, sizeof root, "%.*s/", length, found.path);
    if (statx(AT_FDCWD, root, 0, STATX_INO, &status) != 0 ||
        status.stx_dev_major != parent.stx_dev_major ||
        status.stx_dev_minor != parent.stx_dev_minor || access(root, W_OK | X_OK) != 0)
      continue;
    if (snprintf(kept, sizeof(Path), "%s.%s%s", root, scratch_name, found.path) >=
        static_cast<int>(sizeof(Path)))
      return false;
    make_folders(kept);
    if (is_link_of(kept, found)) return true;
    if (!note(found.path, kept)) return false;
    if (link(found.path, kept) == 0 || errno == EEXIST) return true;
    Path made;
    memcpy(made, kept, sizeof made);
    remove_folders(made, static_cast<size_t>(length));
  }
  return false;
}

bool copy_content(int from, int to, uint64_t bytes) {
  if (ioctl(to, FICLONE, from) == 0) return true;
  if (bytes > kMostCopied) return false;
  for (;;) {
    const ssize_t copied = copy_file_range(from, nullptr, to, nullptr, size_t{1} << 30, 0);
    if (copied == 0) return true;
    if (copied < 0) break;
  }
  // Not on this file system.
  char buffer[1 << 14];
  if (lseek(from, 0, SEEK_SET) != 0 || lseek(to, 0, SEEK_SET) != 0) return false;
  for (;;) {
    const ssize_t count = read(from, buffer, sizeof buffer);
    if (count <= 0) return count == 0;
    if (write(to, buffer, static_cast<size_t>(count)) != count) return false;
  }
}

// Makes a file `path` with the content of another, or empty. Returns false, and leaves none, where
// that fails.
bool make_file(const char* path, const Found& like, bool has_content) {
  const int to = open_file(AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (to < 0) return false;
  bool is_made = true;
  if (has_content) {
    const int from = open_file(AT_FDCWD, like.path, O_RDONLY);
    is_made = from >= 0 && copy_content(from, to, like.status.stx_size);
    if (from >= 0) close(from);
  }
  [[maybe_unused]] const int owned = fchown(to, like.status.stx_uid, like.status.stx_gid);
  is_made = fchmod(to, like.status.stx_mode & 07777) == 0 && is_made;
  close(to);
  if (!is_made) syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  return is_made;
}

void name_new(Path path, const char* begin) {
  static int count;
  snprintf(path, sizeof(Path), "%.4000s.new.%d.%d", begin, getpid(),
           __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
}

// Puts a file of the program's own in the place of one that is kept.
bool replace(const Found& found, const char* kept, bool has_content) {
  Path made;
  name_new(made, kept);
  if (!make_file(made, found, has_content)) return false;
  if (syscall(SYS_renameat, AT_FDCWD, made, AT_FDCWD, found.path) == 0) return true;
  syscall(SYS_unlinkat, AT_FDCWD, made, 0);
  return false;
}

// Where no link can be made: a copy in the dry run's own folder.
bool copy_aside(const Found& found) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char* at = found.path; *at != '\0'; ++at)
    hash = (hash ^ static_cast<unsigned char>(*at)) * 1099511628211u;
  Path kept, made;
  snprintf(kept, sizeof kept, "%s/kept-%016llx", scratch, static_cast<unsigned long long>(hash));
  if (access(kept, F_OK) == 0) return true;
  name_new(made, kept);
  if (!make_file(made, found, /*has_content=*/true)) return false;
  // Two programs may do this at once; the first to come here had the file as it was.
  const bool is_kept = note(found.path, kept) && (link(made, kept) == 0 || errno == EEXIST);
  syscall(SYS_unlinkat, AT_FDCWD, made, 0);
  return is_kept;
}

bool refuse() {
  errno = EROFS;
  return false;
}

bool is_regular(const Found& found) { return S_ISREG(found.status.stx_mode); }

bool keep_removed(const Found& found) {
  if (!is_regular(found) && !S_ISLNK(found.status.stx_mode)) return true;
  if (!was_there_before(found.status)) return true;
  Path kept;
  return link_aside(found, kept) || (is_regular(found) && copy_aside(found)) || refuse();
}

// Keeps all files of a folder. `entries`: how many more.
bool keep_all(int folder, int& entries) {
  struct Entry {  // as the kernel has it
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
  };
  alignas(Entry) char buffer[1 << 13];
  for (;;) {
    const long bytes = syscall(SYS_getdents64, folder, buffer, sizeof buffer);
    if (bytes <= 0) return bytes == 0 || refuse();
    for (long at = 0; at < bytes;) {
      const auto* const entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->length;
      if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0) continue;
      if (--entries < 0) return refuse();
      const int inner = open_file(folder, entry->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
      if (inner < 0) {
        if (!keep_before_removal(folder, entry->name)) return false;
        continue;
      }
      const bool are_kept = keep_all(inner, entries);
      close(inner);
      if (!are_kept) return false;
    }
  }
}

}  // namespace

bool begin_to_keep_files(const char* folder, bool (*exempt)(const char*)) {
  Path marker;
  struct stat status;
  snprintf(marker, sizeof marker, "%s/%s", folder, prediction::kKeptMarker);
  const char* const name = strrchr(folder, '/');
  if (name == nullptr || strlen(folder) >= sizeof scratch || stat(marker, &status) != 0)
    return false;
  is_exempt = exempt;
  began = status.st_mtim;
  memcpy(scratch, folder, strlen(folder) + 1);
  scratch_name = scratch + (name + 1 - folder);
  return true;
}

bool keep_before_write(int folder, const char* path, int flags) {
  if (scratch[0] == '\0') return true;
  const int error = errno;
  if ((flags & O_CREAT) != 0) note_absent(folder, path);
  if ((flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) {
    errno = error;
    return true;
  }
  Found found;
  const bool is_safe = !find(folder, path, flags & O_NOFOLLOW, found) || !is_regular(found) ||
                       found.status.stx_size == 0 || !was_there_before(found.status);
  Path kept;
  if (!is_safe) {
    const bool is_replaced =
        link_aside(found, kept) && replace(found, kept, (flags & O_TRUNC) == 0);
    if (!is_replaced && !copy_aside(found)) return refuse();
  }
  errno = error;
  return true;
}

bool keep_before_removal(int folder, const char* path) {
  if (scratch[0] == '\0') return true;
  const int error = errno;
  Found found;
  if (find(folder, path, O_NOFOLLOW, found) && !keep_removed(found)) return false;
  errno = error;
  return true;
}

bool keep_before_rename(int from_folder, const char* from, int to_folder, const char* to) {
  if (scratch[0] == '\0') return true;
  if (!keep_before_removal(to_folder, to) || !keep_before_removal(from_folder, from)) return false;
  const int error = errno;
  const int folder = open_file(from_folder, from, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (folder >= 0) {
    int entries = kMostEntries;
    const bool are_kept = keep_all(folder, entries);
    close(folder);
    if (!are_kept) return false;
  }
  errno = error;
  return true;
}

void note_renamed(int to_folder, const char* to) {
  if (scratch[0] == '\0') return;
  const int error = errno;
  Found found;
  if (find(to_folder, to, O_NOFOLLOW, found) &&
      (S_ISDIR(found.status.stx_mode) || was_there_before(found.status)))
    note(found.path, "");
  errno = error;
}

}  // namespace memledger::inside
