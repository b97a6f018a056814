// libmemledger_measure.so: LD_PRELOAD brings it into a program on a virtual GPU, and into what that
// starts. It notes which files are opened for writing and, where the run's writes are held back,
// which calls fail because of that (noted_files.h, unreal_files.h). Where there is a private folder
// for them, it redirects them there (redirected_files.h). Here are the calls that change files;
// redirect_preload.cc has those that only look at them.
//
// Links with neither LibTorch nor the C++ library, so that it can go into anything. The wrappers of
// C library functions leave errno as it was, allocate nothing, take no lock and keep no file open.
// The program may be in a signal handler or in a child of vfork when it calls them.

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "prediction/measure_variables.h"
#include "runner/inside/device_files.h"
#include "runner/inside/noted_files.h"
#include "runner/inside/real_function.h"
#include "runner/inside/redirected_files.h"
#include "runner/inside/unreal_files.h"

namespace {

using memledger::inside::are_files_noted;
using memledger::inside::Errors;
using memledger::inside::is_redirecting;
using memledger::inside::KeptErrno;
using memledger::inside::note_failure;
using memledger::inside::note_fifo;
using memledger::inside::note_refusal;
using memledger::inside::note_written;
using memledger::inside::RealFunction;
namespace redirected = memledger::inside::redirected;

using AnyFunction = RealFunction<void (*)()>;
extern "C" __attribute__((visibility("hidden"))) AnyFunction __start_memledger_real[];
extern "C" __attribute__((visibility("hidden"))) AnyFunction __stop_memledger_real[];

// The functions here are called in signal handlers and in children of vfork.
void look_up_real_functions() {
  for (AnyFunction* one = __start_memledger_real; one != __stop_memledger_real; ++one) one->get();
}

__attribute__((constructor)) void begin() {
  look_up_real_functions();
  memledger::inside::begin_device_files();
  memledger::inside::begin_once();
}

bool writes(int flags) {
  return ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_TRUNC | O_CREAT)) != 0) &&
         (flags & O_PATH) == 0;
}

// Those of fopen(); zero where the mode is none.
int flags_of(const char* mode) {
  if (mode == nullptr) return 0;
  const int access = strchr(mode, '+') != nullptr ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
  const int exclusive = strchr(mode, 'x') != nullptr ? O_EXCL : 0;
  if (mode[0] == 'w') return access | O_CREAT | O_TRUNC | exclusive;
  if (mode[0] == 'a') return access | O_CREAT | O_APPEND | exclusive;
  return access;
}

// Whether a file that is opened so may be another one than the kernel finds.
bool redirects(int flags) {
  return memledger::inside::has_redirected() || (is_redirecting() && writes(flags));
}

// Whether root was not let into a file of another user, whom a namespace of users does not know.
bool is_foreign_to_root() { return errno == EACCES && memledger::inside::is_root_of_namespace(); }

// After a call that opened a file, or failed to.
int opened(int descriptor, const char* call, int at, const char* path, int flags) {
  if (!writes(flags) && (descriptor >= 0 || !is_foreign_to_root())) return descriptor;
  if (descriptor < 0) {
    note_failure(call, at, path);
  } else if ((flags & O_TMPFILE) != O_TMPFILE) {
    note_written(descriptor);
  }
  return descriptor;
}

FILE* opened(FILE* file, const char* call, const char* path, int flags) {
  if (!writes(flags) && (file != nullptr || !is_foreign_to_root())) return file;
  if (file == nullptr) {
    note_failure(call, AT_FDCWD, path);
  } else {
    note_written(fileno(file));
  }
  return file;
}

