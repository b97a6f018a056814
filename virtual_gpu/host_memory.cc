#include "virtual_gpu/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace memledger::virtual_gpu {
namespace {

// Smaller ranges cost less to write than to give back: they are likely to be in use already.
constexpr size_t kLeastToGiveBack = size_t{1} << 20;

// Whole pages. Only private memory that no file is behind comes back as zeros, and only there does
// Linux accept MADV_FREE; what that does to the pages does not matter, as they are filled in any
// case.
bool give_back(void* pages, size_t bytes) {
  const int error_before = errno;
  const bool given =
      madvise(pages, bytes, MADV_FREE) == 0 && madvise(pages, bytes, MADV_DONTNEED) == 0;
  errno = error_before;
  return given;
}

}  // namespace

void fill_with_zeros(void* begin, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t pages_begin = (first + page - 1) / page * page;
  const uintptr_t pages_end = (first + bytes) / page * page;
  if (bytes < kLeastToGiveBack ||
      !give_back(reinterpret_cast<void*>(pages_begin), pages_end - pages_begin)) {
    std::memset(begin, 0, bytes);
    return;
  }
  std::memset(begin, 0, pages_begin - first);
  std::memset(reinterpret_cast<void*>(pages_end), 0, first + bytes - pages_end);
}

}  // namespace memledger::virtual_gpu
