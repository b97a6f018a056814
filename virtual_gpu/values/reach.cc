#include "virtual_gpu/values/reach.h"

#include <algorithm>
#include <iterator>
#include <mutex>

namespace memledger::virtual_gpu {

WrittenHostMemory& WrittenHostMemory::get() {
  static auto* const memory = new WrittenHostMemory;  // never destroyed: others may outlive it
  return *memory;
}

// The first range that ends behind it.
std::map<uintptr_t, uintptr_t>::iterator WrittenHostMemory::first_overlap(uintptr_t begin) {
  const auto next = ranges_.upper_bound(begin);
  if (next == ranges_.begin()) return next;
  return std::prev(next)->second > begin ? std::prev(next) : next;
}

void WrittenHostMemory::add(uintptr_t begin, size_t bytes) {
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  uintptr_t end = begin + bytes;
  for (auto range = first_overlap(begin); range != ranges_.end() && range->first < end;) {
    begin = std::min(begin, range->first);
    end = std::max(end, range->second);
    range = ranges_.erase(range);
  }
  ranges_[begin] = end;
  count_.store(ranges_.size(), std::memory_order_relaxed);
}

void WrittenHostMemory::remove(uintptr_t begin, size_t bytes) {
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  const uintptr_t end = begin + bytes;
  for (auto range = first_overlap(begin); range != ranges_.end() && range->first < end;) {
    const auto [from, to] = *range;
    range = ranges_.erase(range);
    if (from < begin) ranges_[from] = begin;
    if (to > end) range = ranges_.emplace(end, to).first;
  }
  count_.store(ranges_.size(), std::memory_order_relaxed);
}

bool WrittenHostMemory::overlaps(uintptr_t begin, size_t bytes) {
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  const auto range = first_overlap(begin);
  return range != ranges_.end() && range->first < begin + bytes;
}

}  // namespace memledger::virtual_gpu