// Opens a stream by what `open_at` returns for the path that the kernel is to open, or for null if
// there is none. A function of its own, as a place takes much of the stack.
template <typename Function>
__attribute__((noinline)) FILE* open_redirected(const char* path, int flags,
                                                const Function& open_at) {
  using memledger::inside::Layer;
  memledger::inside::Place place;
  if (!memledger::inside::find_place(AT_FDCWD, path, (flags & O_EXCL) == 0, place))
    return open_at(nullptr);
  if (writes(flags) && !memledger::inside::prepare_to_write(place, flags)) {
    note_failure("fopen", AT_FDCWD, path);
    return open_at(nullptr);
  }
  if (place.layer == Layer::kNothing) {
    errno = ENOENT;
    return open_at(nullptr);
  }
  if (place.layer == Layer::kReal && S_ISFIFO(place.mode))
    note_refusal("open: FIFO", AT_FDCWD, path);
  return opened(open_at(place.layer == Layer::kAsGiven ? path : place.kernel_path()), "fopen", path,
                flags);
}

FILE* close_stream(FILE* file) {
  const KeptErrno kept;
  fclose(file);
  return nullptr;
}

int checked(int result, const char* call, int at, const char* path) {
  if (result < 0) note_failure(call, at, path);
  return result;
}

template <typename Result>
Result written(Result result, const char* call, int descriptor, Errors errors = Errors::kOfSpace) {
  if (result < 0) note_failure(call, descriptor, errors);
  return result;
}

int linked(int result, int from_at, const char* from, int to_at, const char* to) {
  if (result < 0 && errno == EXDEV) note_failure("link from", from_at, from);
  return checked(result, "link", to_at, to);
}

int renamed(int result, int from_at, const char* from, int to_at, const char* to) {
  if (result == 0) note_written(to_at, to);
  // Between two file systems it is refused without us, too.
  if (result < 0 && errno == EXDEV) note_failure("rename to", to_at, to);
  return checked(result, "rename", from_at, from);
}

// These functions return an error instead of setting errno.
int checked_error(int error, const char* call, int descriptor) {
  if (error != 0) {
    const KeptErrno kept;
    errno = error;
    note_failure(call, descriptor, Errors::kOfFolders);
  }
  return error;
}

void note_unwritten(FILE* file) {
  if (file == nullptr || !are_files_noted()) return;
  const KeptErrno kept;
  const int error = errno;
  const int descriptor = fileno(file);
  errno = error;
  note_failure("write", descriptor, Errors::kOfSpace);
}

// Copies some of the bytes, as copy_file_range() may. On the stack, as everywhere here.
ssize_t copied_by_hand(int from, off64_t* from_at, int to, off64_t* to_at, size_t bytes) {
  char part[4096];  // the stack may be small
  const size_t wanted = bytes < sizeof part ? bytes : sizeof part;
  const ssize_t found =
      from_at == nullptr ? read(from, part, wanted) : pread64(from, part, wanted, *from_at);
  if (found <= 0) return found;
  const auto length = static_cast<size_t>(found);
  const ssize_t done =
      to_at == nullptr ? write(to, part, length) : pwrite64(to, part, length, *to_at);
  // What was read and not written has to be read again.
  if (from_at == nullptr && done < found) lseek64(from, (done < 0 ? 0 : done) - found, SEEK_CUR);
  if (done <= 0) return done;
  if (from_at != nullptr) *from_at += done;
  if (to_at != nullptr) *to_at += done;
  return done;
}

