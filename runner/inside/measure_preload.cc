// libmemledger_measure.so: LD_PRELOAD brings it into a program that `memledger dry-run` measures,
// and into what that starts. It writes down which files are opened for writing, keeps those that
// were there before (kept_files.h).
//
// Links with neither LibTorch nor the C++ library, so that it can go into anything. What stands
// before a function of the C library leaves errno as it was, allocates nothing, takes no lock and
// keeps no file open: the program may be in a signal handler, or in a child of vfork.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "prediction/measure_variables.h"
#include "runner/inside/kept_files.h"
#include "runner/inside/real_function.h"

namespace {

using memledger::inside::RealFunction;
namespace prediction = memledger::prediction;

constexpr size_t kPathBytes = 4096;

// Where to write the paths to; empty: nowhere. Set before main, and in children of fork.
char folder[kPathBytes];
char scratch[kPathBytes];  // of all runs of the dry run
char written_files[kPathBytes + sizeof prediction::kWrittenFiles];
char cache_folder[kPathBytes];

bool is_in(const char* path, const char* outer) {
  const size_t length = strlen(outer);
  return length > 0 && strncmp(path, outer, length) == 0 && path[length] == '/';
}

// What nobody would miss.
bool is_of_no_interest(const char* path) {
  return path[0] != '/' || is_in(path, folder) || is_in(path, scratch) || is_in(path, "/dev") ||
         is_in(path, "/proc") || is_in(path, "/sys") || is_in(path, cache_folder) ||
         strstr(path, "/__pycache__/") != nullptr;
}

__attribute__((constructor)) void begin() {
  const char* const measured = secure_getenv(prediction::kMeasureVariable);
  if (measured == nullptr || *measured != '/' || strlen(measured) >= sizeof folder) return;
  const char* const cache = secure_getenv("XDG_CACHE_HOME");
  const char* const home = secure_getenv("HOME");
  if (cache != nullptr && *cache == '/') {
    snprintf(cache_folder, sizeof cache_folder, "%s", cache);
  } else if (home != nullptr && *home == '/' && home[1] != '\0') {
    snprintf(cache_folder, sizeof cache_folder, "%s/.cache", home);
  }
  memcpy(folder, measured, strlen(measured) + 1);
  snprintf(written_files, sizeof written_files, "%s/%s", folder, prediction::kWrittenFiles);
  memcpy(scratch, folder, sizeof scratch);
  *strrchr(scratch, '/') = '\0';
  if (!memledger::inside::begin_to_keep_files(scratch, &is_of_no_interest)) scratch[0] = '\0';
}

// Returns false for a path that was noted before. Two with one hash are told apart by luck alone,
// with 64 bits; where the table is full a path is noted again, and the reader takes it once.
bool is_new(const char* path) {
  constexpr size_t kPlaces = 1024;
  static uint64_t seen[kPlaces];
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char* at = path; *at != '\0'; ++at)
    hash = (hash ^ static_cast<unsigned char>(*at)) * 1099511628211u;
  if (hash == 0) hash = 1;
  for (size_t i = 0; i < 8; ++i) {
    uint64_t* const place = &seen[(hash + i) % kPlaces];
    uint64_t found = 0;
    if (__atomic_compare_exchange_n(place, &found, hash, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return true;
    if (found == hash) return false;
  }
  return true;
}

void append(const char* path, size_t bytes) {
  const int file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, written_files,
                                            O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, path, bytes);
  close(file);
}

// Notes the path of an open file, links followed.
void note(int descriptor) {
  struct stat status;
  if (descriptor < 0 || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_nlink == 0)
    return;
  char link[32], path[kPathBytes + 1];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, kPathBytes);
  if (length <= 0 || length >= static_cast<ssize_t>(kPathBytes)) return;
  path[length] = '\0';
  if (!is_of_no_interest(path) && is_new(path)) append(path, static_cast<size_t>(length) + 1);
}

class KeptErrno {
 public:
  KeptErrno() : error_(errno) {}
  ~KeptErrno() { errno = error_; }
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;

 private:
  const int error_;
};

bool is_on() { return folder[0] != '\0'; }

