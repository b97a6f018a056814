// libmemledger_preload.so: LD_PRELOAD brings it into a program and its children (shells, Python,
// launchers). It loads libmemledger.so as soon as LibTorch is there and initialised, and does
// nothing in a program without LibTorch.
//
// Links with neither LibTorch nor the C++ library, so that it can go into anything.
//
// When: a program linked with LibTorch has it before its own code begins, which is when
// __libc_start_main is called: all shared libraries are initialised, the program's own static
// objects are not. Python and plugin hosts load it later, by dlopen.

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "prediction/measure_variables.h"
#include "runner/environment.h"
#include "runner/inside/other_release.h"
#include "runner/inside/torch_calls.h"
#include "runner/libtorch_release.h"
#include "virtual_gpu/device_use.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MEMLEDGER_OF_THREAD_SANITIZER
#endif
#endif

namespace {

namespace environment = memledger::environment;
namespace prediction = memledger::prediction;

bool has_file_name(const char* path, const char* name) {
  const char* const slash = strrchr(path, '/');
  return strcmp(slash == nullptr ? path : slash + 1, name) == 0;
}

struct Loaded {
  bool libtorch = false;
  char folder[4096] = "";  // where LibTorch's libraries lie
  bool memledger = false;
};

int note_loaded(dl_phdr_info* info, size_t /*size*/, void* result) {
  Loaded& loaded = *static_cast<Loaded*>(result);
  if (info->dlpi_name == nullptr) return 0;
  if (has_file_name(info->dlpi_name, "libtorch_cpu.so")) {
    loaded.libtorch = true;
    const char* const slash = strrchr(info->dlpi_name, '/');
    if (slash != nullptr)
      snprintf(loaded.folder, sizeof loaded.folder, "%.*s",
               static_cast<int>(slash - info->dlpi_name), info->dlpi_name);
  }
  if (has_file_name(info->dlpi_name, "libmemledger.so")) loaded.memledger = true;
  return 0;
}

// Returns whether LibTorch is of the release that memledger was built for, and the version where it
// is not.
bool is_our_release(const char* folder, char* version, size_t size) {
  const char* const ours = secure_getenv(environment::kLibTorch);
  if (ours == nullptr || !memledger::read_libtorch_version(folder, version, size)) return true;
  return memledger::is_of_release(version, ours);
}

// Without the sanitizer's own instructions in it, memledger's locks and LibTorch's reference counts
// look like races of the program, which would end with 66.
bool is_of_thread_sanitizer() {
#if defined(__SANITIZE_THREAD__) || defined(MEMLEDGER_OF_THREAD_SANITIZER)
  return false;  // so are we
#else
  return dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr;
#endif
}

bool is_quiet() {
  const char* const quiet = secure_getenv(environment::kQuiet);
  return quiet != nullptr && *quiet != '\0' && strcmp(quiet, "0") != 0;
}

// A LibTorch that Python loads does not load with the libraries of a virtual GPU that was made for
// another one, and the dynamic linker says no more than which symbol it lacks.
void explain_failure(const char* file) {
  static bool explained = false;
  const char* const ours = secure_getenv(environment::kLibTorch);
  const char* const preloaded = getenv("LD_PRELOAD");
  const char* const slash = strrchr(file, '/');
  if (getenv(environment::kVirtualGpu) == nullptr || ours == nullptr || preloaded == nullptr ||
      slash == nullptr)
    return;
  for (const char* const libraries : {"", "/lib"}) {
    char path[4096];
    snprintf(path, sizeof path, "%.*s%s/libtorch_cpu.so", static_cast<int>(slash - file), file,
             libraries);
    if (access(path, F_OK) != 0) continue;
    *strrchr(path, '/') = '\0';
    char version[64];
    if (!memledger::read_libtorch_version(path, version, sizeof version)) continue;
    const int cuda = memledger::cuda_of_libraries(preloaded);
    if (memledger::is_of_release(version, ours) &&
        memledger::is_same_cuda(memledger::cuda_of_version(version), cuda))
      continue;
    if (__atomic_exchange_n(&explained, true, __ATOMIC_ACQ_REL)) return;
    fprintf(stderr,
            "memledger: %s could not be loaded: it belongs to LibTorch %s, and the virtual GPU of "
            "this memledger was made for LibTorch %s with CUDA %d. Build memledger for that "
            "LibTorch (LIBTORCH=%.*s ./bazelw build ...), or use LibTorch %s\n",
            file, version, ours, cuda, static_cast<int>(strrchr(path, '/') - path), path, ours);
    return;
  }
}

using Dlopen = void* (*)(const char*, int);

Dlopen real_dlopen() {
  static void* function = nullptr;
  if (__atomic_load_n(&function, __ATOMIC_RELAXED) == nullptr)
    __atomic_store_n(&function, dlsym(RTLD_NEXT, "dlopen"), __ATOMIC_RELAXED);
  return reinterpret_cast<Dlopen>(__atomic_load_n(&function, __ATOMIC_RELAXED));
}

void* memledger_handle = nullptr;

// Set before memledger is loaded: what that opens must not come back here.
bool done = false;

// On standard error, and to who measures the program.
void tell_unwatched(const char* why, bool always) {
  if (always || !is_quiet()) fprintf(stderr, "memledger: this program is not watched: %s\n", why);
  const char* const folder = secure_getenv(prediction::kMeasureVariable);
  if (folder == nullptr || *folder == '\0') return;
  char path[PATH_MAX], line[512];
  snprintf(path, sizeof path, "%s/%s", folder, prediction::kUnwatchedProcesses);
  const int length = snprintf(line, sizeof line, "%s\n", why);
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  const ssize_t written = write(file, line, std::min(static_cast<size_t>(length), sizeof line - 1));
  (void)written;  // the figures are missing all the same
  close(file);
}

void bring_memledger_in() {
  if (__atomic_load_n(&done, __ATOMIC_ACQUIRE)) return;
  Loaded loaded;
  dl_iterate_phdr(&note_loaded, &loaded);
  if (!loaded.libtorch || __atomic_exchange_n(&done, true, __ATOMIC_ACQ_REL)) return;
  const char* const library = secure_getenv(environment::kLibrary);
  if (loaded.memledger || library == nullptr || real_dlopen() == nullptr) return;
  char version[64];
  if (!is_our_release(loaded.folder, version, sizeof version)) {
    char why[256];
    snprintf(why, sizeof why, "its LibTorch is %s, and this memledger was built for %s", version,
             secure_getenv(environment::kLibTorch));
    tell_unwatched(why, /*always=*/true);
    memledger::inside::ask_other_release();
    return;
  }
  if (is_of_thread_sanitizer()) {
    tell_unwatched("it is of the thread sanitizer, which would report races that are none",
                   /*always=*/false);
    return;
  }
  void* const handle = real_dlopen()(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    tell_unwatched(dlerror(), /*always=*/true);
    return;
  }
  __atomic_store_n(&memledger_handle, handle, __ATOMIC_RELEASE);
  memledger::inside::hand_torch_calls_to(
      reinterpret_cast<memledger::inside::CallTorch>(dlsym(handle, "memledger_call_torch")));
}

// libmemledger.so must do its work at exit before the destructors of libraries that it does not
// depend on (LibTorch's CUDA library). Exit handlers run in reverse, so it registers one when the
// program itself begins, or already runs.
void tell_that_main_has_begun() {
  void* const handle = __atomic_load_n(&memledger_handle, __ATOMIC_ACQUIRE);
  const auto begins = reinterpret_cast<void (*)()>(
      dlsym(handle == nullptr ? RTLD_DEFAULT : handle, "memledger_main_begins"));
  if (begins != nullptr) begins();
}

bool is_watched() {
  return __atomic_load_n(&memledger_handle, __ATOMIC_ACQUIRE) != nullptr ||
         dlsym(RTLD_DEFAULT, "memledger_main_begins") != nullptr;
}

// What the virtual GPU's devices held at most, of a program that has no report: one without
// LibTorch, or with one that is not watched.
__attribute__((destructor)) void tell_device_use() {
  const auto is_used = reinterpret_cast<decltype(&memledger_virtual_gpu_is_used)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_is_used"));
  const auto uses = reinterpret_cast<decltype(&memledger_virtual_gpu_uses)>(
      dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses"));
  if (is_used == nullptr || uses == nullptr || !is_used() || is_quiet() || is_watched() ||
      secure_getenv(prediction::kMeasureVariable) != nullptr)
    return;
  constexpr double kMiB = 1 << 20;
  memledger_virtual_gpu_use rows[8];
  const size_t count = std::min(uses(rows, std::size(rows)), std::size(rows));
  for (size_t i = 0; i < count; ++i) {
    if (rows[i].peak_bytes == 0) continue;
    fprintf(stderr,
            "memledger: cuda:%zu (%s): process %d took %.1f MiB of %.1f at most, %.1f of it the "
            "CUDA context\n",
            i, rows[i].name, getpid(), static_cast<double>(rows[i].peak_bytes) / kMiB,
            static_cast<double>(rows[i].total_bytes) / kMiB,
            static_cast<double>(rows[i].context_bytes) / kMiB);
  }
}

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

int main_of_program(int argc, char** argv, char** environment) {
  tell_that_main_has_begun();
  return program_main(argc, argv, environment);
}

// Whether what it opens may be what memledger waits for, and its caller does not matter.
bool wants_a_look(const char* file) {
  return file != nullptr && strchr(file, '/') != nullptr && strchr(file, '$') == nullptr &&
         !__atomic_load_n(&done, __ATOMIC_ACQUIRE);
}

void* open_path(const char* path, int mode) {
  // Constructors of what is opened open others, with the dynamic linker's lock.
  static thread_local int depth = 0;
  ++depth;
  void* const handle = real_dlopen()(path, mode);
  --depth;
  if (handle == nullptr) explain_failure(path);
  bring_memledger_in();
  if (depth == 0 && program_main != nullptr && __atomic_load_n(&done, __ATOMIC_ACQUIRE))
    tell_that_main_has_begun();
  return handle;
}

}  // namespace

// GCC makes tail calls where it optimizes; Clang does not know its attribute, and promises the
// call.
#if defined(__clang__)
#define MEMLEDGER_MAKES_TAIL_CALLS
#define MEMLEDGER_TAIL_CALL [[clang::musttail]] return
#else
#define MEMLEDGER_MAKES_TAIL_CALLS __attribute__((optimize("O2")))
#define MEMLEDGER_TAIL_CALL return
#endif

extern "C" {

__attribute__((visibility("default"))) int __libc_start_main(int (*main)(int, char**, char**),
                                                             int argc, char** argv, void (*init)(),
                                                             void (*fini)(), void (*rtld_fini)(),
                                                             void* stack_end) {
  using Start = decltype(&__libc_start_main);
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  bring_memledger_in();
  program_main = main;
  return start(&main_of_program, argc, argv, init, fini, rtld_fini, stack_end);
}

// The real dlopen knows its caller by the return address: a name without a slash is looked up along
// the caller's run path, and $ORIGIN is the caller's. For such names it is tail-called, so nothing
// can be done after it; the next call sees what it has loaded. For any other path it does not
// matter who calls.
__attribute__((visibility("default"))) MEMLEDGER_MAKES_TAIL_CALLS void* dlopen(const char* file,
                                                                               int mode) {
  if (wants_a_look(file)) return open_path(file, mode);
  MEMLEDGER_TAIL_CALL real_dlopen()(file, mode);
}

}  // extern "C"
