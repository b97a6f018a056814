#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace memledger::core {

// For memory that will be filled at once: where it holds whole huge pages (2 MiB on x86-64), asks
// the system for such ones. A fault for every page of 4 KiB takes half of the time in which a large
// report is made. Where the system has none nothing changes. Never fails; errno stays.
void prefer_huge_pages(void* begin, size_t bytes) noexcept;

// For memory that will be filled while a lock is held: takes the page faults now, where the system
// can (Linux 5.14). What lies there stays. Never fails; errno stays.
void take_page_faults(void* begin, size_t bytes) noexcept;

// std::allocator's memory, huge pages preferred.
template <typename T>
struct HugePageAllocator {
  using value_type = T;

  HugePageAllocator() = default;
  template <typename Other>
  HugePageAllocator(const HugePageAllocator<Other>&) noexcept {}

  T* allocate(size_t count) {
    T* const begin = std::allocator<T>().allocate(count);
    prefer_huge_pages(begin, count * sizeof(T));
    return begin;
  }
  void deallocate(T* begin, size_t count) noexcept { std::allocator<T>().deallocate(begin, count); }

  friend bool operator==(HugePageAllocator, HugePageAllocator) { return true; }
  friend bool operator!=(HugePageAllocator, HugePageAllocator) { return false; }
};

template <typename T>
using LargeVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace memledger::core
