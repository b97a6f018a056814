// Calls that look at files, where writes are redirected (redirected_files.h): programs have to find
// what they have written. Calls that change attributes are here as well.
//
// For measure_preload.cc's rules, see there. Functions that may allocate when they are the C
// library's own, like opendir(), may do so here.

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#include "prediction/measure_variables.h"
#include "runner/inside/device_files.h"
#include "runner/inside/noted_files.h"
#include "runner/inside/real_function.h"
#include "runner/inside/redirected_files.h"
#include "runner/path_search.h"
#include "runner/program_kind.h"

#if defined(__clang__)
#define MEMLEDGER_MAKES_TAIL_CALLS
#define MEMLEDGER_TAIL_CALL [[clang::musttail]] return
#else
#define MEMLEDGER_MAKES_TAIL_CALLS __attribute__((optimize("O2")))
#define MEMLEDGER_TAIL_CALL return
#endif

namespace {

using memledger::inside::absolute_path;
using memledger::inside::Errors;
using memledger::inside::find_place;
using memledger::inside::has_redirected;
using memledger::inside::is_redirecting;
using memledger::inside::kPathBytes;
using memledger::inside::Layer;
using memledger::inside::path_of_descriptor;
using memledger::inside::Place;
using memledger::inside::RealFunction;
namespace redirected = memledger::inside::redirected;

// What the kernel is to be asked about instead of a path.
class Seen {
 public:
  // errno is set where it is not ok().
  Seen(int folder, const char* path, bool follows) : folder_(folder), path_(path) {
    if (!has_redirected() || path == nullptr || *path == '\0') return;
    if (!find_place(folder, path, follows, place_)) {
      is_ok_ = false;
    } else if (place_.layer == Layer::kNothing) {
      errno = ENOENT;
      is_ok_ = false;
    } else if (place_.layer != Layer::kAsGiven) {
      folder_ = AT_FDCWD;
      path_ = place_.kernel_path();
      is_known_ = true;
    }
  }
  bool ok() const { return is_ok_; }
  int folder() const { return folder_; }
  const char* path() const { return path_; }
  // Whether the file is one that the program wrote.
  bool is_private() const { return is_known_ && place_.layer == Layer::kPrivate; }
  // Null where nothing is known of it.
  const Place* place() const { return is_known_ ? &place_ : nullptr; }