// The kernel returns the path of a mapped file only if the whole mapping is named.
void note_unsynced(const void* begin, size_t bytes) {
  if (!are_files_noted()) return;
  const KeptErrno kept;
  const int error = errno;
  const auto from = reinterpret_cast<uintptr_t>(begin);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  char mapping[64], path[memledger::inside::kPathBytes];
  snprintf(mapping, sizeof mapping, "/proc/self/map_files/%lx-%lx", from,
           (from + bytes + page - 1) / page * page);
  const long length = syscall(SYS_readlinkat, AT_FDCWD, mapping, path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  errno = error;
  note_failure("msync", AT_FDCWD, length > 0 ? path : "/");
}

// The file that a Unix socket is bound to. An address has room for 107 characters, which is little
// for a private path.
class SocketPath {
 public:
  ~SocketPath() {
    if (folder_ >= 0) close(folder_);
  }

  // Returns false for other addresses.
  bool read(const sockaddr* address, socklen_t length) {
    if (address == nullptr || length <= offsetof(sockaddr_un, sun_path) ||
        length > sizeof address_ || address->sa_family != AF_UNIX)
      return false;
    memcpy(&address_, address, length);
    length_ = length;
    const size_t bytes = length - offsetof(sockaddr_un, sun_path);
    memcpy(given_, address_.sun_path, bytes);
    given_[bytes] = '\0';
    return given_[0] != '\0';  // one without a file
  }
  // Before connecting; returns false, with errno, where nothing is there.
  __attribute__((noinline)) bool find() {
    if (!memledger::inside::has_redirected()) return true;
    memledger::inside::Place place;
    if (!memledger::inside::find_place(AT_FDCWD, given_, /*follows=*/true, place)) return false;
    return place.layer != memledger::inside::Layer::kPrivate || take(place);
  }
  // Before binding to an address without links that is free.
  bool take(const char* path) {
    const size_t bytes = strlen(path) + 1;
    if (bytes > sizeof address_.sun_path) {
      errno = ENAMETOOLONG;
      return false;
    }
    memcpy(address_.sun_path, path, bytes);
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes);
    return true;
  }
  const char* given() const { return given_; }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t length() const { return length_; }

 private:
  bool take(memledger::inside::Place& place) {
    if (take(place.kernel_path())) return true;
    char* const last = strrchr(place.full, '/');
    *last = '\0';
    folder_ = static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, place.full, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    char path[sizeof address_.sun_path + 1];
    snprintf(path, sizeof path, "/proc/self/fd/%d/%.80s", folder_, last + 1);
    return folder_ >= 0 && take(path);
  }

  sockaddr_un address_ = {};
  socklen_t length_ = 0;
  int folder_ = -1;
  char given_[sizeof(sockaddr_un::sun_path) + 1];
};

// Programs send each other the addresses of their sockets.
void show_given_address(sockaddr* address, socklen_t room, socklen_t* length) {
  if (!memledger::inside::has_redirected() || address == nullptr || *length > room ||
      *length > sizeof(sockaddr_un) || *length <= offsetof(sockaddr_un, sun_path) ||
      address->sa_family != AF_UNIX)
    return;
  char path[sizeof(sockaddr_un::sun_path) + 1];
  const size_t bytes = *length - offsetof(sockaddr_un, sun_path);
  memcpy(path, reinterpret_cast<sockaddr_un*>(address)->sun_path, bytes);
  path[bytes] = '\0';
  char given[sizeof(sockaddr_un::sun_path) + 1] = "";
  if (!redirected::given_address(path, given, sizeof given - 1)) return;
  const size_t given_bytes = strlen(given) + 1;
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + given_bytes);
  memcpy(reinterpret_cast<sockaddr_un*>(address)->sun_path, given,
         *length <= room ? given_bytes : room - offsetof(sockaddr_un, sun_path));
}

mode_t mode_of(int flags, va_list arguments) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

namespace memledger::inside {

void begin_once() {
  static bool has_begun;
  if (__atomic_load_n(&has_begun, __ATOMIC_RELAXED) ||
      __atomic_exchange_n(&has_begun, true, __ATOMIC_RELAXED))
    return;
  const KeptErrno kept;
  begin_to_leave_out_caches();
  const char* folder = secure_getenv(prediction::kMeasureVariable);
  if (folder == nullptr) folder = secure_getenv(prediction::kNotesVariable);
  const char* const list = secure_getenv(prediction::kWrittenListVariable);
  if (folder == nullptr && list != nullptr) begin_to_list_files(list);
  if (folder == nullptr) return;
  begin_to_note_files(folder);
  const char* const redirect = secure_getenv(prediction::kRedirectVariable);
  if (redirect != nullptr) begin_to_redirect(redirect, folder);
}

}  // namespace memledger::inside

