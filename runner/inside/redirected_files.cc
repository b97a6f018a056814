#include "runner/inside/redirected_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "prediction/measure_variables.h"

// System calls instead of functions that libmemledger_measure.so has itself.

namespace memledger::inside {
namespace {

constexpr uint64_t kMaxCopiedBytes = uint64_t{4} << 30;  // of a file, or of a renamed folder
constexpr int kMaxCopiedEntries = 20000;                 // of a renamed folder
constexpr int kMaxDepth = 250, kMaxCopiedDepth = 40;
constexpr int kMaxLinks = 40;

constexpr size_t kRootBytes = 400;
char root[kRootBytes + 32];  // of the private files; empty: nothing is redirected
size_t root_length;
char removed_folder[kRootBytes + 32];
char unnamed_folder[kRootBytes + 32];
char own_folder[kRootBytes];
char measured_folder[kPathBytes];  // of all runs
char allowed_folders[prediction::kMaxAllowedFoldersBytes + 1];
uint64_t key;  // see kAttributeKey

// Seen by all processes of the run. A Bloom filter says of most paths that they were not removed.
struct Shared {
  uint32_t has_redirected;
  uint32_t has_removed;
  uint64_t removed[(prediction::kRemovedFilterBytes - 8) / 8];
};
Shared* shared;

// --- System calls

int open_file(const char* path, int flags, mode_t mode = 0) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode));
}
bool look_at(const char* path, struct stat& status) {
  return syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}
bool is_there(const char* path) {
  const int error = errno;
  struct stat status;
  const bool found = look_at(path, status);
  errno = error;
  return found;
}
bool may_access(const char* path, int mode) {
  return syscall(SYS_faccessat2, AT_FDCWD, path, mode, AT_EACCESS) == 0;
}
int fail(int error) {
  errno = error;
  return -1;
}
bool refuse(int error) {
  errno = error;
  return false;
}
// The kernel lets us change attributes only with the key; without the filter it ignores it.
long with_key(long number, long a, const void* b, long c, long d = 0, long e = 0) {
  return syscall(number, a, b, c, d, e, key);
}

bool is_in(const char* path, const char* outer) {
  const size_t length = strlen(outer);
  return length > 0 && strncmp(path, outer, length) == 0 &&
         (path[length] == '/' || path[length] == '\0');
}

// --- What was removed

uint64_t hash_of(const char* text) {  // FNV-1a
  uint64_t hash = 14695981039346656037u;
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 1099511628211u;
  return hash;
}
void marker_of(const char* path, char (&marker)[sizeof removed_folder + 20]) {
  snprintf(marker, sizeof marker, "%s/%016lx", removed_folder, hash_of(path));
}
constexpr uint64_t kFilterBits = sizeof Shared::removed * 8;
uint64_t filter_bit(uint64_t hash, int which) {
  return (which == 0 ? hash : hash >> 29 ^ hash << 11) % kFilterBits;
}

__attribute__((noinline)) bool has_marker(const char* path) {
  const int error = errno;
  char marker[sizeof removed_folder + 20], target[kPathBytes];
  marker_of(path, marker);
  const long length = syscall(SYS_readlinkat, AT_FDCWD, marker, target, sizeof target);
  errno = error;
  return length >= 0 && static_cast<size_t>(length) == strlen(path) &&
         memcmp(target, path, static_cast<size_t>(length)) == 0;
}

bool was_removed(const char* path) {
  if (__atomic_load_n(&shared->has_removed, __ATOMIC_ACQUIRE) == 0) return false;
  const uint64_t hash = hash_of(path);
  for (int which = 0; which < 2; ++which) {
    const uint64_t bit = filter_bit(hash, which);
    if ((__atomic_load_n(&shared->removed[bit / 64], __ATOMIC_RELAXED) >> bit % 64 & 1) == 0)
      return false;
  }
  return has_marker(path);
}