 private:
  Place place_;
  int folder_;
  const char* path_;
  bool is_ok_ = true, is_known_ = false;
};

// A function of its own: its variables would take five kilobytes of the stack of every caller,
// where nothing is redirected as well.
template <typename Call>
__attribute__((noinline)) auto ask_redirected(int folder, const char* path, bool follows,
                                              const Call& call) -> decltype(call(folder, path)) {
  const Seen seen(folder, path, follows);
  return seen.ok() ? call(seen.folder(), seen.path()) : -1;
}

// Asks the kernel about what the program means by a path.
template <typename Call>
auto ask(int folder, const char* path, bool follows, const Call& call) {
  if (const char* const device = memledger::inside::device_file(path))
    return call(AT_FDCWD, device);
  return has_redirected() ? ask_redirected(folder, path, follows, call) : call(folder, path);
}

// After a call that changes whose a file is, or what others may do with it.
int owned(int result, const char* call, int folder, const char* path) {
  if (result < 0) memledger::inside::note_failure(call, folder, path, Errors::kOfOwners);
  return result;
}
int owned(int result, const char* call, int descriptor) {
  if (result < 0) memledger::inside::note_failure(call, descriptor, Errors::kOfOwners);
  return result;
}

// Takes the private folder off a path that the kernel returns. Returns the new length.
size_t without_root(char* path, size_t length) {
  if (!has_redirected()) return length;
  const char* const root = memledger::inside::redirected_root();
  const size_t prefix = strlen(root);
  if (length <= prefix || memcmp(path, root, prefix) != 0 || path[prefix] != '/') return length;
  memmove(path, path + prefix, length - prefix);
  return length - prefix;
}

// --- Folders

// One whose real side is read with the private entries added and removed ones left out.
struct OpenFolder {
  DIR* real;  // what the program has; null: free
  DIR* own;   // may be null
  bool reads_own;
  long entries;  // read so far
  char path[];
};
constexpr int kMaxOpenFolders = 256;
OpenFolder* open_folders[kMaxOpenFolders];

MEMLEDGER_LOOKED_UP RealFunction<DIR* (*)(const char*)> real_opendir("opendir");
MEMLEDGER_LOOKED_UP RealFunction<dirent* (*)(DIR*)> real_readdir("readdir");
MEMLEDGER_LOOKED_UP RealFunction<int (*)(DIR*)> real_closedir("closedir");
MEMLEDGER_LOOKED_UP RealFunction<void (*)(DIR*)> real_rewinddir("rewinddir");

OpenFolder* find_open_folder(const DIR* real, bool takes_out = false) {
  if (!has_redirected()) return nullptr;
  for (OpenFolder*& place : open_folders) {
    OpenFolder* const folder = __atomic_load_n(&place, __ATOMIC_ACQUIRE);
    if (folder == nullptr || folder->real != real) continue;
    if (takes_out) __atomic_store_n(&place, nullptr, __ATOMIC_RELEASE);
    return folder;
  }
  return nullptr;
}

void add_private_side(DIR* real, const Place& place) {
  if (real == nullptr || (place.layer != Layer::kMerged && place.layer != Layer::kReal)) return;
  const int error = errno;
  const size_t length = strlen(place.path());
  auto* const folder = static_cast<OpenFolder*>(calloc(1, sizeof(OpenFolder) + length + 1));
  if (folder == nullptr) return;
  folder->real = real;
  memcpy(folder->path, place.path(), length + 1);
  if (place.layer == Layer::kMerged) folder->own = real_opendir.get()(place.private_path());
  errno = error;
  for (OpenFolder*& free_place : open_folders) {
    OpenFolder* none = nullptr;
    if (__atomic_compare_exchange_n(&free_place, &none, folder, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
      return;
  }
  if (folder->own != nullptr) real_closedir.get()(folder->own);
  free(folder);
  memledger::inside::note_refusal("opendir: too many folders", AT_FDCWD, place.path());
}

dirent* read_entry(DIR* real) {
  OpenFolder* const folder = find_open_folder(real);
  if (folder == nullptr) return real_readdir.get()(real);
  const int error = errno;
  while (!folder->reads_own) {
    dirent* const entry = real_readdir.get()(real);
    if (entry == nullptr) {
      if (folder->own == nullptr) return nullptr;
      folder->reads_own = true;
      break;
    }
    const bool is_dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (!is_dots && !memledger::inside::shows_real_entry(folder->path, entry->d_name)) continue;
    errno = error;
    ++folder->entries;
    return entry;
  }
  for (;;) {
    dirent* const entry = real_readdir.get()(folder->own);
    if (entry != nullptr && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0))
      continue;
    if (entry != nullptr) ++folder->entries;
    return entry;
  }
}

void rewind_folder(DIR* real) {
  if (OpenFolder* const folder = find_open_folder(real)) {
    if (folder->own != nullptr) real_rewinddir.get()(folder->own);
    folder->reads_own = false;
    folder->entries = 0;
  }
  real_rewinddir.get()(real);
}

DIR* open_folder(const char* path) {
  const Seen seen(AT_FDCWD, path, /*follows=*/true);
  if (!seen.ok()) return nullptr;
  DIR* const real = real_opendir.get()(seen.path());
  if (seen.place() != nullptr) add_private_side(real, *seen.place());
  return real;
}

// Behaves as scandir().
int scan_folder(DIR* folder, dirent*** list, int (*filter)(const dirent*),
                int (*compare)(const dirent**, const dirent**)) {
  if (folder == nullptr) return -1;
  dirent** entries = nullptr;
  size_t count = 0, room = 0;
  bool is_done = true;
  while (const dirent* const entry = read_entry(folder)) {
    if (filter != nullptr && filter(entry) == 0) continue;
    if (count == room) {
      room = room * 2 + 16;
      auto** const grown = static_cast<dirent**>(realloc(entries, room * sizeof *entries));
      if (grown == nullptr) {
        is_done = false;
        break;
      }
      entries = grown;
    }
    auto* const copy = static_cast<dirent*>(malloc(entry->d_reclen));
    if (copy == nullptr) {
      is_done = false;
      break;
    }
    memcpy(copy, entry, entry->d_reclen);
    entries[count++] = copy;
  }
  closedir(folder);
  if (!is_done) {
    for (size_t i = 0; i < count; ++i) free(entries[i]);
    free(entries);
    errno = ENOMEM;
    return -1;
  }
  if (compare != nullptr && count > 0)
    qsort(entries, count, sizeof *entries,
          reinterpret_cast<int (*)(const void*, const void*)>(reinterpret_cast<void*>(compare)));
  *list = entries != nullptr ? entries : static_cast<dirent**>(malloc(1));
  return static_cast<int>(count);
}

// --- Others

// Replaces the X's before the suffix until `make` succeeds.
template <typename Function>
int make_temporary(char* path, int suffix, const Function& make) {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const size_t length = strlen(path);
  if (suffix < 0 || length < 6 + static_cast<size_t>(suffix) ||
      memcmp(path + length - 6 - static_cast<size_t>(suffix), "XXXXXX", 6) != 0) {
    errno = EINVAL;
    return -1;
  }
  char* const letters = path + length - 6 - static_cast<size_t>(suffix);
  for (int i = 0; i < 10000; ++i) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return -1;
    for (int at = 0; at < 6; ++at, random /= 62) letters[at] = kLetters[random % 62];
    const int result = make();
    if (result >= 0 || errno != EEXIST) return result;
  }
  return -1;
}

int make_temporary_file(char* path, int suffix, int flags) {
  return make_temporary(path, suffix, [&] {
    return redirected::open(AT_FDCWD, path, (flags & ~O_ACCMODE) | O_RDWR | O_CREAT | O_EXCL, 0600);
  });
}

int set_times(int folder, const char* path, const timeval* times, bool follows) {
  if (times == nullptr) return redirected::set_times(folder, path, nullptr, follows);
  const timespec exact[2] = {{times[0].tv_sec, times[0].tv_usec * 1000},
                             {times[1].tv_sec, times[1].tv_usec * 1000}};
  return redirected::set_times(folder, path, exact, follows);
}

int set_times(int descriptor, const timeval* times) {
  if (times == nullptr) return redirected::set_times(descriptor, nullptr);
  const timespec exact[2] = {{times[0].tv_sec, times[0].tv_usec * 1000},
                             {times[1].tv_sec, times[1].tv_usec * 1000}};
  return redirected::set_times(descriptor, exact);
}

bool is_empty(const char* path) { return path != nullptr && *path == '\0'; }

char* canonical(const char* path, char* result) {
  const Seen seen(AT_FDCWD, path, /*follows=*/true);
  if (!seen.ok()) return nullptr;
  const char* const found = seen.place()->path();
  if (result == nullptr) return strdup(found);
  if (strlen(found) >= PATH_MAX) {
    errno = ENAMETOOLONG;
    return nullptr;
  }
  return static_cast<char*>(memcpy(result, found, strlen(found) + 1));
}

bool is_canonical_ours(const char* path) {
  const Seen seen(AT_FDCWD, path, /*follows=*/true);
  return !seen.ok() || seen.place() != nullptr;
}

// Behaves as getcwd(). The caller's buffer gets the path that the program knows.
__attribute__((noinline)) char* working_folder(char* (*get)(char*, size_t), char* path,
                                               size_t bytes) {
  char whole[kPathBytes + 512];
  if (get(whole, sizeof whole) == nullptr) return nullptr;
  const size_t length = without_root(whole, strlen(whole) + 1);
  if (path == nullptr && bytes == 0) return strdup(whole);
  if (path != nullptr && bytes == 0) {
    errno = EINVAL;
    return nullptr;
  }
  if (length > bytes) {
    errno = ERANGE;
    return nullptr;
  }
  char* const result = path != nullptr ? path : static_cast<char*>(malloc(bytes));
  return result == nullptr ? nullptr : static_cast<char*>(memcpy(result, whole, length));
}

using Arguments = char* const*;

// A child with an environment of its own has to go on as well, and is redirected only with the
// library and these variables.
struct NeededVariable {
  const char* name;  // with its "="
  char text[kPathBytes + 32];
};
NeededVariable needed_variables[] = {
    {"LD_PRELOAD=", ""}, {"MEMLEDGER_MEASURE=", ""}, {"MEMLEDGER_REDIRECT=", ""}};
constexpr size_t kNeededVariables = sizeof needed_variables / sizeof *needed_variables;

__attribute__((constructor)) void read_needed_variables() {
  if (!is_redirecting()) return;
  if (getenv(memledger::prediction::kMeasureVariable) == nullptr)
    needed_variables[1].name = "MEMLEDGER_NOTES=";
  Dl_info library = {};
  if (dladdr(reinterpret_cast<void*>(&read_needed_variables), &library) == 0) return;
  for (NeededVariable& variable : needed_variables) {
    char name[32];
    snprintf(name, sizeof name, "%.*s", static_cast<int>(strlen(variable.name)) - 1, variable.name);
    const char* const value = &variable == needed_variables ? library.dli_fname : getenv(name);
    if (value != nullptr)
      snprintf(variable.text, sizeof variable.text, "%s%s", variable.name, value);
  }
}

bool is_variable(const char* text, const NeededVariable& variable) {
  return strncmp(text, variable.name, strlen(variable.name)) == 0;
}

bool has_needed_variables(Arguments environment) {
  size_t found = 0;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    for (const NeededVariable& variable : needed_variables) {
      // Other libraries may be preloaded besides it.
      if (is_variable(*environment, variable) &&
          strstr(*environment, variable.text + strlen(variable.name)) != nullptr)
        ++found;
    }
  }
  return found >= kNeededVariables;
}

