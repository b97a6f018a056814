#pragma once

#include <cstddef>
#include <cstdint>

// Memory that the program took and whose size neither LibTorch's tensors nor a profile give, for
// the verdict. These are results of a library whose size only the device knows, and memory without
// a known upper bound. Found by name (dlsym): where it is not, there is no virtual GPU.
extern "C" {

struct memledger_virtual_gpu_library_size {
  const char* what;     // "cuSPARSE's product of sparse matrices"; lives as long as the process
  uint64_t count;       // how often
  int has_upper_bound;  // 0: a run with `reads=all,workspaces=upper` may take too little
};

// Writes up to `capacity` rows and returns how many there are. Counts since the process began.
__attribute__((visibility("default"))) size_t memledger_virtual_gpu_library_sizes(
    memledger_virtual_gpu_library_size* rows, size_t capacity);

}  // extern "C"

namespace memledger::virtual_gpu {

enum class LibrarySize {
  kSparseProduct,
  kStreamOrderedPool,
  kEagerLoading,
  kOtherGraph,
  kCusparseLt,
  kCount,
};

// Lock-free.
void note_library_size(LibrarySize size);
// Writes all counts into this process's UseFile, which is made later than the first of them.
void tell_library_sizes();

}  // namespace memledger::virtual_gpu