int opened(int descriptor, int flags) {
  if (descriptor < 0 || !is_on() || (flags & O_ACCMODE) == O_RDONLY || (flags & O_PATH) != 0 ||
      (flags & O_TMPFILE) == O_TMPFILE)
    return descriptor;
  const KeptErrno kept;
  note(descriptor);
  return descriptor;
}

FILE* opened(FILE* file, const char* mode) {
  if (file == nullptr || !is_on() || mode == nullptr || strpbrk(mode, "wa+") == nullptr)
    return file;
  const KeptErrno kept;
  note(fileno(file));
  return file;
}

void note_path(int folder_of_path, const char* path) {
  if (!is_on()) return;
  const KeptErrno kept;
  const int file = static_cast<int>(
      syscall(SYS_openat, folder_of_path, path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0));
  if (file < 0) return;
  note(file);
  close(file);
}

using memledger::inside::keep_before_removal;
using memledger::inside::keep_before_rename;

// Returns false, and sets errno, where the file must not be opened.
bool may_open(int folder_of_path, const char* path, int flags) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0;
  const bool opens_file = (flags & O_PATH) == 0 && (flags & O_TMPFILE) != O_TMPFILE;
  return !writes || !opens_file ||
         memledger::inside::keep_before_write(folder_of_path, path, flags);
}

bool may_open(const char* path, const char* mode) {
  if (mode == nullptr || strpbrk(mode, "wa+") == nullptr) return true;
  return may_open(AT_FDCWD, path,
                  O_WRONLY | (mode[0] == 'w' ? O_TRUNC : 0) | (mode[0] == 'r' ? 0 : O_CREAT) |
                      (strchr(mode, 'x') != nullptr ? O_CREAT | O_EXCL : 0));
}

void note_renamed(int folder_of_path, const char* path) {
  note_path(folder_of_path, path);
  memledger::inside::note_renamed(folder_of_path, path);
}

mode_t mode_of(int flags, va_list arguments) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

#define MEMLEDGER_IN_FRONT __attribute__((visibility("default")))