template <typename Call>
__attribute__((noinline)) int call_with_needed_variables(Arguments environment, const Call& call) {
  size_t count = 0;
  const char* preloaded = nullptr;
  for (; environment != nullptr && environment[count] != nullptr; ++count) {
    if (is_variable(environment[count], needed_variables[0]))
      preloaded = environment[count] + strlen(needed_variables[0].name);
  }
  auto** const whole =
      static_cast<char**>(__builtin_alloca((count + kNeededVariables + 1) * sizeof(char*)));
  size_t end = 0;
  for (NeededVariable& variable : needed_variables) whole[end++] = variable.text;
  if (preloaded != nullptr) {
    const size_t bytes = strlen(needed_variables[0].text) + strlen(preloaded) + 2;
    whole[0] = static_cast<char*>(__builtin_alloca(bytes));
    snprintf(whole[0], bytes, "%s:%s", needed_variables[0].text, preloaded);
  }
  for (size_t i = 0; i < count; ++i) {
    bool is_needed = false;
    for (const NeededVariable& variable : needed_variables)
      is_needed = is_needed || is_variable(environment[i], variable);
    if (!is_needed) whole[end++] = environment[i];
  }
  whole[end] = nullptr;
  return call(whole);
}

// What cannot be redirected in a new program is noted before, as nobody is there to do so later.
// `program`: as the kernel, or PATH, finds it.
__attribute__((noinline)) memledger::ProgramKind note_kind(const char* program,
                                                           Arguments arguments) {
  char room[kPathBytes];
  const char* const path = program == nullptr ? nullptr : memledger::find_in_path(program, room);
  if (path == nullptr) return memledger::ProgramKind::kUnknown;
  const memledger::ProgramKind kind = memledger::kind_of_program(path);
  const char* const what = memledger::writes_not_redirected(kind, path, arguments);
  if (what != nullptr) memledger::inside::note_refusal(what, AT_FDCWD, path);
  return kind;
}

// Calls with the environment that a new program gets.
template <typename Call>
int with_library(const char* program, Arguments arguments, Arguments environment,
                 const Call& call) {
  if (!is_redirecting()) return call(environment);
  const bool takes_it = memledger::takes_preloaded_libraries(note_kind(program, arguments));
  const bool is_missing =
      takes_it && needed_variables[0].text[0] != '\0' && !has_needed_variables(environment);
  return is_missing ? call_with_needed_variables(environment, call) : call(environment);
}

// Those of execl() and its like, on the stack of their caller as there.
size_t count_arguments(va_list list) {
  size_t count = 0;
  while (va_arg(list, char*) != nullptr) ++count;
  return count;
}

// A function of its own: one with these variables could not tail-call.
__attribute__((noinline)) bool load_private(void* (*load)(const char*, int), const char* file,
                                            int mode, void*& library) {
  const Seen seen(AT_FDCWD, file, /*follows=*/true);
  if (!seen.ok() || !seen.is_private()) return false;
  library = load(seen.path(), mode);
  return true;
}

}  // namespace

