#include "runner/inside/noted_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "prediction/measure_variables.h"
#include "runner/inside/quiet_write.h"
#include "runner/inside/unreal_files.h"

// System calls instead of functions that libmemledger_measure.so has itself.

namespace memledger::inside {
namespace {

// Where to write to; empty: nowhere. Set before main, and in children of fork.
char folder[kPathBytes];
char written_files[kPathBytes + sizeof prediction::kWrittenFiles];
char refused_files[kPathBytes + sizeof prediction::kRefusedFiles];
char cache_folder[kPathBytes];
const char* private_prefix;  // null: there is none
struct timespec began;       // the run
bool is_namespaces_root;

bool is_in(const char* path, const char* outer) {
  const size_t length = strlen(outer);
  return length > 0 && strncmp(path, outer, length) == 0 && path[length] == '/';
}

// What nobody would miss.
bool is_of_no_interest(const char* path) {
  return path[0] != '/' || is_in(path, folder) || is_in(path, "/dev") || is_in(path, "/proc") ||
         is_in(path, "/sys") || is_in(path, cache_folder) ||
         strstr(path, "/__pycache__/") != nullptr;
}

uint64_t hash_of(const char* text, uint64_t hash) {  // FNV-1a
  for (const char* at = text; *at != '\0'; ++at)
    hash = (hash ^ static_cast<unsigned char>(*at)) * 1099511628211u;
  return hash;
}

constexpr size_t kPlaces = 1024;
constexpr size_t kPlacesOfOne = 8;
uint64_t seen[kPlaces];

uint64_t key_of(const char* what, const char* path) {
  const uint64_t hash = hash_of(path, hash_of(what, 14695981039346656037u));
  return hash == 0 ? 1 : hash;
}

// Returns false for what was noted before. Two with one hash are told apart by luck alone, with 64
// bits; where the table is full a path is noted again, and the reader takes it once.
bool is_new(const char* what, const char* path) {
  const uint64_t hash = key_of(what, path);
  for (size_t i = 0; i < kPlacesOfOne; ++i) {
    uint64_t* const place = &seen[(hash + i) % kPlaces];
    uint64_t found = 0;
    if (__atomic_compare_exchange_n(place, &found, hash, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return true;
    if (found == hash) return false;
  }
  return true;
}

// It could not be noted: the next time it is new again.
void forget(const char* what, const char* path) {
  const uint64_t hash = key_of(what, path);
  for (size_t i = 0; i < kPlacesOfOne; ++i) {
    uint64_t found = hash;
    __atomic_compare_exchange_n(&seen[(hash + i) % kPlaces], &found, 0, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
  }
}

void append(const char* file_path, const iovec* parts, int count) {
  const int file = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, file_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (file < 0) return;
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  if (may_grow(file, bytes)) write_quietly(file, parts, count);
  close(file);
}

void note_written_path(const char* path) {
  if (is_of_no_interest(path) || !is_new("", path)) return;
  if (folder[0] == '\0') {
    if (!list_file(path)) forget("", path);
    return;
  }
  const iovec record = {const_cast<char*>(path), strlen(path) + 1};
  append(written_files, &record, 1);
}

// What the kernel shows of other processes is refused to many.
bool is_of_processes(const char* what, const char* path) {
  return is_in(path, "/proc") &&
         (strstr(what, ": EACCES") != nullptr || strstr(what, ": EPERM") != nullptr);
}

void note_refused_path(const char* what, const char* path) {
  if (path[0] != '/' || is_in(path, folder) || is_of_processes(what, path) || !is_new(what, path))
    return;
  const iovec record[2] = {{const_cast<char*>(what), strlen(what) + 1},
                           {const_cast<char*>(path), strlen(path) + 1}};
  append(refused_files, record, 2);
}

struct ErrorName {
  int error;
  const char* name;
};
constexpr ErrorName kErrorNames[] = {
    {EXDEV, "EXDEV"},
    {EOVERFLOW, "EOVERFLOW"},
    {EROFS, "EROFS"},
    {ENOSPC, "ENOSPC"},
    {EINVAL, "EINVAL"},
    {EBUSY, "EBUSY"},
    {EDQUOT, "EDQUOT"},
    {EIO, "EIO"},
    {ENOSYS, "ENOSYS"},
    {EACCES, "EACCES"},
    {EPERM, "EPERM"},
    {EFBIG, "EFBIG"},
    {ECONNREFUSED, "ECONNREFUSED"},
};

const char* name_of(int error) {
  for (const ErrorName& known : kErrorNames) {
    if (known.error == error) return known.name;
  }
  return "error";
}

// What a program alone with its files meets as well, like EACCES, is no reason to doubt a run.
// Where writes are redirected, EROFS is the real file system's.
bool comes_of_holding(int error, Errors errors) {
  if (is_namespaces_root && errors != Errors::kOfSpace && (error == EACCES || error == EPERM))
    return true;
  if (errors == Errors::kOfOwners)
    return error == EOVERFLOW || (is_namespaces_root && error == EINVAL);
  // A redirected run has a limit for each file.
  if (error == EFBIG && private_prefix != nullptr) return true;
  if (errors == Errors::kOfSpace) return error == ENOSPC || error == EDQUOT;
  return error == EXDEV || error == EOVERFLOW || error == ENOSPC ||
         ((error == EROFS || error == EBUSY) && private_prefix == nullptr) || error == EDQUOT ||
         error == EIO || error == ENOSYS;
}

using What = char[64];

bool is_before(const statx_timestamp& time, const struct timespec& other) {
  return time.tv_sec != other.tv_sec ? time.tv_sec < other.tv_sec
                                     : time.tv_nsec < static_cast<uint32_t>(other.tv_nsec);
}

// Whether root is the only user of this namespace, as PrivateRoot makes it.
bool knows_root_alone() {
  const int file = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, "/proc/self/uid_map", O_RDONLY | O_CLOEXEC, 0));
  if (file < 0) return false;
  char map[64] = "";
  const long length = syscall(SYS_read, file, map, sizeof map - 1);
  close(file);
  if (length <= 0) return false;
  char* at = map;
  const unsigned long inside = strtoul(at, &at, 10), outside = strtoul(at, &at, 10);
  return inside == 0 && outside == 0 && strtoul(at, &at, 10) == 1;
}

// The folder was made for this run. Not all file systems know when.
struct timespec birth_of_folder() {
  struct statx status;
  struct timespec birth;
  clock_gettime(CLOCK_REALTIME, &birth);
  if (syscall(SYS_statx, AT_FDCWD, folder, 0, STATX_BTIME, &status) == 0 &&
      (status.stx_mask & STATX_BTIME) != 0) {
    birth.tv_sec = status.stx_btime.tv_sec;
    birth.tv_nsec = status.stx_btime.tv_nsec;
  }
  return birth;
}

}  // namespace

KeptErrno::KeptErrno() : error_(errno) {}
KeptErrno::~KeptErrno() { errno = error_; }

void begin_to_leave_out_caches() {
  const char* const cache = secure_getenv("XDG_CACHE_HOME");
  const char* const home = secure_getenv("HOME");
  if (cache != nullptr && *cache == '/') {
    snprintf(cache_folder, sizeof cache_folder, "%s", cache);
  } else if (home != nullptr && *home == '/' && home[1] != '\0') {
    snprintf(cache_folder, sizeof cache_folder, "%s/.cache", home);
  }
}

void begin_to_note_files(const char* measured) {
  if (*measured != '/' || strlen(measured) >= sizeof folder) return;
  snprintf(written_files, sizeof written_files, "%s/%s", measured, prediction::kWrittenFiles);
  snprintf(refused_files, sizeof refused_files, "%s/%s", measured, prediction::kRefusedFiles);
  memcpy(folder, measured, strlen(measured) + 1);
  began = birth_of_folder();
  is_namespaces_root = geteuid() == 0 && knows_root_alone();
}

bool are_files_noted() {
  begin_once();
  return folder[0] != '\0';
}

bool are_writes_noted() {
  return are_files_noted() ? private_prefix == nullptr : are_files_listed();
}

bool is_root_of_namespace() {
  begin_once();
  return is_namespaces_root;
}

void note_without_prefix(const char* prefix) { private_prefix = prefix; }

bool path_of_descriptor(int descriptor, char result[kPathBytes]) {
  char link[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const long length = syscall(SYS_readlinkat, AT_FDCWD, link, result, kPathBytes);
  if (length <= 0 || length >= static_cast<long>(kPathBytes) || result[0] != '/') return false;
  result[length] = '\0';
  if (private_prefix != nullptr && is_in(result, private_prefix)) {
    const size_t prefix = strlen(private_prefix);
    memmove(result, result + prefix, static_cast<size_t>(length) - prefix + 1);
  }
  return true;
}

bool absolute_path(int folder_of_path, const char* path, char result[kPathBytes]) {
  if (path == nullptr) return false;
  size_t length = 0;
  if (*path != '/') {
    if (folder_of_path == AT_FDCWD) {
      const long bytes = syscall(SYS_getcwd, result, kPathBytes);
      if (bytes <= 0 || result[0] != '/') return false;
      if (private_prefix != nullptr && is_in(result, private_prefix))
        memmove(result, result + strlen(private_prefix),
                strlen(result + strlen(private_prefix)) + 1);
    } else if (!path_of_descriptor(folder_of_path, result)) {
      return false;
    }
    length = strlen(result);
    while (strncmp(path, "./", 2) == 0) path += 2;
    if (strcmp(path, ".") == 0) return true;
    if (result[length - 1] != '/' && length + 1 < kPathBytes) result[length++] = '/';
  }
  const size_t rest = strlen(path);
  if (length + rest >= kPathBytes) return false;
  memcpy(result + length, path, rest + 1);
  return true;
}

void note_written(int descriptor) {
  if (!are_writes_noted()) return;
  const KeptErrno kept;
  struct stat status;
  if (descriptor < 0 || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_nlink == 0)
    return;
  char path[kPathBytes];
  if (path_of_descriptor(descriptor, path)) note_written_path(path);
}

void note_written(int folder_of_path, const char* path) {
  if (!are_writes_noted()) return;
  const KeptErrno kept;
  const int file = static_cast<int>(
      syscall(SYS_openat, folder_of_path, path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0));
  if (file < 0) return;
  note_written(file);
  close(file);
}

void note_refusal(const char* what, int folder_of_path, const char* path) {
  if (!are_files_noted()) return;
  const KeptErrno kept;
  char absolute[kPathBytes];
  if (absolute_path(folder_of_path, path, absolute)) note_refused_path(what, absolute);
}

void note_fifo(int folder_of_path, const char* path) {
  if (!are_files_noted() || path == nullptr) return;
  const KeptErrno kept;
  struct statx status;
  constexpr unsigned kWanted = STATX_TYPE | STATX_CTIME | STATX_BTIME;
  if (syscall(SYS_statx, folder_of_path, path, 0, kWanted, &status) != 0 ||
      !S_ISFIFO(status.stx_mode))
    return;
  const bool has_birth = (status.stx_mask & STATX_BTIME) != 0;
  if (is_before(has_birth ? status.stx_btime : status.stx_ctime, began))
    note_refusal("open: FIFO", folder_of_path, path);
}

void note_error(const char* call, int error, int folder_of_path, const char* path) {
  if (!are_files_noted()) return;
  const KeptErrno kept;
  What what;
  snprintf(what, sizeof what, "%s: %s", call, name_of(error));
  note_refusal(what, folder_of_path, path);
}

void note_failure(const char* call, int folder_of_path, const char* path, Errors errors) {
  if (are_files_noted() && comes_of_holding(errno, errors))
    note_error(call, errno, folder_of_path, path);
}

void note_failure(const char* call, int descriptor, Errors errors) {
  if (!are_files_noted() || !comes_of_holding(errno, errors)) return;
  const KeptErrno kept;
  char path[kPathBytes];
  if (path_of_descriptor(descriptor, path)) note_error(call, errno, AT_FDCWD, path);
}

}  // namespace memledger::inside
