#include "registry/core/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace memledger::core {

namespace {

// Advises on the whole pages of a range.
void advise(void* begin, size_t bytes, uintptr_t page, int advice) noexcept {
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (begin == nullptr || first >= end) return;
  const int before = errno;
  madvise(reinterpret_cast<void*>(first), end - first, advice);
  errno = before;
}

}  // namespace

void prefer_huge_pages(void* begin, size_t bytes) noexcept {
  advise(begin, bytes, uintptr_t{2} << 20, MADV_HUGEPAGE);
}

void take_page_faults(void* begin, size_t bytes) noexcept {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  advise(begin, bytes, static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), kPopulateWrite);
}

}  // namespace memledger::core
