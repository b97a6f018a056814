#pragma once

#include <link.h>

namespace memledger::core {

// Calls dl_iterate_phdr() and keeps other threads from forking meanwhile. With glibc (seen with
// 2.36) a child gets that lock as another thread held it, and nothing in the child frees it. Then
// the child's first dl_iterate_phdr(), perhaps in LibTorch's unwinder, never returns. `visit` is
// called with a lock held that only forks wait for. Thread-safe.
int for_each_loaded_library(int (*visit)(dl_phdr_info* library, size_t size, void* data),
                            void* data);

// Keeps other threads from forking while it lives; for functions that go over the loaded libraries
// themselves: LibTorch's unwinder and symbolizer, and the C++ runtime's tables. Do not nest.
class UsesLoadedLibraries {
 public:
  UsesLoadedLibraries();
  ~UsesLoadedLibraries();
  UsesLoadedLibraries(const UsesLoadedLibraries&) = delete;
  UsesLoadedLibraries& operator=(const UsesLoadedLibraries&) = delete;
};

// Called around fork; the first waits until nobody uses them.
void lock_loaded_libraries_for_fork();
void unlock_loaded_libraries_after_fork();

}  // namespace memledger::core
