#include "registry/core/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

namespace memledger::core {

void prefer_huge_pages(void* begin, size_t bytes) noexcept {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + bytes) / kHugePage * kHugePage;
  if (begin == nullptr || first >= end) return;
  const int before = errno;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  errno = before;
}

}  // namespace memledger::core
