#pragma once

#include <link.h>

namespace memledger::core {

// dl_iterate_phdr(), which no fork interrupts. While one thread is in it, a child that another thread forks gets glibc's lock taken,
// with no thread to free it (seen with glibc 2.36), and waits for ever in its first dl_iterate_phdr(): the one of LibTorch's
// unwinder, say. Thread-safety: any thread, any time. Holds a lock that only forks wait for while `visit` is called.
int for_each_loaded_library(int (*visit)(dl_phdr_info* library, size_t size, void* data), void* data);

// Held by whoever calls what goes over the loaded libraries itself: LibTorch's unwinder and symbolizer, which have locks of their
// own, too, and the C++ runtime's tables. Do not nest.
class UsesLoadedLibraries {
 public:
  UsesLoadedLibraries();
  ~UsesLoadedLibraries();
  UsesLoadedLibraries(const UsesLoadedLibraries&) = delete;
  UsesLoadedLibraries& operator=(const UsesLoadedLibraries&) = delete;
};

// Around fork: waits until nobody uses them.
void lock_loaded_libraries_for_fork();
void unlock_loaded_libraries_after_fork();

}  // namespace memledger::core