extern "C" {

#define MEMLEDGER_IN_FRONT __attribute__((visibility("default")))

// A call about what `path` is: one argument more than the path.
#define MEMLEDGER_LOOK(name, follows, result, type, argument)                           \
  MEMLEDGER_IN_FRONT result name(const char* path, type argument) {                     \
    MEMLEDGER_LOOKED_UP static RealFunction<result (*)(const char*, type)> real(#name); \
    return ask(AT_FDCWD, path, follows,                                                 \
               [&](int, const char* seen) { return real.get()(seen, argument); });      \
  }
#define MEMLEDGER_LOOK_VERSIONED(name, follows, type)                                      \
  MEMLEDGER_IN_FRONT int name(int version, const char* path, type* status) {               \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, type*)> real(#name); \
    return ask(AT_FDCWD, path, follows,                                                    \
               [&](int, const char* seen) { return real.get()(version, seen, status); });  \
  }
#define MEMLEDGER_LOOK_AT(name, type)                                                            \
  MEMLEDGER_IN_FRONT int name(int at, const char* path, type* status, int flags) {               \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, type*, int)> real(#name);  \
    return ask(at, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, [&](int folder, const char* seen) { \
      return real.get()(folder, seen, status, flags);                                            \
    });                                                                                          \
  }
#define MEMLEDGER_LOOK_AT_VERSIONED(name, type)                                                  \
  MEMLEDGER_IN_FRONT int name(int version, int at, const char* path, type* status, int flags) {  \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, int, const char*, type*, int)> real(    \
        #name);                                                                                  \
    return ask(at, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, [&](int folder, const char* seen) { \
      return real.get()(version, folder, seen, status, flags);                                   \
    });                                                                                          \
  }

MEMLEDGER_LOOK(stat, true, int, struct stat*, status)
MEMLEDGER_LOOK(stat64, true, int, struct stat64*, status)
MEMLEDGER_LOOK(lstat, false, int, struct stat*, status)
MEMLEDGER_LOOK(lstat64, false, int, struct stat64*, status)
MEMLEDGER_LOOK(statfs, true, int, struct statfs*, status)
MEMLEDGER_LOOK(statfs64, true, int, struct statfs64*, status)
MEMLEDGER_LOOK(statvfs, true, int, struct statvfs*, status)
MEMLEDGER_LOOK(statvfs64, true, int, struct statvfs64*, status)
MEMLEDGER_LOOK(pathconf, true, long, int, name)
MEMLEDGER_LOOK(access, true, int, int, mode)
MEMLEDGER_LOOK(eaccess, true, int, int, mode)
MEMLEDGER_LOOK(euidaccess, true, int, int, mode)
MEMLEDGER_LOOK_VERSIONED(__xstat, true, struct stat)
MEMLEDGER_LOOK_VERSIONED(__xstat64, true, struct stat64)
MEMLEDGER_LOOK_VERSIONED(__lxstat, false, struct stat)
MEMLEDGER_LOOK_VERSIONED(__lxstat64, false, struct stat64)
MEMLEDGER_LOOK_AT(fstatat, struct stat)
MEMLEDGER_LOOK_AT(fstatat64, struct stat64)
MEMLEDGER_LOOK_AT_VERSIONED(__fxstatat, struct stat)
MEMLEDGER_LOOK_AT_VERSIONED(__fxstatat64, struct stat64)

MEMLEDGER_IN_FRONT int statx(int at, const char* path, int flags, unsigned mask,
                             struct statx* status) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int, unsigned, struct statx*)>
      real("statx");
  return ask(at, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, [&](int folder, const char* seen) {
    return real.get()(folder, seen, flags, mask, status);
  });
}

MEMLEDGER_IN_FRONT int faccessat(int at, const char* path, int mode, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, int, int)> real("faccessat");
  return ask(at, path, (flags & AT_SYMLINK_NOFOLLOW) == 0,
             [&](int folder, const char* seen) { return real.get()(folder, seen, mode, flags); });
}

MEMLEDGER_IN_FRONT ssize_t readlink(const char* path, char* target, size_t bytes) {
  MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(const char*, char*, size_t)> real("readlink");
  const ssize_t length = ask(AT_FDCWD, path, /*follows=*/false, [&](int, const char* seen) {
    return real.get()(seen, target, bytes);
  });
  return length <= 0 ? length
                     : static_cast<ssize_t>(without_root(target, static_cast<size_t>(length)));
}
MEMLEDGER_IN_FRONT ssize_t readlinkat(int at, const char* path, char* target, size_t bytes) {
  MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(int, const char*, char*, size_t)> real(
      "readlinkat");
  const ssize_t length = ask(at, path, /*follows=*/false, [&](int folder, const char* seen) {
    return real.get()(folder, seen, target, bytes);
  });
  return length <= 0 ? length
                     : static_cast<ssize_t>(without_root(target, static_cast<size_t>(length)));
}
MEMLEDGER_IN_FRONT ssize_t __readlink_chk(const char* path, char* target, size_t bytes, size_t) {
  return readlink(path, target, bytes);
}
MEMLEDGER_IN_FRONT ssize_t __readlinkat_chk(int at, const char* path, char* target, size_t bytes,
                                            size_t) {
  return readlinkat(at, path, target, bytes);
}

MEMLEDGER_IN_FRONT char* realpath(const char* path, char* result) {
  MEMLEDGER_LOOKED_UP static RealFunction<char* (*)(const char*, char*)> real("realpath");
  if (!has_redirected() || path == nullptr || *path == '\0' || !is_canonical_ours(path))
    return real.get()(path, result);
  return canonical(path, result);
}
MEMLEDGER_IN_FRONT char* __realpath_chk(const char* path, char* result, size_t) {
  return realpath(path, result);
}
MEMLEDGER_IN_FRONT char* canonicalize_file_name(const char* path) {
  return realpath(path, nullptr);
}