#define MEMLEDGER_OPEN(name)                                         \
  MEMLEDGER_IN_FRONT int name(const char* path, int flags, ...) {    \
    static RealFunction<int (*)(const char*, int, ...)> real(#name); \
    va_list arguments;                                               \
    va_start(arguments, flags);                                      \
    const mode_t mode = mode_of(flags, arguments);                   \
    va_end(arguments);                                               \
    if (!may_open(AT_FDCWD, path, flags)) return -1;                 \
    return opened(real.get()(path, flags, mode), flags);             \
  }

#define MEMLEDGER_OPENAT(name)                                            \
  MEMLEDGER_IN_FRONT int name(int at, const char* path, int flags, ...) { \
    static RealFunction<int (*)(int, const char*, int, ...)> real(#name); \
    va_list arguments;                                                    \
    va_start(arguments, flags);                                           \
    const mode_t mode = mode_of(flags, arguments);                        \
    va_end(arguments);                                                    \
    if (!may_open(at, path, flags)) return -1;                            \
    return opened(real.get()(at, path, flags, mode), flags);              \
  }

#define MEMLEDGER_CREAT(name)                                               \
  MEMLEDGER_IN_FRONT int name(const char* path, mode_t mode) {              \
    static RealFunction<int (*)(const char*, mode_t)> real(#name);          \
    if (!may_open(AT_FDCWD, path, O_WRONLY | O_TRUNC | O_CREAT)) return -1; \
    return opened(real.get()(path, mode), O_WRONLY);                        \
  }

#define MEMLEDGER_FOPEN(name)                                             \
  MEMLEDGER_IN_FRONT FILE* name(const char* path, const char* mode) {     \
    static RealFunction<FILE* (*)(const char*, const char*)> real(#name); \
    if (!may_open(path, mode)) return nullptr;                            \
    return opened(real.get()(path, mode), mode);                          \
  }

#define MEMLEDGER_FREOPEN(name)                                                   \
  MEMLEDGER_IN_FRONT FILE* name(const char* path, const char* mode, FILE* file) { \
    static RealFunction<FILE* (*)(const char*, const char*, FILE*)> real(#name);  \
    if (path != nullptr && !may_open(path, mode)) return nullptr;                 \
    return opened(real.get()(path, mode, file), mode);                            \
  }

MEMLEDGER_OPEN(open)
MEMLEDGER_OPEN(open64)
MEMLEDGER_OPENAT(openat)
MEMLEDGER_OPENAT(openat64)
MEMLEDGER_CREAT(creat)
MEMLEDGER_CREAT(creat64)
MEMLEDGER_FOPEN(fopen)
MEMLEDGER_FOPEN(fopen64)
MEMLEDGER_FREOPEN(freopen)
MEMLEDGER_FREOPEN(freopen64)

// What open() and openat() are where the C library checks its callers (_FORTIFY_SOURCE).
MEMLEDGER_IN_FRONT int __open_2(const char* path, int flags) {
  static RealFunction<int (*)(const char*, int)> real("__open_2");
  if (!may_open(AT_FDCWD, path, flags)) return -1;
  return opened(real.get()(path, flags), flags);
}
MEMLEDGER_IN_FRONT int __open64_2(const char* path, int flags) {
  static RealFunction<int (*)(const char*, int)> real("__open64_2");
  if (!may_open(AT_FDCWD, path, flags)) return -1;
  return opened(real.get()(path, flags), flags);
}
MEMLEDGER_IN_FRONT int __openat_2(int at, const char* path, int flags) {
  static RealFunction<int (*)(int, const char*, int)> real("__openat_2");
  if (!may_open(at, path, flags)) return -1;
  return opened(real.get()(at, path, flags), flags);
}
MEMLEDGER_IN_FRONT int __openat64_2(int at, const char* path, int flags) {
  static RealFunction<int (*)(int, const char*, int)> real("__openat64_2");
  if (!may_open(at, path, flags)) return -1;
  return opened(real.get()(at, path, flags), flags);
}

MEMLEDGER_IN_FRONT int rename(const char* from, const char* to) {
  static RealFunction<int (*)(const char*, const char*)> real("rename");
  if (!keep_before_rename(AT_FDCWD, from, AT_FDCWD, to)) return -1;
  const int result = real.get()(from, to);
  if (result == 0) note_renamed(AT_FDCWD, to);
  return result;
}
MEMLEDGER_IN_FRONT int renameat(int from_at, const char* from, int to_at, const char* to) {
  static RealFunction<int (*)(int, const char*, int, const char*)> real("renameat");
  if (!keep_before_rename(from_at, from, to_at, to)) return -1;
  const int result = real.get()(from_at, from, to_at, to);
  if (result == 0) note_renamed(to_at, to);
  return result;
}
MEMLEDGER_IN_FRONT int renameat2(int from_at, const char* from, int to_at, const char* to,
                                 unsigned flags) {
  static RealFunction<int (*)(int, const char*, int, const char*, unsigned)> real("renameat2");
  if (!keep_before_rename(from_at, from, to_at, to)) return -1;
  const int result = real.get()(from_at, from, to_at, to, flags);
  if (result == 0) note_renamed(to_at, to);
  return result;
}

MEMLEDGER_IN_FRONT int unlink(const char* path) {
  static RealFunction<int (*)(const char*)> real("unlink");
  return keep_before_removal(AT_FDCWD, path) ? real.get()(path) : -1;
}
MEMLEDGER_IN_FRONT int unlinkat(int at, const char* path, int flags) {
  static RealFunction<int (*)(int, const char*, int)> real("unlinkat");
  const bool may_remove = (flags & AT_REMOVEDIR) != 0 || keep_before_removal(at, path);
  return may_remove ? real.get()(at, path, flags) : -1;
}
MEMLEDGER_IN_FRONT int remove(const char* path) {
  static RealFunction<int (*)(const char*)> real("remove");
  return keep_before_removal(AT_FDCWD, path) ? real.get()(path) : -1;
}

#define MEMLEDGER_TRUNCATE(name, offset)                                             \
  MEMLEDGER_IN_FRONT int name(const char* path, offset bytes) {                      \
    static RealFunction<int (*)(const char*, offset)> real(#name);                   \
    if (!may_open(AT_FDCWD, path, O_WRONLY | (bytes == 0 ? O_TRUNC : 0))) return -1; \
    const int result = real.get()(path, bytes);                                      \
    if (result == 0) note_path(AT_FDCWD, path);                                      \
    return result;                                                                   \
  }

MEMLEDGER_TRUNCATE(truncate, off_t)
MEMLEDGER_TRUNCATE(truncate64, off64_t)

}  // extern "C"
