#include "virtual_gpu/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
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

std::optional<uintptr_t> AddressSpace::take_highest(size_t bytes, size_t alignment) {
  for (auto range = free_.rbegin(); range != free_.rend(); ++range) {
    const auto [begin, length] = *range;
    if (length < bytes) continue;
    const uintptr_t aligned = (begin + length - bytes) / alignment * alignment;
    if (aligned < begin) continue;
    const size_t rest = begin + length - (aligned + bytes);
    if (aligned == begin) {
      free_.erase(std::prev(range.base()));
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

// In pages.
size_t DeviceAddresses::longest_gap(Pages taken) {
  size_t longest = 0, gap = 0;
  for (size_t page = 0; page < kPagesOfChunk; ++page) {
    gap = taken >> page & 1 ? 0 : gap + 1;
    longest = std::max(longest, gap);
  }
  return longest;
}

void DeviceAddresses::set_chunk(uintptr_t begin, Pages before, Pages after) {
  by_gap_[longest_gap(before)].erase(begin);
  by_gap_[longest_gap(after)].insert(begin);
  chunks_[begin] = after;
}

// The lowest place in the lowest chunk that has one.
std::optional<uintptr_t> DeviceAddresses::take_in_chunk(size_t pages) {
  const Pages wanted = static_cast<Pages>((1u << pages) - 1);
  std::optional<uintptr_t> chunk;
  for (size_t gap = pages; gap <= kPagesOfChunk; ++gap) {
    if (by_gap_[gap].empty()) continue;
    const uintptr_t lowest = *by_gap_[gap].begin();
    if (!chunk || lowest < *chunk) chunk = lowest;
  }
  if (!chunk) {
    chunk = free_.take_highest(kChunk, kChunk);
    if (chunk) set_chunk(*chunk, 0, wanted);
    return chunk;
  }
  const Pages taken = chunks_[*chunk];
  size_t first = 0;
  while (taken & wanted << first) ++first;
  set_chunk(*chunk, taken, static_cast<Pages>(taken | wanted << first));
  return *chunk + first * kPage;
}

std::optional<uintptr_t> DeviceAddresses::take(size_t bytes) {
  if (ascending_) return free_.take(bytes, kPage);
  const std::optional<uintptr_t> address =
      bytes <= kChunk ? take_in_chunk(bytes / kPage)
                      : free_.take_highest(round_up(bytes, kChunk), kChunk);
  if (address) return address;
  const std::optional<uintptr_t> exact = free_.take_highest(bytes, kPage);
  if (exact) exact_[*exact] = bytes;
  return exact;
}

void DeviceAddresses::give(uintptr_t begin, size_t bytes) {
  if (ascending_ || exact_.erase(begin) != 0) return free_.give(begin, bytes);
  if (bytes > kChunk) return free_.give(begin, round_up(bytes, kChunk));
  const auto chunk = std::prev(chunks_.upper_bound(begin));
  const auto given =
      static_cast<Pages>(((1u << bytes / kPage) - 1) << (begin - chunk->first) / kPage);
  set_chunk(chunk->first, chunk->second, static_cast<Pages>(chunk->second & ~given));
  if (chunk->second != 0) return;
  by_gap_[kPagesOfChunk].erase(chunk->first);
  free_.give(chunk->first, kChunk);
  chunks_.erase(chunk);
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