MEMLEDGER_IN_FRONT int chdir(const char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*)> real("chdir");
  return ask(AT_FDCWD, path, /*follows=*/true,
             [&](int, const char* seen) { return real.get()(seen); });
}
MEMLEDGER_IN_FRONT char* getcwd(char* path, size_t bytes) {
  MEMLEDGER_LOOKED_UP static RealFunction<char* (*)(char*, size_t)> real("getcwd");
  return has_redirected() ? working_folder(real.get(), path, bytes) : real.get()(path, bytes);
}
MEMLEDGER_IN_FRONT char* __getcwd_chk(char* path, size_t bytes, size_t) {
  return getcwd(path, bytes);
}
MEMLEDGER_IN_FRONT char* get_current_dir_name() {
  MEMLEDGER_LOOKED_UP static RealFunction<char* (*)()> real("get_current_dir_name");
  return has_redirected() ? getcwd(nullptr, 0) : real.get()();
}

MEMLEDGER_IN_FRONT DIR* opendir(const char* path) { return open_folder(path); }
MEMLEDGER_IN_FRONT DIR* fdopendir(int descriptor) {
  MEMLEDGER_LOOKED_UP static RealFunction<DIR* (*)(int)> real("fdopendir");
  DIR* const folder = real.get()(descriptor);
  if (folder == nullptr || !has_redirected()) return folder;
  const memledger::inside::KeptErrno kept;
  char path[kPathBytes];
  if (!path_of_descriptor(descriptor, path)) return folder;
  const Seen seen(AT_FDCWD, path, /*follows=*/true);
  if (seen.place() != nullptr) add_private_side(folder, *seen.place());
  return folder;
}
MEMLEDGER_IN_FRONT int closedir(DIR* folder) {
  if (OpenFolder* const open = find_open_folder(folder, /*takes_out=*/true)) {
    if (open->own != nullptr) real_closedir.get()(open->own);
    free(open);
  }
  return real_closedir.get()(folder);
}
MEMLEDGER_IN_FRONT dirent* readdir(DIR* folder) { return read_entry(folder); }
MEMLEDGER_IN_FRONT dirent64* readdir64(DIR* folder) {
  static_assert(sizeof(dirent) == sizeof(dirent64));
  return reinterpret_cast<dirent64*>(read_entry(folder));
}
#define MEMLEDGER_READDIR_R(name, type)                                                \
  MEMLEDGER_IN_FRONT int name(DIR* folder, type* entry, type** result) {               \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(DIR*, type*, type**)> real(#name); \
    if (find_open_folder(folder) == nullptr) return real.get()(folder, entry, result); \
    const memledger::inside::KeptErrno kept;                                           \
    errno = 0;                                                                         \
    const dirent* const found = read_entry(folder);                                    \
    *result = found == nullptr ? nullptr : entry;                                      \
    if (found != nullptr) memcpy(entry, found, found->d_reclen);                       \
    return found == nullptr ? errno : 0;                                               \
  }
MEMLEDGER_READDIR_R(readdir_r, dirent)
MEMLEDGER_READDIR_R(readdir64_r, dirent64)
MEMLEDGER_IN_FRONT void rewinddir(DIR* folder) { rewind_folder(folder); }
MEMLEDGER_IN_FRONT long telldir(DIR* folder) {
  MEMLEDGER_LOOKED_UP static RealFunction<long (*)(DIR*)> real("telldir");
  const OpenFolder* const open = find_open_folder(folder);
  return open != nullptr ? open->entries : real.get()(folder);
}
MEMLEDGER_IN_FRONT void seekdir(DIR* folder, long position) {
  MEMLEDGER_LOOKED_UP static RealFunction<void (*)(DIR*, long)> real("seekdir");
  const OpenFolder* const open = find_open_folder(folder);
  if (open == nullptr) return real.get()(folder, position);
  rewind_folder(folder);
  while (open->entries < position && read_entry(folder) != nullptr) continue;
}

#define MEMLEDGER_SCANDIR(name, type)                                                           \
  MEMLEDGER_IN_FRONT int name(const char* path, type*** list, int (*filter)(const type*),       \
                              int (*compare)(const type**, const type**)) {                     \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, type***, int (*)(const type*), \
                                                    int (*)(const type**, const type**))>       \
        real(#name);                                                                            \
    if (!has_redirected()) return real.get()(path, list, filter, compare);                      \
    return scan_folder(open_folder(path), reinterpret_cast<dirent***>(list),                    \
                       reinterpret_cast<int (*)(const dirent*)>(filter),                        \
                       reinterpret_cast<int (*)(const dirent**, const dirent**)>(compare));     \
  }
MEMLEDGER_SCANDIR(scandir, dirent)
MEMLEDGER_SCANDIR(scandir64, dirent64)

#define MEMLEDGER_GLOB(name, type, look, look_at_link)                                           \
  MEMLEDGER_IN_FRONT int name(const char* pattern, int flags, int (*on_error)(const char*, int), \
                              type* found) {                                                     \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, int, int (*)(const char*, int), \
                                                    type*)>                                      \
        real(#name);                                                                             \
    if (!has_redirected() || (flags & GLOB_ALTDIRFUNC) != 0)                                     \
      return real.get()(pattern, flags, on_error, found);                                        \
    found->gl_opendir = [](const char* path) -> void* { return open_folder(path); };             \
    found->gl_readdir = [](void* folder) {                                                       \
      return reinterpret_cast<decltype(found->gl_readdir(nullptr))>(                             \
          read_entry(static_cast<DIR*>(folder)));                                                \
    };                                                                                           \
    found->gl_closedir = [](void* folder) { closedir(static_cast<DIR*>(folder)); };              \
    found->gl_stat = look;                                                                       \
    found->gl_lstat = look_at_link;                                                              \
    const int result = real.get()(pattern, flags | GLOB_ALTDIRFUNC, on_error, found);            \
    found->gl_flags &= ~GLOB_ALTDIRFUNC;                                                         \
    return result;                                                                               \
  }
MEMLEDGER_GLOB(glob, glob_t, stat, lstat)
MEMLEDGER_GLOB(glob64, glob64_t, stat64, lstat64)

MEMLEDGER_IN_FRONT int mkstemp(char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*)> real("mkstemp");
  return is_redirecting() ? make_temporary_file(path, 0, 0) : real.get()(path);
}
MEMLEDGER_IN_FRONT int mkstemp64(char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*)> real("mkstemp64");
  return is_redirecting() ? make_temporary_file(path, 0, 0) : real.get()(path);
}
MEMLEDGER_IN_FRONT int mkstemps(char* path, int suffix) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*, int)> real("mkstemps");
  return is_redirecting() ? make_temporary_file(path, suffix, 0) : real.get()(path, suffix);
}
MEMLEDGER_IN_FRONT int mkstemps64(char* path, int suffix) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*, int)> real("mkstemps64");
  return is_redirecting() ? make_temporary_file(path, suffix, 0) : real.get()(path, suffix);
}
MEMLEDGER_IN_FRONT int mkostemp(char* path, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*, int)> real("mkostemp");
  return is_redirecting() ? make_temporary_file(path, 0, flags) : real.get()(path, flags);
}
MEMLEDGER_IN_FRONT int mkostemp64(char* path, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*, int)> real("mkostemp64");
  return is_redirecting() ? make_temporary_file(path, 0, flags) : real.get()(path, flags);
}
MEMLEDGER_IN_FRONT int mkostemps(char* path, int suffix, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*, int, int)> real("mkostemps");
  return is_redirecting() ? make_temporary_file(path, suffix, flags)
                          : real.get()(path, suffix, flags);
}
MEMLEDGER_IN_FRONT int mkostemps64(char* path, int suffix, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(char*, int, int)> real("mkostemps64");
  return is_redirecting() ? make_temporary_file(path, suffix, flags)
                          : real.get()(path, suffix, flags);
}
MEMLEDGER_IN_FRONT char* mkdtemp(char* path) {
  MEMLEDGER_LOOKED_UP static RealFunction<char* (*)(char*)> real("mkdtemp");
  if (!is_redirecting()) return real.get()(path);
  const auto make = [&] { return redirected::mkdir(AT_FDCWD, path, 0700); };
  return make_temporary(path, 0, make) == 0 ? path : nullptr;
}
#define MEMLEDGER_TMPFILE(name)                                       \
  MEMLEDGER_IN_FRONT FILE* name() {                                   \
    MEMLEDGER_LOOKED_UP static RealFunction<FILE* (*)()> real(#name); \
    if (!is_redirecting()) return real.get()();                       \
    char path[] = P_tmpdir "/tmpfXXXXXX";                             \
    const int file = make_temporary_file(path, 0, 0);                 \
    if (file < 0) return nullptr;                                     \
    redirected::unlink(AT_FDCWD, path);                               \
    return fdopen(file, "w+");                                        \
  }
MEMLEDGER_TMPFILE(tmpfile)
MEMLEDGER_TMPFILE(tmpfile64)

MEMLEDGER_IN_FRONT int mkfifo(const char* path, mode_t mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, mode_t)> real("mkfifo");
  if (!is_redirecting()) return real.get()(path, mode);
  return redirected::mknod(AT_FDCWD, path, mode | S_IFIFO, 0);
}
MEMLEDGER_IN_FRONT int mkfifoat(int at, const char* path, mode_t mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, mode_t)> real("mkfifoat");
  if (!is_redirecting()) return real.get()(at, path, mode);
  return redirected::mknod(at, path, mode | S_IFIFO, 0);
}
MEMLEDGER_IN_FRONT int mknod(const char* path, mode_t mode, dev_t device) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, mode_t, dev_t)> real("mknod");
  if (!is_redirecting()) return real.get()(path, mode, device);
  return redirected::mknod(AT_FDCWD, path, mode, device);
}
MEMLEDGER_IN_FRONT int mknodat(int at, const char* path, mode_t mode, dev_t device) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, mode_t, dev_t)> real("mknodat");
  if (!is_redirecting()) return real.get()(at, path, mode, device);
  return redirected::mknod(at, path, mode, device);
}