extern "C" {

#define MEMLEDGER_IN_FRONT __attribute__((visibility("default")))

#define MEMLEDGER_OPEN(name)                                                             \
  MEMLEDGER_IN_FRONT int name(const char* path, int flags, ...) {                        \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, int, ...)> real(#name); \
    va_list arguments;                                                                   \
    va_start(arguments, flags);                                                          \
    const mode_t mode = mode_of(flags, arguments);                                       \
    va_end(arguments);                                                                   \
    if (redirects(flags)) return redirected::open(AT_FDCWD, path, flags, mode);          \
    note_fifo(AT_FDCWD, path);                                                           \
    return opened(real.get()(path, flags, mode), "open", AT_FDCWD, path, flags);         \
  }

#define MEMLEDGER_OPENAT(name)                                                                \
  MEMLEDGER_IN_FRONT int name(int at, const char* path, int flags, ...) {                     \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int, ...)> real(#name); \
    va_list arguments;                                                                        \
    va_start(arguments, flags);                                                               \
    const mode_t mode = mode_of(flags, arguments);                                            \
    va_end(arguments);                                                                        \
    if (redirects(flags)) return redirected::open(at, path, flags, mode);                     \
    note_fifo(at, path);                                                                      \
    return opened(real.get()(at, path, flags, mode), "open", at, path, flags);                \
  }

#define MEMLEDGER_CREAT(name)                                                          \
  MEMLEDGER_IN_FRONT int name(const char* path, mode_t mode) {                         \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, mode_t)> real(#name); \
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;                               \
    if (is_redirecting()) return redirected::open(AT_FDCWD, path, kFlags, mode);       \
    note_fifo(AT_FDCWD, path);                                                         \
    return opened(real.get()(path, mode), "open", AT_FDCWD, path, kFlags);             \
  }

#define MEMLEDGER_FOPEN(name)                                                                 \
  MEMLEDGER_IN_FRONT FILE* name(const char* path, const char* mode) {                         \
    MEMLEDGER_LOOKED_UP static RealFunction<FILE* (*)(const char*, const char*)> real(#name); \
    const int flags = flags_of(mode);                                                         \
    if (redirects(flags)) {                                                                   \
      return open_redirected(path, flags, [&](const char* found) {                            \
        return found == nullptr ? nullptr : real.get()(found, mode);                          \
      });                                                                                     \
    }                                                                                         \
    note_fifo(AT_FDCWD, path);                                                                \
    return opened(real.get()(path, mode), "fopen", path, flags);                              \
  }

#define MEMLEDGER_FREOPEN(name)                                                               \
  MEMLEDGER_IN_FRONT FILE* name(const char* path, const char* mode, FILE* file) {             \
    MEMLEDGER_LOOKED_UP static RealFunction<FILE* (*)(const char*, const char*, FILE*)> real( \
        #name);                                                                               \
    const int flags = flags_of(mode);                                                         \
    if (path == nullptr) return real.get()(path, mode, file);                                 \
    if (redirects(flags)) {                                                                   \
      return open_redirected(path, flags, [&](const char* found) {                            \
        return found == nullptr ? close_stream(file) : real.get()(found, mode, file);         \
      });                                                                                     \
    }                                                                                         \
    note_fifo(AT_FDCWD, path);                                                                \
    return opened(real.get()(path, mode, file), "fopen", path, flags);                        \
  }

// What open() and openat() are where the C library checks its callers (_FORTIFY_SOURCE).
#define MEMLEDGER_OPEN_CHECKED(name)                                                \
  MEMLEDGER_IN_FRONT int name(const char* path, int flags) {                        \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, int)> real(#name); \
    if (redirects(flags)) return redirected::open(AT_FDCWD, path, flags, 0);        \
    note_fifo(AT_FDCWD, path);                                                      \
    return opened(real.get()(path, flags), "open", AT_FDCWD, path, flags);          \
  }
#define MEMLEDGER_OPENAT_CHECKED(name)                                                   \
  MEMLEDGER_IN_FRONT int name(int at, const char* path, int flags) {                     \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int)> real(#name); \
    if (redirects(flags)) return redirected::open(at, path, flags, 0);                   \
    note_fifo(at, path);                                                                 \
    return opened(real.get()(at, path, flags), "open", at, path, flags);                 \
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
MEMLEDGER_OPEN_CHECKED(__open_2)
MEMLEDGER_OPEN_CHECKED(__open64_2)
MEMLEDGER_OPENAT_CHECKED(__openat_2)
MEMLEDGER_OPENAT_CHECKED(__openat64_2)

MEMLEDGER_IN_FRONT int rename(const char* from, const char* to) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const char*)> real("rename");
  if (is_redirecting()) return redirected::rename(AT_FDCWD, from, AT_FDCWD, to, 0);
  return renamed(real.get()(from, to), AT_FDCWD, from, AT_FDCWD, to);
}
MEMLEDGER_IN_FRONT int renameat(int from_at, const char* from, int to_at, const char* to) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int, const char*)> real(
      "renameat");
  if (is_redirecting()) return redirected::rename(from_at, from, to_at, to, 0);
  return renamed(real.get()(from_at, from, to_at, to), from_at, from, to_at, to);
}
MEMLEDGER_IN_FRONT int renameat2(int from_at, const char* from, int to_at, const char* to,
                                 unsigned flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int, const char*, unsigned)>
      real("renameat2");
  if (is_redirecting()) return redirected::rename(from_at, from, to_at, to, flags);
  return renamed(real.get()(from_at, from, to_at, to, flags), from_at, from, to_at, to);
}

