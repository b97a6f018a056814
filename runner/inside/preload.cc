// libmemledger_preload.so: brought into a program by LD_PRELOAD, and into its children (shells, Python, launchers). Brings
// libmemledger.so (MEMLEDGER_LIBRARY) in as soon as LibTorch is there and initialised; does nothing in a program without
// LibTorch.
//
// Knows neither LibTorch nor the C++ library, so that it can go into anything.
//
// When: a program linked with LibTorch has it before its own code begins, which is when __libc_start_main is called: all shared
// libraries are initialised, the program's own static objects are not. Python and plugin hosts load it later, by dlopen.

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

bool has_file_name(const char* path, const char* name) {
  const char* const slash = strrchr(path, '/');
  return strcmp(slash == nullptr ? path : slash + 1, name) == 0;
}

struct Loaded {
  bool libtorch = false;
  bool memledger = false;
};

int note_loaded(dl_phdr_info* info, size_t /*size*/, void* result) {
  Loaded& loaded = *static_cast<Loaded*>(result);
  if (info->dlpi_name == nullptr) return 0;
  if (has_file_name(info->dlpi_name, "libtorch_cpu.so")) loaded.libtorch = true;
  if (has_file_name(info->dlpi_name, "libmemledger.so")) loaded.memledger = true;
  return 0;
}

using Dlopen = void* (*)(const char*, int);

Dlopen real_dlopen() {
  static void* found = nullptr;
  if (__atomic_load_n(&found, __ATOMIC_RELAXED) == nullptr)
    __atomic_store_n(&found, dlsym(RTLD_NEXT, "dlopen"), __ATOMIC_RELAXED);
  return reinterpret_cast<Dlopen>(__atomic_load_n(&found, __ATOMIC_RELAXED));
}

void* memledger_handle = nullptr;

// Set before anything is loaded, so that what memledger's own loading opens does not come back here.
bool done = false;

void bring_memledger_in() {
  if (__atomic_load_n(&done, __ATOMIC_ACQUIRE)) return;
  Loaded loaded;
  dl_iterate_phdr(&note_loaded, &loaded);
  if (!loaded.libtorch || __atomic_exchange_n(&done, true, __ATOMIC_ACQ_REL)) return;
  const char* const library = getenv("MEMLEDGER_LIBRARY");
  if (loaded.memledger || library == nullptr || real_dlopen() == nullptr) return;
  void* const handle = real_dlopen()(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    fprintf(stderr, "memledger: this program is not watched: %s\n", dlerror());
    return;
  }
  __atomic_store_n(&memledger_handle, handle, __ATOMIC_RELEASE);
}

// What libmemledger.so does at exit must come before the destructors of libraries that it does not depend on (LibTorch's CUDA
// library), and exit handlers run in reverse: it is told when the program itself begins, or already runs.
void tell_that_main_has_begun() {
  void* const handle = __atomic_load_n(&memledger_handle, __ATOMIC_ACQUIRE);
  const auto begins = reinterpret_cast<void (*)()>(dlsym(handle == nullptr ? RTLD_DEFAULT : handle, "memledger_main_begins"));
  if (begins != nullptr) begins();
}

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

int main_of_program(int argc, char** argv, char** environment) {
  tell_that_main_has_begun();
  return program_main(argc, argv, environment);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv,
                                                             void (*init)(), void (*fini)(), void (*rtld_fini)(),
                                                             void* stack_end) {
  using Start = decltype(&__libc_start_main);
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  bring_memledger_in();
  program_main = main;
  return start(&main_of_program, argc, argv, init, fini, rtld_fini, stack_end);
}

// A name without a slash is looked up along the run path of the caller, whom the real dlopen recognises by its return address:
// it must be jumped to, not called, and so nothing can be done after it. The next call will see what it has loaded.
__attribute__((visibility("default"), optimize("O2"))) void* dlopen(const char* file, int mode) {
  if (file == nullptr || strchr(file, '/') == nullptr || __atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
    return real_dlopen()(file, mode);
  }
  void* const handle = real_dlopen()(file, mode);
  bring_memledger_in();
  if (program_main != nullptr && __atomic_load_n(&done, __ATOMIC_ACQUIRE)) tell_that_main_has_begun();
  return handle;
}

}  // extern "C"