// --- Attributes

MEMLEDGER_IN_FRONT int chmod(const char* path, mode_t mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, mode_t)> real("chmod");
  if (is_redirecting()) return redirected::chmod(AT_FDCWD, path, mode, true);
  return owned(real.get()(path, mode), "chmod", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int lchmod(const char* path, mode_t mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, mode_t)> real("lchmod");
  return is_redirecting() ? redirected::chmod(AT_FDCWD, path, mode, false) : real.get()(path, mode);
}
MEMLEDGER_IN_FRONT int fchmod(int file, mode_t mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, mode_t)> real("fchmod");
  if (is_redirecting()) return redirected::chmod(file, mode);
  return owned(real.get()(file, mode), "chmod", file);
}
MEMLEDGER_IN_FRONT int fchmodat(int at, const char* path, mode_t mode, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, mode_t, int)> real("fchmodat");
  if (!is_redirecting()) return owned(real.get()(at, path, mode, flags), "chmod", at, path);
  if (is_empty(path) && (flags & AT_EMPTY_PATH) != 0) return redirected::chmod(at, mode);
  return redirected::chmod(at, path, mode, (flags & AT_SYMLINK_NOFOLLOW) == 0);
}
MEMLEDGER_IN_FRONT int chown(const char* path, uid_t owner, gid_t group) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, uid_t, gid_t)> real("chown");
  if (is_redirecting()) return redirected::chown(AT_FDCWD, path, owner, group, true);
  return owned(real.get()(path, owner, group), "chown", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int lchown(const char* path, uid_t owner, gid_t group) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, uid_t, gid_t)> real("lchown");
  if (is_redirecting()) return redirected::chown(AT_FDCWD, path, owner, group, false);
  return owned(real.get()(path, owner, group), "chown", AT_FDCWD, path);
}
MEMLEDGER_IN_FRONT int fchown(int file, uid_t owner, gid_t group) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, uid_t, gid_t)> real("fchown");
  if (is_redirecting()) return redirected::chown(file, owner, group);
  return owned(real.get()(file, owner, group), "chown", file);
}
MEMLEDGER_IN_FRONT int fchownat(int at, const char* path, uid_t owner, gid_t group, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, uid_t, gid_t, int)> real(
      "fchownat");
  if (!is_redirecting()) return owned(real.get()(at, path, owner, group, flags), "chown", at, path);
  if (is_empty(path) && (flags & AT_EMPTY_PATH) != 0) return redirected::chown(at, owner, group);
  return redirected::chown(at, path, owner, group, (flags & AT_SYMLINK_NOFOLLOW) == 0);
}
MEMLEDGER_IN_FRONT int utimensat(int at, const char* path, const timespec times[2], int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, const timespec*, int)> real(
      "utimensat");
  if (!is_redirecting()) return real.get()(at, path, times, flags);
  const char* volatile given = path;  // declared never to be null, which it may be
  if (given == nullptr || (is_empty(path) && (flags & AT_EMPTY_PATH) != 0))
    return redirected::set_times(at, times);
  return redirected::set_times(at, path, times, (flags & AT_SYMLINK_NOFOLLOW) == 0);
}
MEMLEDGER_IN_FRONT int futimens(int file, const timespec times[2]) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const timespec*)> real("futimens");
  return is_redirecting() ? redirected::set_times(file, times) : real.get()(file, times);
}
MEMLEDGER_IN_FRONT int utimes(const char* path, const timeval times[2]) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const timeval*)> real("utimes");
  return is_redirecting() ? set_times(AT_FDCWD, path, times, true) : real.get()(path, times);
}
MEMLEDGER_IN_FRONT int lutimes(const char* path, const timeval times[2]) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const timeval*)> real("lutimes");
  return is_redirecting() ? set_times(AT_FDCWD, path, times, false) : real.get()(path, times);
}
MEMLEDGER_IN_FRONT int futimes(int file, const timeval times[2]) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const timeval*)> real("futimes");
  return is_redirecting() ? set_times(file, times) : real.get()(file, times);
}
MEMLEDGER_IN_FRONT int futimesat(int at, const char* path, const timeval times[2]) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, const timeval*)> real(
      "futimesat");
  if (!is_redirecting()) return real.get()(at, path, times);
  const char* volatile given = path;
  return given == nullptr ? set_times(at, times) : set_times(at, path, times, true);
}
MEMLEDGER_IN_FRONT int utime(const char* path, const utimbuf* times) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const utimbuf*)> real("utime");
  if (!is_redirecting()) return real.get()(path, times);
  if (times == nullptr) return redirected::set_times(AT_FDCWD, path, nullptr, true);
  const timespec exact[2] = {{times->actime, 0}, {times->modtime, 0}};
  return redirected::set_times(AT_FDCWD, path, exact, true);
}

