#include "registry/core/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

namespace memledger::core {

namespace {

// Advises on the whole pages of a range, `most` bytes at a time: a multiple of the page.
void advise(void* begin, size_t bytes, uintptr_t page, int advice,
            uintptr_t most = std::numeric_limits<uintptr_t>::max()) noexcept {
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (begin == nullptr || first >= end) return;
  const int before = errno;
  for (uintptr_t at = first; at < end;) {
    const uintptr_t piece = std::min(end - at, most);
    madvise(reinterpret_cast<void*>(at), piece, advice);
    at += piece;
  }
  errno = before;
}

uintptr_t page_size() noexcept { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

void prefer_huge_pages(void* begin, size_t bytes) noexcept {
  advise(begin, bytes, uintptr_t{2} << 20, MADV_HUGEPAGE);
}

void take_page_faults(void* begin, size_t bytes) noexcept {
  if (begin == nullptr) return;
  // Not with MADV_POPULATE_WRITE: it takes the lock of the process's mappings, and takes it again
  // before a thread that waits to map memory has woken up: for 4 ms or more, in pieces of 2 MiB,
  // too. A fault takes the lock of its own mapping alone (Linux 6.4). Not with a read and a write,
  // which are two faults.
  auto* const memory = static_cast<volatile char*>(begin);
  const uintptr_t page = page_size();
  const uintptr_t into_page = reinterpret_cast<uintptr_t>(begin) % page;
  for (size_t at = 0; at < bytes; at += at == 0 ? page - into_page : page)
    __atomic_fetch_or(memory + at, 0, __ATOMIC_RELAXED);
}

void give_back_pages(void* begin, size_t bytes) noexcept {
  // The system's lock of the process's mappings is held for as long as one call takes, and whoever
  // maps memory meanwhile waits: malloc of the program's other threads, a table that grows.
  constexpr uintptr_t kMostAtATime = uintptr_t{2} << 20;
  advise(begin, bytes, page_size(), MADV_DONTNEED, kMostAtATime);
}

}  // namespace memledger::core