MEMLEDGER_IN_FRONT int link(const char* from, const char* to) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const char*)> real("link");
  if (is_redirecting()) return redirected::link(AT_FDCWD, from, AT_FDCWD, to, 0);
  return linked(real.get()(from, to), AT_FDCWD, from, AT_FDCWD, to);
}
MEMLEDGER_IN_FRONT int linkat(int from_at, const char* from, int to_at, const char* to, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int, const char*, int)> real(
      "linkat");
  if (is_redirecting()) return redirected::link(from_at, from, to_at, to, flags);
  return linked(real.get()(from_at, from, to_at, to, flags), from_at, from, to_at, to);
}
MEMLEDGER_IN_FRONT int symlink(const char* target, const char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const char*)> real("symlink");
  if (is_redirecting()) return redirected::symlink(target, AT_FDCWD, path);
  return checked(real.get()(target, path), "symlink", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int symlinkat(const char* target, int at, const char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, int, const char*)> real("symlinkat");
  if (is_redirecting()) return redirected::symlink(target, at, path);
  return checked(real.get()(target, at, path), "symlink", at, path);
}

MEMLEDGER_IN_FRONT int unlink(const char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*)> real("unlink");
  if (is_redirecting()) return redirected::unlink(AT_FDCWD, path);
  return checked(real.get()(path), "unlink", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int unlinkat(int at, const char* path, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int)> real("unlinkat");
  if (is_redirecting())
    return (flags & AT_REMOVEDIR) != 0 ? redirected::rmdir(at, path) : redirected::unlink(at, path);
  return checked(real.get()(at, path, flags), (flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink", at,
                 path);
}
MEMLEDGER_IN_FRONT int rmdir(const char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*)> real("rmdir");
  if (is_redirecting()) return redirected::rmdir(AT_FDCWD, path);
  return checked(real.get()(path), "rmdir", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int remove(const char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*)> real("remove");
  if (is_redirecting()) {
    const int result = redirected::unlink(AT_FDCWD, path);
    return result == 0 || errno != EISDIR ? result : redirected::rmdir(AT_FDCWD, path);
  }
  return checked(real.get()(path), "remove", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int mkdir(const char* path, mode_t mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, mode_t)> real("mkdir");
  if (is_redirecting()) return redirected::mkdir(AT_FDCWD, path, mode);
  return checked(real.get()(path, mode), "mkdir", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int mkdirat(int at, const char* path, mode_t mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, mode_t)> real("mkdirat");
  if (is_redirecting()) return redirected::mkdir(at, path, mode);
  return checked(real.get()(at, path, mode), "mkdir", at, path);
}

#define MEMLEDGER_TRUNCATE(name, offset)                                               \
  MEMLEDGER_IN_FRONT int name(const char* path, offset bytes) {                        \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, offset)> real(#name); \
    if (is_redirecting()) return redirected::truncate(path, bytes);                    \
    const int result = real.get()(path, bytes);                                        \
    if (result == 0) note_written(AT_FDCWD, path);                                     \
    return checked(result, "truncate", AT_FDCWD, path);                                \
  }
#define MEMLEDGER_FTRUNCATE(name, offset)                                           \
  MEMLEDGER_IN_FRONT int name(int file, offset bytes) {                             \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, offset)> real(#name);      \
    return written(real.get()(file, bytes), "ftruncate", file, Errors::kOfFolders); \
  }
#define MEMLEDGER_FALLOCATE(name, offset)                                                        \
  MEMLEDGER_IN_FRONT int name(int file, int mode, offset begin, offset bytes) {                  \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, int, offset, offset)> real(#name);      \
    return written(real.get()(file, mode, begin, bytes), "fallocate", file, Errors::kOfFolders); \
  }
#define MEMLEDGER_POSIX_FALLOCATE(name, offset)                                        \
  MEMLEDGER_IN_FRONT int name(int file, offset begin, offset bytes) {                  \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, offset, offset)> real(#name); \
    return checked_error(real.get()(file, begin, bytes), "fallocate", file);           \
  }

MEMLEDGER_TRUNCATE(truncate, off_t)
MEMLEDGER_TRUNCATE(truncate64, off64_t)
MEMLEDGER_FTRUNCATE(ftruncate, off_t)
MEMLEDGER_FTRUNCATE(ftruncate64, off64_t)
MEMLEDGER_FALLOCATE(fallocate, off_t)
MEMLEDGER_FALLOCATE(fallocate64, off64_t)
MEMLEDGER_POSIX_FALLOCATE(posix_fallocate, off_t)
MEMLEDGER_POSIX_FALLOCATE(posix_fallocate64, off64_t)

MEMLEDGER_IN_FRONT ssize_t write(int file, const void* data, size_t bytes) {
  MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(int, const void*, size_t)> real("write");
  return written(real.get()(file, data, bytes), "write", file);
}
MEMLEDGER_IN_FRONT ssize_t writev(int file, const iovec* parts, int count) {
  MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(int, const iovec*, int)> real("writev");
  return written(real.get()(file, parts, count), "write", file);
}
#define MEMLEDGER_PWRITE(name, offset)                                                           \
  MEMLEDGER_IN_FRONT ssize_t name(int file, const void* data, size_t bytes, offset at) {         \
    MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(int, const void*, size_t, offset)> real( \
        #name);                                                                                  \
    return written(real.get()(file, data, bytes, at), "write", file);                            \
  }
#define MEMLEDGER_PWRITEV(name, offset)                                                        \
  MEMLEDGER_IN_FRONT ssize_t name(int file, const iovec* parts, int count, offset at) {        \
    MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(int, const iovec*, int, offset)> real( \
        #name);                                                                                \
    return written(real.get()(file, parts, count, at), "write", file);                         \
  }
MEMLEDGER_PWRITE(pwrite, off_t)
MEMLEDGER_PWRITE(pwrite64, off64_t)
MEMLEDGER_PWRITEV(pwritev, off_t)
MEMLEDGER_PWRITEV(pwritev64, off64_t)

#define MEMLEDGER_FWRITE(name)                                                                    \
  MEMLEDGER_IN_FRONT size_t name(const void* data, size_t size, size_t count, FILE* file) {       \
    MEMLEDGER_LOOKED_UP static RealFunction<size_t (*)(const void*, size_t, size_t, FILE*)> real( \
        #name);                                                                                   \
    const size_t done = real.get()(data, size, count, file);                                      \
    if (done < count && size > 0) note_unwritten(file);                                           \
    return done;                                                                                  \
  }
#define MEMLEDGER_FFLUSH(name)                                           \
  MEMLEDGER_IN_FRONT int name(FILE* file) {                              \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(FILE*)> real(#name); \
    const int result = real.get()(file);                                 \
    if (result != 0) note_unwritten(file);                               \
    return result;                                                       \
  }
MEMLEDGER_FWRITE(fwrite)
MEMLEDGER_FWRITE(fwrite_unlocked)
MEMLEDGER_FFLUSH(fflush)
MEMLEDGER_FFLUSH(fflush_unlocked)

MEMLEDGER_IN_FRONT int fclose(FILE* file) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(FILE*)> real("fclose");
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(FILE*)> flush("fflush");
  // Afterwards its path is no longer known.
  if (are_files_noted() && file != nullptr) {
    const KeptErrno kept;
    if (flush.get()(file) != 0) note_unwritten(file);
  }
  return real.get()(file);
}

// A file and its copy in a layer are of two file systems, where the kernel copies nothing.
MEMLEDGER_IN_FRONT ssize_t copy_file_range(int from, off64_t* from_at, int to, off64_t* to_at,
                                           size_t bytes, unsigned flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(int, off64_t*, int, off64_t*, size_t,
                                                      unsigned)>
      real("copy_file_range");
  const ssize_t copied = real.get()(from, from_at, to, to_at, bytes, flags);
  if (copied >= 0 || errno != EXDEV || !are_files_noted()) return copied;
  return copied_by_hand(from, from_at, to, to_at, bytes);
}

MEMLEDGER_IN_FRONT int msync(void* begin, size_t bytes, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(void*, size_t, int)> real("msync");
  const int result = real.get()(begin, bytes, flags);
  if (result != 0) note_unsynced(begin, bytes);
  return result;
}

MEMLEDGER_IN_FRONT int connect(int socket, const sockaddr* address, socklen_t length) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const sockaddr*, socklen_t)> real("connect");
  SocketPath path;
  if (!path.read(address, length)) return real.get()(socket, address, length);
  const int result = path.find() ? real.get()(socket, path.address(), path.length()) : -1;
  // A redirected program has the host's sockets.
  if (result != 0 && errno == ECONNREFUSED && !is_redirecting())
    note_refusal("connect: socket", AT_FDCWD, path.given());
  return result;
}

MEMLEDGER_IN_FRONT int bind(int socket, const sockaddr* address, socklen_t length) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const sockaddr*, socklen_t)> real("bind");
  SocketPath path;
  if (!is_redirecting() || !path.read(address, length)) return real.get()(socket, address, length);
  return redirected::bind(path.given(), [&](const char* free_path) {
    return path.take(free_path) ? real.get()(socket, path.address(), path.length()) : -1;
  });
}

#define MEMLEDGER_NAME_OF_SOCKET(name)                                                        \
  MEMLEDGER_IN_FRONT int name(int socket, sockaddr* address, socklen_t* length) {             \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, sockaddr*, socklen_t*)> real(#name); \
    const socklen_t room = length == nullptr ? 0 : *length;                                   \
    const int result = real.get()(socket, address, length);                                   \
    if (result == 0) show_given_address(address, room, length);                               \
    return result;                                                                            \
  }
MEMLEDGER_NAME_OF_SOCKET(getsockname)
MEMLEDGER_NAME_OF_SOCKET(getpeername)

}  // extern "C"