#define MEMLEDGER_SETXATTR(name, follows)                                                          \
  MEMLEDGER_IN_FRONT int name(const char* path, const char* key, const void* value, size_t size,   \
                              int flags) {                                                         \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const char*, const void*, size_t, \
                                                    int)>                                          \
        real(#name);                                                                               \
    if (!is_redirecting()) return real.get()(path, key, value, size, flags);                       \
    return redirected::set_attribute(path, key, value, size, flags, follows);                      \
  }
#define MEMLEDGER_REMOVEXATTR(name, follows)                                                \
  MEMLEDGER_IN_FRONT int name(const char* path, const char* key) {                          \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, const char*)> real(#name); \
    if (!is_redirecting()) return real.get()(path, key);                                    \
    return redirected::remove_attribute(path, key, follows);                                \
  }
#define MEMLEDGER_GETXATTR(name, follows)                                                         \
  MEMLEDGER_IN_FRONT ssize_t name(const char* path, const char* key, void* value, size_t size) {  \
    MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(const char*, const char*, void*, size_t)> \
        real(#name);                                                                              \
    return ask(AT_FDCWD, path, follows,                                                           \
               [&](int, const char* seen) { return real.get()(seen, key, value, size); });        \
  }
#define MEMLEDGER_LISTXATTR(name, follows)                                                        \
  MEMLEDGER_IN_FRONT ssize_t name(const char* path, char* list, size_t size) {                    \
    MEMLEDGER_LOOKED_UP static RealFunction<ssize_t (*)(const char*, char*, size_t)> real(#name); \
    return ask(AT_FDCWD, path, follows,                                                           \
               [&](int, const char* seen) { return real.get()(seen, list, size); });              \
  }
MEMLEDGER_SETXATTR(setxattr, true)
MEMLEDGER_SETXATTR(lsetxattr, false)
MEMLEDGER_REMOVEXATTR(removexattr, true)
MEMLEDGER_REMOVEXATTR(lremovexattr, false)
MEMLEDGER_GETXATTR(getxattr, true)
MEMLEDGER_GETXATTR(lgetxattr, false)
MEMLEDGER_LISTXATTR(listxattr, true)
MEMLEDGER_LISTXATTR(llistxattr, false)
MEMLEDGER_IN_FRONT int fsetxattr(int file, const char* key, const void* value, size_t size,
                                 int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, const void*, size_t, int)> real(
      "fsetxattr");
  return is_redirecting() ? redirected::set_attribute(file, key, value, size, flags)
                          : real.get()(file, key, value, size, flags);
}
MEMLEDGER_IN_FRONT int fremovexattr(int file, const char* key) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*)> real("fremovexattr");
  return is_redirecting() ? redirected::remove_attribute(file, key) : real.get()(file, key);
}

