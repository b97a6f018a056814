#include "virtual_gpu/address_space.h"

#include <sys/mman.h>

#include <utility>

namespace memledger::virtual_gpu {

std::optional<uintptr_t> AddressSpace::take(size_t bytes, size_t alignment) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [begin, length] = *range;
    const uintptr_t aligned = round_up(begin, alignment);
    if (aligned - begin > length || length - (aligned - begin) < bytes) continue;
    const size_t rest = length - (aligned - begin) - bytes;
    if (aligned == begin) {
      free_.erase(range);
    } else {
      range->second = aligned - begin;
    }
    if (rest) free_.emplace(aligned + bytes, rest);
    return aligned;
  }
  return std::nullopt;
}

void AddressSpace::give(uintptr_t begin, size_t bytes) {
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, begin, bytes);
}

uintptr_t reserve_addresses(size_t bytes, size_t alignment) {
  // Asked for with room to cut an aligned range out of it.
  void* mapped = mmap(nullptr, bytes + alignment, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return 0;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = round_up(begin, alignment);
  if (aligned != begin) munmap(mapped, aligned - begin);
  const size_t tail = begin + alignment - aligned;
  if (tail) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  // A core file would otherwise list terabytes of nothing.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_DONTDUMP);
  return aligned;
}

void release_addresses(uintptr_t begin, size_t bytes) {
  munmap(reinterpret_cast<void*>(begin), bytes);
}

}  // namespace memledger::virtual_gpu