// For good: what is made there later hides the real one all the same.
bool mark_removed(const char* path) {
  char marker[sizeof removed_folder + 20];
  marker_of(path, marker);
  if (syscall(SYS_symlinkat, path, AT_FDCWD, marker) != 0 && errno != EEXIST) return false;
  const uint64_t hash = hash_of(path);
  for (int which = 0; which < 2; ++which) {
    const uint64_t bit = filter_bit(hash, which);
    __atomic_fetch_or(&shared->removed[bit / 64], uint64_t{1} << bit % 64, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&shared->has_removed, 1u, __ATOMIC_RELEASE);
  __atomic_store_n(&shared->has_redirected, 1u, __ATOMIC_RELEASE);
  return true;
}

// --- Where a path leads

bool is_allowed(const char* path) {
  for (const char* folder = allowed_folders; *folder != '\0'; folder += strlen(folder) + 1) {
    if (strcmp(path, folder) == 0) return true;
  }
  return false;
}

bool is_outside(const char* path) {
  return is_allowed(path) || strcmp(path, "/proc") == 0 || strcmp(path, "/dev") == 0 ||
         strcmp(path, "/sys") == 0 || strcmp(path, own_folder) == 0 ||
         strcmp(path, measured_folder) == 0;
}

// Puts a link's target before the rest of a path.
__attribute__((noinline)) bool follow(const char* link, char* rest, const char* after) {
  char target[kPathBytes];
  const long length = syscall(SYS_readlinkat, AT_FDCWD, link, target, sizeof target - 1);
  if (length <= 0) return length < 0 ? false : refuse(ENOENT);
  const size_t after_length = strlen(after), target_length = static_cast<size_t>(length);
  if (target_length + after_length + 2 > kPathBytes) return refuse(ENAMETOOLONG);
  memmove(rest + target_length, after, after_length + 1);
  memcpy(rest, target, target_length);
  return true;
}

// A walk along a path, one part after another.
class Walk {
 public:
  explicit Walk(Place& place) : place_(place) {
    memcpy(place.full, root, root_length + 1);
    place.logical = place.full + root_length;
    end_ = place.logical;
    seen_[0] = kHasPrivate;
    place.mode = S_IFDIR;
  }
  bool go(char* rest, bool follows, bool is_new);

 private:
  enum : uint8_t { kHasPrivate = 1, kHidesReal = 2 };

  bool append(const char* part, size_t length) {
    if (end_ + length + 2 > place_.full + sizeof place_.full || depth_ + 1 >= kMaxDepth)
      return refuse(ENAMETOOLONG);
    *end_ = '/';
    memcpy(end_ + 1, part, length);
    end_ += length + 1;
    *end_ = '\0';
    ++depth_;
    return true;
  }
  void go_up() {
    place_.mode = S_IFDIR;
    if (depth_ == 0) return;
    --depth_;
    while (*end_ != '/') --end_;
    *end_ = '\0';
  }
  bool look(struct stat& status) {
    const uint8_t above = seen_[depth_ - 1];
    const bool hides = (above & kHidesReal) != 0 || was_removed(place_.logical);
    seen_[depth_] = hides ? kHidesReal : 0;
    if ((above & kHasPrivate) != 0 && look_at(place_.full, status)) {
      seen_[depth_] |= kHasPrivate;
      return true;
    }
    return hides ? refuse(ENOENT) : look_at(place_.logical, status);
  }
  void note_hidden() {
    place_.hides_real = (seen_[depth_] & kHidesReal) != 0;
    place_.folder_hides_real = depth_ > 0 && (seen_[depth_ - 1] & kHidesReal) != 0;
  }
  void finish() {
    const bool is_private = (seen_[depth_] & kHasPrivate) != 0;
    note_hidden();
    place_.layer = is_private ? Layer::kPrivate : Layer::kReal;
    struct stat real;
    if (is_private && !place_.hides_real && S_ISDIR(place_.mode) && look_at(place_.path(), real) &&
        S_ISDIR(real.st_mode))
      place_.layer = Layer::kMerged;
  }

  Place& place_;
  char* end_;
  int depth_ = 0, links_ = 0;
  uint8_t seen_[kMaxDepth];
};

bool Walk::go(char* rest, bool follows, bool is_new) {
  char* next = rest;
  bool& wants_folder = place_.wants_folder;
  wants_folder = false;
  for (;;) {
    while (*next == '/') ++next;
    if (*next == '\0') break;
    char* const end = strchrnul(next, '/');
    const auto length = static_cast<size_t>(end - next);
    const char* after = end;
    while (*after == '/') ++after;
    const bool is_last = *after == '\0';
    wants_folder = is_last && *end == '/';
    if (length == 1 && next[0] == '.') {
      next = end;
      continue;
    }
    if (!S_ISDIR(place_.mode)) return refuse(ENOTDIR);
    if (length == 2 && next[0] == '.' && next[1] == '.') {
      go_up();
      next = end;
      continue;
    }
    if (length > 255) return refuse(ENAMETOOLONG);
    if (!append(next, length)) return false;
    if (is_outside(place_.logical)) {
      place_.layer = Layer::kOutside;
      const size_t rest_length = strlen(end);
      if (end_ + rest_length + 1 > place_.full + sizeof place_.full) return refuse(ENAMETOOLONG);
      memcpy(end_, end, rest_length + 1);
      return true;
    }
    struct stat status;
    if (!look(status)) {
      if (errno != ENOENT || !is_last) return false;
      place_.layer = Layer::kNothing;
      note_hidden();
      return true;
    }
    if (S_ISLNK(status.st_mode) && (!is_last || follows || (wants_folder && !is_new))) {
      if (++links_ > kMaxLinks) return refuse(ELOOP);
      const bool is_private = (seen_[depth_] & kHasPrivate) != 0;
      if (!follow(is_private ? place_.full : place_.logical, rest, end)) return false;
      next = rest;
      if (*rest == '/') {
        while (depth_ > 0) go_up();
      } else {
        go_up();
      }
      continue;
    }
    place_.mode = status.st_mode;
    next = end;
  }
  if (wants_folder && !S_ISDIR(place_.mode) && !S_ISLNK(place_.mode)) return refuse(ENOTDIR);
  finish();
  return true;
}

// --- Copies

void make_like(const char* path, const struct stat& like) {
  if (like.st_uid != geteuid() || like.st_gid != getegid()) {
    syscall(SYS_fchownat, AT_FDCWD, path, like.st_uid, like.st_gid, AT_SYMLINK_NOFOLLOW, key);
  }
  if (!S_ISLNK(like.st_mode)) {
    // A folder of somebody else's has to hold our files.
    const mode_t ours = S_ISDIR(like.st_mode) && geteuid() != 0 ? 0700 : 0;
    with_key(SYS_fchmodat, AT_FDCWD, path, (like.st_mode & 07777) | ours);
  }
  const timespec times[2] = {like.st_atim, like.st_mtim};
  with_key(SYS_utimensat, AT_FDCWD, path, reinterpret_cast<long>(times), AT_SYMLINK_NOFOLLOW);
}

bool make_folders(Place& place) {
  const int error = errno;
  __atomic_store_n(&shared->has_redirected, 1u, __ATOMIC_RELEASE);
  char* const last = strrchr(place.full, '/');
  *last = '\0';
  const bool are_there = is_there(place.full);
  *last = '/';
  if (are_there) return true;
  for (char* slash = strchr(place.logical + 1, '/'); slash != nullptr;
       slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    struct stat like;
    const bool is_made = syscall(SYS_mkdirat, AT_FDCWD, place.full, 0700) == 0;
    const bool is_failed = !is_made && errno != EEXIST;
    if (is_made && look_at(place.logical, like)) make_like(place.full, like);
    *slash = '/';
    if (is_failed) return false;
  }
  errno = error;
  return true;
}

bool copy_content(int from, int to, uint64_t bytes) {
  if (bytes == 0 || ioctl(to, FICLONE, from) == 0) return true;
  if (bytes > kMaxCopiedBytes) return refuse(ENOSPC);
  constexpr size_t kPart = size_t{1} << 30;
  while (true) {
    const long copied = syscall(SYS_copy_file_range, from, nullptr, to, nullptr, kPart, 0);
    if (copied == 0) return true;
    if (copied < 0) break;
  }
  if (errno == ENOSPC || errno == EDQUOT) return false;
  // Between these two file systems it cannot be done.
  while (true) {
    const long copied = syscall(SYS_sendfile, to, from, nullptr, kPart);
    if (copied <= 0) return copied == 0;
  }
}

using Unnamed = char[sizeof unnamed_folder + 32];
void name_new(Unnamed& path) {
  static unsigned count;
  snprintf(path, sizeof path, "%s/%ld.%u", unnamed_folder, syscall(SYS_gettid),
           __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
}

bool copy_file(Place& place, const struct stat& like, bool has_content) {
  Unnamed made;
  name_new(made);
  syscall(SYS_unlinkat, AT_FDCWD, made, 0);  // of a process that was killed
  const int to = open_file(made, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (to < 0) return false;
  bool is_made = true;
  if (has_content) {
    const int from = open_file(place.path(), O_RDONLY | O_NOFOLLOW);
    is_made = from >= 0 && copy_content(from, to, static_cast<uint64_t>(like.st_size));
    const int error = errno;
    if (from >= 0) close(from);
    errno = error;
  }
  const int error = errno;
  close(to);
  if (is_made) {
    make_like(made, like);
    // Another process may have been first.
    is_made = syscall(SYS_renameat2, AT_FDCWD, made, AT_FDCWD, place.full, RENAME_NOREPLACE) == 0;
    if (is_made || errno == EEXIST) {
      if (!is_made) syscall(SYS_unlinkat, AT_FDCWD, made, 0);
      errno = error;
      return true;
    }
    return false;
  }
  syscall(SYS_unlinkat, AT_FDCWD, made, 0);
  return refuse(error);
}

__attribute__((noinline)) bool copy_link(Place& place, const struct stat& like) {
  char target[kPathBytes];
  const long length = syscall(SYS_readlinkat, AT_FDCWD, place.path(), target, sizeof target - 1);
  if (length < 0) return false;
  target[length] = '\0';
  if (syscall(SYS_symlinkat, target, AT_FDCWD, place.full) != 0) return errno == EEXIST;
  make_like(place.full, like);
  return true;
}

bool copy_one(Place& place, const struct stat& like, bool has_content) {
  if (S_ISREG(like.st_mode)) return copy_file(place, like, has_content);
  if (S_ISLNK(like.st_mode)) return copy_link(place, like);
  if (S_ISDIR(like.st_mode)) {
    if (syscall(SYS_mkdirat, AT_FDCWD, place.full, 0700) != 0) return errno == EEXIST;
    make_like(place.full, like);
    return true;
  }
  return refuse(EXDEV);  // a FIFO, a socket, a device
}

struct Entry {  // as the kernel has it
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};
bool is_dots(const char* name) {
  return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

// Calls with the name of each entry until that returns false, and returns whether it never did.
// Returns false, too, where the folder cannot be read.
template <typename Function>
bool for_each_entry(const char* path, Function&& function) {
  const int folder = open_file(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (folder < 0) return false;
  alignas(Entry) char buffer[1536];
  bool goes_on = true;
  while (goes_on) {
    const long bytes = syscall(SYS_getdents64, folder, buffer, sizeof buffer);
    if (bytes <= 0) {
      goes_on = bytes == 0;
      break;
    }
    for (long at = 0; at < bytes && goes_on;) {
      const auto* const entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->length;
      if (!is_dots(entry->name)) goes_on = function(entry->name);
    }
  }
  const int error = errno;
  close(folder);
  errno = error;
  return goes_on;
}

struct Budget {
  int entries = kMaxCopiedEntries;
  uint64_t bytes = kMaxCopiedBytes;
};

// Copies what is still missing of a real folder that is seen, with all that is in it.
bool copy_folder(Place& place, Budget& budget, int depth) {
  if (depth > kMaxCopiedDepth) return refuse(ENOSPC);
  const size_t length = strlen(place.full);
  const bool is_done = for_each_entry(place.path(), [&](const char* name) {
    const size_t name_length = strlen(name);
    if (length + name_length + 2 > sizeof place.full) return refuse(ENAMETOOLONG);
    place.full[length] = '/';
    memcpy(place.full + length + 1, name, name_length + 1);
    struct stat real, own;
    if (was_removed(place.logical) || !look_at(place.logical, real)) return true;
    const bool is_private = look_at(place.full, own);
    if (is_private && !(S_ISDIR(own.st_mode) && S_ISDIR(real.st_mode))) return true;
    const uint64_t bytes = S_ISREG(real.st_mode) ? static_cast<uint64_t>(real.st_size) : 0;
    if (--budget.entries < 0 || bytes > budget.bytes) return refuse(ENOSPC);
    budget.bytes -= bytes;
    if (!is_private && !copy_one(place, real, /*has_content=*/true)) return false;
    if (!S_ISDIR(real.st_mode) || copy_folder(place, budget, depth + 1)) {
      if (S_ISDIR(real.st_mode) && !is_private) {
        place.full[length + 1 + name_length] = '\0';
        make_like(place.full, real);  // its time again
      }
      return true;
    }
    return false;
  });
  place.full[length] = '\0';
  return is_done;
}

// Makes a real thing that is seen a private one.
bool copy_up(Place& place, bool has_content) {
  if (place.layer == Layer::kPrivate) return true;
  struct stat like;
  if (!look_at(place.path(), like) || !make_folders(place)) return false;
  if (place.layer == Layer::kReal && !copy_one(place, like, has_content)) return false;
  if (S_ISDIR(like.st_mode)) {
    Budget budget;
    if (!copy_folder(place, budget, 0)) return false;
  }
  place.layer = Layer::kPrivate;
  return true;
}

// --- What a bare program may do

bool has_real(const Place& place) { return !place.hides_real && is_there(place.path()); }

// Whether an entry may be made in, or taken from, the folder of this place. Private folders are
// the kernel's to decide on.
bool may_change_folder(Place& place, bool removes = false) {
  char* const last = strrchr(place.logical, '/');
  if (last == nullptr) return refuse(EBUSY);  // the root
  char* const begin = last == place.logical ? last + 1 : last;
  const char kept = *begin;
  *begin = '\0';
  struct stat folder;
  const bool is_real =
      !place.folder_hides_real && look_at(place.logical, folder) && S_ISDIR(folder.st_mode);
  const bool may = !is_real || may_access(place.logical, W_OK | X_OK);
  *begin = kept;
  if (!may) return false;
  struct stat own;
  if (removes && is_real && (folder.st_mode & S_ISVTX) != 0 && geteuid() != 0 &&
      folder.st_uid != geteuid() && look_at(place.kernel_path(), own) && own.st_uid != geteuid())
    return refuse(EPERM);
  return true;
}

bool is_empty_folder(Place& place) {
  if (place.layer != Layer::kReal && !for_each_entry(place.full, [](const char*) { return false; }))
    return false;
  if (place.layer == Layer::kPrivate) return true;
  return for_each_entry(place.path(),
                        [&](const char* name) { return !shows_real_entry(place.path(), name); });
}

bool is_kernels(const Place& place) {
  return place.layer == Layer::kOutside || place.layer == Layer::kAsGiven;
}

// The arguments of a call that the kernel is to be asked as it was, or nearly.
struct Arguments {
  int folder;
  const char* path;
};
Arguments kernel_arguments(const Place& place, int folder, const char* path) {
  if (place.layer == Layer::kAsGiven) return {folder, path};
  return {AT_FDCWD, place.kernel_path()};
}

int note_failed(const char* call, int folder, const char* path) {
  note_failure(call, folder, path);
  return -1;
}

// Whether the file, or the folder that it is in, can be written but for the kernel's rules.
__attribute__((noinline)) bool is_ours(int folder, const char* path, bool changes_folder) {
  if (!changes_folder)
    return syscall(SYS_faccessat2, folder, path, W_OK, AT_EACCESS) == 0 || errno == ENOENT;
  char parent[kPathBytes];
  const char* const last = strrchr(path, '/');
  const auto length = last == nullptr ? 0 : static_cast<size_t>(last - path);
  if (length >= sizeof parent) return false;
  memcpy(parent, path, length);
  memcpy(parent + length, "/.", 3);
  const char* const asked = last == nullptr ? "." : parent;
  return syscall(SYS_faccessat2, folder, asked, W_OK | X_OK, AT_EACCESS) == 0;
}

// After the kernel was asked to change something.
int asked(long result, const char* call, const Place& place, int folder, const char* path,
          bool changes_folder = true) {
  if (result >= 0) return static_cast<int>(result);
  const int error = errno;
  const bool is_of_rules = error == EACCES || error == EPERM || error == EXDEV;
  const bool is_real = place.layer == Layer::kAsGiven || place.layer == Layer::kReal;
  if (is_of_rules && is_real && is_ours(folder, path, changes_folder))
    note_error(call, error, folder, path);
  errno = error;
  return note_failed(call, folder, path);
}

// Reads a file of the private folder, at most `bytes`. Returns how many; negative: it is not there.
long read_own(const char* name, void* data, size_t bytes) {
  char path[kRootBytes + 32];
  snprintf(path, sizeof path, "%s/%s", own_folder, name);
  const int file = open_file(path, O_RDONLY);
  if (file < 0) return -1;
  const long count = syscall(SYS_read, file, data, bytes);
  close(file);
  return count;
}

// Writes the path that the kernel has for a folder.
bool canonical_folder(const char* folder, char* result, size_t bytes) {
  const int file = open_file(folder, O_PATH | O_DIRECTORY);
  if (file < 0) return false;
  char path[kPathBytes];
  const bool has_path = path_of_descriptor(file, path) && strlen(path) < bytes;
  if (has_path) memcpy(result, path, strlen(path) + 1);
  close(file);
  return has_path;
}

bool map_removed_filter() {
  char path[kRootBytes + 32];
  snprintf(path, sizeof path, "%s/%s", own_folder, prediction::kRemovedFilter);
  const int filter = open_file(path, O_RDWR);
  if (filter < 0) return false;
  static_assert(sizeof(Shared) <= prediction::kRemovedFilterBytes);
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, filter, 0);
  close(filter);
  shared = static_cast<Shared*>(memory);
  return memory != MAP_FAILED;
}

}  // namespace

bool begin_to_redirect(const char* folder, const char* notes) {
  if (*folder != '/' || !canonical_folder(folder, own_folder, sizeof own_folder) ||
      read_own(prediction::kAttributeKey, &key, sizeof key) != sizeof key ||
      read_own(prediction::kAllowedFolders, allowed_folders, sizeof allowed_folders - 1) < 0 ||
      !map_removed_filter())
    return false;
  if (!canonical_folder(notes, measured_folder, sizeof measured_folder)) return false;
  *strrchr(measured_folder, '/') = '\0';
  snprintf(removed_folder, sizeof removed_folder, "%s/%s", own_folder, prediction::kRemovedPaths);
  snprintf(unnamed_folder, sizeof unnamed_folder, "%s/%s", own_folder, prediction::kUnnamedFiles);
  snprintf(root, sizeof root, "%s/%s", own_folder, prediction::kRedirectedRoot);
  root_length = strlen(root);
  note_without_prefix(root);
  return true;
}

bool is_redirecting() {
  begin_once();
  return root_length != 0;
}
bool has_redirected() {
  return is_redirecting() && __atomic_load_n(&shared->has_redirected, __ATOMIC_ACQUIRE) != 0;
}
const char* redirected_root() { return root; }

bool find_place(int folder, const char* path, bool follows, Place& place, bool is_new) {
  if (path == nullptr) return refuse(EFAULT);
  if (*path == '\0') return refuse(ENOENT);
  const int error = errno;
  char rest[kPathBytes];
  if (strlen(path) >= sizeof rest) return refuse(ENAMETOOLONG);
  if (!absolute_path(folder, path, rest)) {
    errno = error;
    place.layer = Layer::kAsGiven;
    return true;
  }
  // Scripts get the path where the kernel has found them.
  if (is_in(rest, root)) {
    const size_t length = strlen(rest) - root_length;
    memmove(rest, rest + root_length, length + 1);
    if (length == 0) memcpy(rest, "/", 2);
  }
  if (!Walk(place).go(rest, follows, is_new)) {
    // A working folder can be used even where a path to it cannot.
    if (errno != EACCES || *path == '/') return false;
    place.layer = Layer::kAsGiven;
  }
  errno = error;
  return true;
}

bool prepare_to_write(Place& place, int flags) {
  if (is_kernels(place)) return true;
  if ((flags & O_CREAT) != 0 && place.wants_folder) return refuse(EISDIR);
  if (place.layer == Layer::kNothing) {
    if ((flags & O_CREAT) == 0) return refuse(ENOENT);
    if (!may_change_folder(place) || !make_folders(place)) return false;
    place.layer = Layer::kPrivate;
    return true;
  }
  if ((flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return refuse(EEXIST);
  if (S_ISDIR(place.mode)) return refuse(EISDIR);
  if (S_ISLNK(place.mode)) return refuse(ELOOP);
  if (place.layer == Layer::kPrivate || !S_ISREG(place.mode)) return true;
  const bool reads = (flags & O_ACCMODE) == O_RDWR || (flags & O_ACCMODE) == O_RDONLY;
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0;
  if (!may_access(place.path(), (reads ? R_OK : 0) | (writes ? W_OK : 0))) return false;
  return !writes || copy_up(place, (flags & O_TRUNC) == 0);
}

bool prepare_new(int folder, const char* path, Place& place, bool is_folder) {
  if (!find_place(folder, path, /*follows=*/false, place, /*is_new=*/true))
    return errno == ENOTDIR && place.wants_folder && is_folder ? refuse(EEXIST) : false;
  if (is_kernels(place)) return true;
  if (place.layer != Layer::kNothing) return refuse(EEXIST);
  if (place.wants_folder && !is_folder) return refuse(ENOENT);
  if (!may_change_folder(place) || !make_folders(place)) return false;
  place.layer = Layer::kPrivate;
  return true;
}

bool shows_real_entry(const char* path, const char* name) {
  Place place;
  memcpy(place.full, root, root_length + 1);
  place.logical = place.full + root_length;
  const int length = snprintf(place.logical, sizeof place.full - root_length, "%s/%s",
                              strcmp(path, "/") == 0 ? "" : path, name);
  if (length >= static_cast<int>(sizeof place.full - root_length)) return true;
  return !was_removed(place.logical) && !is_there(place.full);
}

namespace redirected {

int open(int folder, const char* path, int flags, mode_t mode) {
  Place place;
  const bool is_new = (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0;
  const bool follows = (flags & O_NOFOLLOW) == 0 && !is_new;
  if (!find_place(folder, path, follows, place)) return -1;
  if ((flags & O_PATH) == 0 && (flags & O_TMPFILE) == O_TMPFILE && !is_kernels(place)) {
    if (place.layer == Layer::kNothing) return fail(ENOENT);
    if (!S_ISDIR(place.mode)) return fail(ENOTDIR);
    if (!may_access(place.kernel_path(), W_OK | X_OK)) return -1;
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, unnamed_folder, flags, mode));
  }
  const bool writes = (flags & O_PATH) == 0 &&
                      ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0);
  if (writes && !prepare_to_write(place, flags)) return note_failed("open", folder, path);
  if (!writes && place.layer == Layer::kNothing) return fail(ENOENT);
  // Reading takes something out of it as well.
  if (place.layer == Layer::kReal && S_ISFIFO(place.mode) && (flags & O_PATH) == 0)
    note_refusal("open: FIFO", folder, path);
  const Arguments arguments = kernel_arguments(place, folder, path);
  const long file = syscall(SYS_openat, arguments.folder, arguments.path, flags, mode);
  if (!writes) return static_cast<int>(file);
  return asked(file, "open", place, folder, path, /*changes_folder=*/false);
}

int rename(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  Place source, target;
  if (!find_place(from_folder, from, /*follows=*/false, source) ||
      !find_place(to_folder, to, /*follows=*/false, target))
    return -1;
  if (is_kernels(source) != is_kernels(target)) return fail(EXDEV);
  if (is_kernels(source)) {
    const Arguments a = kernel_arguments(source, from_folder, from),
                    b = kernel_arguments(target, to_folder, to);
    return asked(syscall(SYS_renameat2, a.folder, a.path, b.folder, b.path, flags), "rename",
                 source, from_folder, from);
  }
  if (source.layer == Layer::kNothing) return fail(ENOENT);
  if ((flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)) != 0) return fail(EINVAL);
  if (!may_change_folder(source, /*removes=*/true) || !may_change_folder(target, /*removes=*/true))
    return -1;
  const bool is_there_already = target.layer != Layer::kNothing;
  const bool exchanges = (flags & RENAME_EXCHANGE) != 0;
  if ((flags & RENAME_NOREPLACE) != 0 && is_there_already) return fail(EEXIST);
  if (exchanges && !is_there_already) return fail(ENOENT);
  if (strcmp(source.path(), target.path()) == 0) return 0;
  if (is_in(target.path(), source.path()) && S_ISDIR(source.mode)) return fail(EINVAL);
  if (!S_ISDIR(source.mode) && target.wants_folder) return fail(ENOTDIR);
  if (is_in(source.path(), target.path())) return fail(ENOTEMPTY);
  if (is_there_already && !exchanges) {
    if (S_ISDIR(source.mode) && !S_ISDIR(target.mode)) return fail(ENOTDIR);
    if (!S_ISDIR(source.mode) && S_ISDIR(target.mode)) return fail(EISDIR);
    if (S_ISDIR(target.mode) && !is_empty_folder(target)) return fail(ENOTEMPTY);
  }
  const bool had_real = has_real(source);
  if (!copy_up(source, /*has_content=*/true)) return note_failed("rename", from_folder, from);
  if (exchanges && !copy_up(target, true)) return note_failed("rename", from_folder, from);
  if (!make_folders(target)) return note_failed("rename", from_folder, from);
  // A real folder must not show through the one that comes here.
  if (S_ISDIR(source.mode) && has_real(target) && !mark_removed(target.path()))
    return note_failed("rename", from_folder, from);
  if (syscall(SYS_renameat2, AT_FDCWD, source.full, AT_FDCWD, target.full, flags) != 0)
    return note_failed("rename", from_folder, from);
  if (had_real && (!exchanges || S_ISDIR(target.mode)) && !mark_removed(source.path()))
    return note_failed("rename", from_folder, from);
  return 0;
}

int link(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  Place source, target;
  const bool follows = (flags & AT_SYMLINK_FOLLOW) != 0;
  if ((flags & AT_EMPTY_PATH) != 0 && from != nullptr && *from == '\0') {
    source.layer = Layer::kAsGiven;
  } else if (!find_place(from_folder, from, follows, source)) {
    return -1;
  }
  if (source.layer == Layer::kNothing) return fail(ENOENT);
  if (!prepare_new(to_folder, to, target)) return -1;
  if (!is_kernels(source)) {
    if (S_ISDIR(source.mode)) return fail(EPERM);
    if (!copy_up(source, /*has_content=*/true)) return note_failed("link", to_folder, to);
    flags = 0;
  }
  const Arguments a = kernel_arguments(source, from_folder, from);
  const Arguments b = kernel_arguments(target, to_folder, to);
  return asked(syscall(SYS_linkat, a.folder, a.path, b.folder, b.path, flags), "link", target,
               to_folder, to);
}

int symlink(const char* target, int folder, const char* path) {
  Place place;
  if (!prepare_new(folder, path, place)) return note_failed("symlink", folder, path);
  const Arguments made = kernel_arguments(place, folder, path);
  return asked(syscall(SYS_symlinkat, target, made.folder, made.path), "symlink", place, folder,
               path);
}

int mkdir(int folder, const char* path, mode_t mode) {
  Place place;
  if (!prepare_new(folder, path, place, /*is_folder=*/true))
    return note_failed("mkdir", folder, path);
  const Arguments made = kernel_arguments(place, folder, path);
  return asked(syscall(SYS_mkdirat, made.folder, made.path, mode), "mkdir", place, folder, path);
}

int mknod(int folder, const char* path, mode_t mode, dev_t device) {
  Place place;
  if (!prepare_new(folder, path, place)) return note_failed("mknod", folder, path);
  const Arguments made = kernel_arguments(place, folder, path);
  return asked(syscall(SYS_mknodat, made.folder, made.path, mode, device), "mknod", place, folder,
               path);
}

namespace {

int remove_place(Place& place, const char* call, int folder, const char* path) {
  const bool is_folder = S_ISDIR(place.mode);
  if (has_real(place) && !mark_removed(place.path())) return note_failed(call, folder, path);
  if (place.layer == Layer::kReal) return 0;
  return static_cast<int>(
      syscall(SYS_unlinkat, AT_FDCWD, place.full, is_folder ? AT_REMOVEDIR : 0));
}

}  // namespace

int unlink(int folder, const char* path) {
  Place place;
  if (!find_place(folder, path, /*follows=*/false, place)) return -1;
  if (is_kernels(place)) {
    const Arguments removed = kernel_arguments(place, folder, path);
    return asked(syscall(SYS_unlinkat, removed.folder, removed.path, 0), "unlink", place, folder,
                 path);
  }
  if (place.layer == Layer::kNothing) return fail(ENOENT);
  if (!may_change_folder(place, /*removes=*/true)) return -1;
  if (S_ISDIR(place.mode)) return fail(EISDIR);
  return remove_place(place, "unlink", folder, path);
}

int rmdir(int folder, const char* path) {
  Place place;
  if (!find_place(folder, path, /*follows=*/false, place)) return -1;
  if (is_kernels(place)) {
    const Arguments removed = kernel_arguments(place, folder, path);
    return asked(syscall(SYS_unlinkat, removed.folder, removed.path, AT_REMOVEDIR), "rmdir", place,
                 folder, path);
  }
  if (place.layer == Layer::kNothing) return fail(ENOENT);
  if (!may_change_folder(place, /*removes=*/true)) return -1;
  if (!S_ISDIR(place.mode)) return fail(ENOTDIR);
  if (!is_empty_folder(place)) return fail(ENOTEMPTY);
  return remove_place(place, "rmdir", folder, path);
}

int truncate(const char* path, off_t bytes) {
  Place place;
  if (!find_place(AT_FDCWD, path, /*follows=*/true, place)) return -1;
  if (!prepare_to_write(place, O_WRONLY | (bytes == 0 ? O_TRUNC : 0)))
    return note_failed("truncate", AT_FDCWD, path);
  const char* const changed = place.layer == Layer::kAsGiven ? path : place.kernel_path();
  return asked(syscall(SYS_truncate, changed, bytes), "truncate", place, AT_FDCWD, path,
               /*changes_folder=*/false);
}

bool prepare_to_bind(const char* path, Place& place, char (&address)[kAddressBytes]) {
  if (!prepare_new(AT_FDCWD, path, place)) {
    note_failure("bind", AT_FDCWD, path);
    return refuse(errno == EEXIST ? EADDRINUSE : errno);
  }
  if (is_kernels(place)) {
    snprintf(address, sizeof address, "%s", place.layer == Layer::kAsGiven ? path : place.path());
    return true;
  }
  snprintf(address, sizeof address, "%s/%016lx", unnamed_folder, hash_of(place.path()));
  syscall(SYS_unlinkat, AT_FDCWD, address, 0);  // of an earlier one
  return true;
}

bool move_bound(const char* path, const char* address, Place& place) {
  if (is_kernels(place)) return true;
  if (syscall(SYS_renameat2, AT_FDCWD, address, AT_FDCWD, place.full, RENAME_NOREPLACE) != 0)
    return refuse(errno == EEXIST ? EADDRINUSE : errno);
  // The kernel goes on calling it by its first path.
  const int error = errno;
  syscall(SYS_symlinkat, path, AT_FDCWD, address);
  errno = error;
  return true;
}

bool given_address(const char* path, char* given, size_t bytes) {
  if (!is_in(path, unnamed_folder)) return false;
  const int error = errno;
  const long length = syscall(SYS_readlinkat, AT_FDCWD, path, given, bytes);
  errno = error;
  if (length > 0) given[length] = '\0';
  return length > 0;
}

namespace {

// What a descriptor stands for, as far as its attributes may change.
enum class Changes {
  kPrivate,  // nobody else sees it
  kFolder,   // a real folder
  kFile,     // a real file
};
Changes changes_of(int descriptor, struct stat& status) {
  char link[32], path[kRootBytes];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (syscall(SYS_fstat, descriptor, &status) != 0) return Changes::kPrivate;  // EBADF
  path[length > 0 ? length : 0] = '\0';
  const bool is_file = S_ISREG(status.st_mode) || S_ISLNK(status.st_mode);
  if ((!is_file && !S_ISDIR(status.st_mode)) || status.st_nlink == 0 || is_in(path, own_folder) ||
      is_in(path, measured_folder) || is_in(path, "/dev/shm"))
    return Changes::kPrivate;
  return S_ISDIR(status.st_mode) ? Changes::kFolder : Changes::kFile;
}

// Finds what is there and makes a private copy of a real file. A real folder stays as it is.
bool prepare_to_change(const char* call, int folder, const char* path, bool follows, Place& place) {
  if (!find_place(folder, path, follows, place)) return false;
  if (place.layer == Layer::kNothing) return refuse(ENOENT);
  if (place.layer != Layer::kReal || S_ISDIR(place.mode)) return true;
  struct stat status;
  if (look_at(place.path(), status) && geteuid() != 0 && status.st_uid != geteuid())
    return refuse(EPERM);
  if (copy_up(place, /*has_content=*/true)) return true;
  note_failure(call, folder, path);
  return false;
}
bool is_real_folder(const Place& place) {
  return place.layer == Layer::kMerged || place.layer == Layer::kReal;
}
int note_unchanged(const char* call, int descriptor) {
  char path[kPathBytes];
  if (path_of_descriptor(descriptor, path)) note_error(call, EPERM, AT_FDCWD, path);
  return fail(EPERM);
}

}  // namespace

int chmod(int folder, const char* path, mode_t mode, bool follows) {
  Place place;
  struct stat status;
  // Most such calls set what is set already.
  if (find_place(folder, path, follows, place) && place.layer != Layer::kNothing &&
      !is_kernels(place) && look_at(place.kernel_path(), status) &&
      (status.st_mode & 07777) == (mode & 07777))
    return 0;
  if (!prepare_to_change("chmod", folder, path, follows, place)) return -1;
  if (is_real_folder(place)) {
    note_error("chmod", EPERM, folder, path);
    return 0;
  }
  const Arguments changed = kernel_arguments(place, folder, path);
  if (S_ISLNK(place.mode)) return fail(EOPNOTSUPP);
  return static_cast<int>(with_key(SYS_fchmodat, changed.folder, changed.path, mode));
}

int chmod(int descriptor, mode_t mode) {
  struct stat status;
  if (changes_of(descriptor, status) != Changes::kPrivate) {
    if ((status.st_mode & 07777) == (mode & 07777)) return 0;
    return note_unchanged("chmod", descriptor);
  }
  return static_cast<int>(syscall(SYS_fchmod, descriptor, mode, 0L, 0L, 0L, key));
}

int chown(int folder, const char* path, uid_t owner, gid_t group, bool follows) {
  Place place;
  struct stat status;
  const auto is_same = [&] {
    return (owner == static_cast<uid_t>(-1) || owner == status.st_uid) &&
           (group == static_cast<gid_t>(-1) || group == status.st_gid);
  };
  if (find_place(folder, path, follows, place) && place.layer != Layer::kNothing &&
      !is_kernels(place) && look_at(place.kernel_path(), status) && is_same())
    return 0;
  if (!prepare_to_change("chown", folder, path, follows, place)) return -1;
  if (is_real_folder(place)) {
    if (geteuid() != 0) return fail(EPERM);
    note_error("chown", EPERM, folder, path);
    return 0;
  }
  const Arguments changed = kernel_arguments(place, folder, path);
  return static_cast<int>(syscall(SYS_fchownat, changed.folder, changed.path, owner, group,
                                  follows ? 0 : AT_SYMLINK_NOFOLLOW, key));
}

int chown(int descriptor, uid_t owner, gid_t group) {
  struct stat status;
  if (changes_of(descriptor, status) != Changes::kPrivate) {
    if ((owner == static_cast<uid_t>(-1) || owner == status.st_uid) &&
        (group == static_cast<gid_t>(-1) || group == status.st_gid))
      return 0;
    return note_unchanged("chown", descriptor);
  }
  return static_cast<int>(syscall(SYS_fchown, descriptor, owner, group, 0L, 0L, key));
}

int set_times(int folder, const char* path, const timespec* times, bool follows) {
  Place place;
  if (!prepare_to_change("utime", folder, path, follows, place)) return -1;
  if (is_real_folder(place)) return 0;  // of a folder nobody relies on them
  const Arguments changed = kernel_arguments(place, folder, path);
  return static_cast<int>(with_key(SYS_utimensat, changed.folder, changed.path,
                                   reinterpret_cast<long>(times),
                                   follows ? 0 : AT_SYMLINK_NOFOLLOW));
}

int set_times(int descriptor, const timespec* times) {
  struct stat status;
  switch (changes_of(descriptor, status)) {
    case Changes::kPrivate:
      break;
    case Changes::kFolder:
      return 0;
    case Changes::kFile:
      return note_unchanged("utime", descriptor);
  }
  return static_cast<int>(
      with_key(SYS_utimensat, descriptor, nullptr, reinterpret_cast<long>(times)));
}

int set_attribute(const char* path, const char* name, const void* value, size_t size, int flags,
                  bool follows) {
  Place place;
  if (!prepare_to_change("setxattr", AT_FDCWD, path, follows, place)) return -1;
  if (is_real_folder(place)) {
    note_error("setxattr", EPERM, AT_FDCWD, path);
    return fail(EOPNOTSUPP);
  }
  const char* const changed = place.layer == Layer::kAsGiven ? path : place.kernel_path();
  return static_cast<int>(syscall(SYS_lsetxattr, changed, name, value, size, flags, key));
}

int set_attribute(int descriptor, const char* name, const void* value, size_t size, int flags) {
  struct stat status;
  if (changes_of(descriptor, status) != Changes::kPrivate)
    return note_unchanged("setxattr", descriptor);
  return static_cast<int>(syscall(SYS_fsetxattr, descriptor, name, value, size, flags, key));
}

int remove_attribute(const char* path, const char* name, bool follows) {
  Place place;
  if (!prepare_to_change("removexattr", AT_FDCWD, path, follows, place)) return -1;
  if (is_real_folder(place)) {
    note_error("removexattr", EPERM, AT_FDCWD, path);
    return fail(EOPNOTSUPP);
  }
  const char* const changed = place.layer == Layer::kAsGiven ? path : place.kernel_path();
  return static_cast<int>(syscall(SYS_lremovexattr, changed, name, 0L, 0L, 0L, key));
}

int remove_attribute(int descriptor, const char* name) {
  struct stat status;
  if (changes_of(descriptor, status) != Changes::kPrivate)
    return note_unchanged("removexattr", descriptor);
  return static_cast<int>(syscall(SYS_fremovexattr, descriptor, name, 0L, 0L, 0L, key));
}

}  // namespace redirected

}  // namespace memledger::inside