// --- Programs and libraries

MEMLEDGER_IN_FRONT int execve(const char* path, Arguments arguments, Arguments environment) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, Arguments, Arguments)> real(
      "execve");
  return ask(AT_FDCWD, path, /*follows=*/true, [&](int, const char* seen) {
    return with_library(seen, arguments, environment,
                        [&](Arguments whole) { return real.get()(seen, arguments, whole); });
  });
}
MEMLEDGER_IN_FRONT int execv(const char* path, Arguments arguments) {
  return execve(path, arguments, environ);
}
// A name without a slash is looked up in PATH, where programs that were just made seldom are.
MEMLEDGER_IN_FRONT int execvpe(const char* file, Arguments arguments, Arguments environment) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(const char*, Arguments, Arguments)> real(
      "execvpe");
  if (strchr(file, '/') == nullptr) {
    return with_library(file, arguments, environment,
                        [&](Arguments whole) { return real.get()(file, arguments, whole); });
  }
  return ask(AT_FDCWD, file, /*follows=*/true, [&](int, const char* seen) {
    return with_library(seen, arguments, environment,
                        [&](Arguments whole) { return real.get()(seen, arguments, whole); });
  });
}
MEMLEDGER_IN_FRONT int execvp(const char* file, Arguments arguments) {
  return execvpe(file, arguments, environ);
}
MEMLEDGER_IN_FRONT int fexecve(int file, Arguments arguments, Arguments environment) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, Arguments, Arguments)> real("fexecve");
  char path[kPathBytes];
  const bool is_known = is_redirecting() && path_of_descriptor(file, path);
  return with_library(is_known ? path : nullptr, arguments, environment,
                      [&](Arguments whole) { return real.get()(file, arguments, whole); });
}
MEMLEDGER_IN_FRONT int execveat(int folder, const char* file, Arguments arguments,
                                Arguments environment, int flags) {
  MEMLEDGER_LOOKED_UP static RealFunction<int (*)(int, const char*, Arguments, Arguments, int)>
      real("execveat");
  char path[kPathBytes];
  const bool is_known =
      is_redirecting() && file != nullptr &&
      (*file == '\0' ? path_of_descriptor(folder, path) : absolute_path(folder, file, path));
  return with_library(is_known ? path : nullptr, arguments, environment, [&](Arguments whole) {
    return real.get()(folder, file, arguments, whole, flags);
  });
}
#define MEMLEDGER_EXECL(name, call, environment)                                                 \
  MEMLEDGER_IN_FRONT int name(const char* path, const char* first, ...) {                        \
    va_list list;                                                                                \
    va_start(list, first);                                                                       \
    const size_t count = 1 + count_arguments(list);                                              \
    va_end(list);                                                                                \
    auto** const arguments = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*))); \
    va_start(list, first);                                                                       \
    arguments[0] = const_cast<char*>(first);                                                     \
    for (size_t i = 1; i <= count; ++i) arguments[i] = va_arg(list, char*);                      \
    const int result = call(path, arguments, environment);                                       \
    va_end(list);                                                                                \
    return result;                                                                               \
  }
MEMLEDGER_EXECL(execl, execve, environ)
MEMLEDGER_EXECL(execlp, execvpe, environ)
MEMLEDGER_EXECL(execle, execve, va_arg(list, char**))

#define MEMLEDGER_SPAWN(name)                                                                      \
  MEMLEDGER_IN_FRONT int name(pid_t* process, const char* path, const void* actions,               \
                              const void* attributes, Arguments arguments,                         \
                              Arguments environment) {                                             \
    MEMLEDGER_LOOKED_UP static RealFunction<int (*)(pid_t*, const char*, const void*, const void*, \
                                                    Arguments, Arguments)>                         \
        real(#name);                                                                               \
    const memledger::inside::KeptErrno kept;                                                       \
    const auto spawn = [&](int, const char* seen) {                                                \
      return with_library(seen, arguments, environment, [&](Arguments whole) {                     \
        return real.get()(process, seen, actions, attributes, arguments, whole);                   \
      });                                                                                          \
    };                                                                                             \
    /* Else it is looked up in PATH. */                                                            \
    const bool is_path = path != nullptr && strchr(path, '/') != nullptr;                          \
    const int error = is_path ? ask(AT_FDCWD, path, true, spawn) : spawn(AT_FDCWD, path);          \
    return error == -1 ? errno : error;                                                            \
  }
MEMLEDGER_SPAWN(posix_spawn)
MEMLEDGER_SPAWN(posix_spawnp)

// The real dlopen knows its caller by the return address, see preload.cc.
MEMLEDGER_IN_FRONT MEMLEDGER_MAKES_TAIL_CALLS void* dlopen(const char* file, int mode) {
  MEMLEDGER_LOOKED_UP static RealFunction<void* (*)(const char*, int)> real("dlopen");
  if (has_redirected() && file != nullptr && strchr(file, '/') != nullptr) {
    void* library = nullptr;
    if (load_private(real.get(), file, mode, library)) return library;
  }
  MEMLEDGER_TAIL_CALL real.get()(file, mode);
}

}  // extern "C"
