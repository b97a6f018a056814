#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace memledger::core {

// Asks the system for huge pages (2 MiB on x86-64) where the memory holds whole ones; for memory
// that will be filled at once. Faults for pages of 4 KiB take half of the time in which a large
// report is made. Changes nothing where the system has none. Never fails; keeps errno.
void prefer_huge_pages(void* begin, size_t bytes) noexcept;

// Takes the page faults now; for memory of the caller's alone that will be filled while a lock is
// held. Keeps what lies there. Never fails; keeps errno.
void take_page_faults(void* begin, size_t bytes) noexcept;

// Gives pages back to the system, for memory that will be unmapped: in one call it would keep
// others from mapping any for milliseconds. What lay there is lost. Never fails; keeps errno.
void give_back_pages(void* begin, size_t bytes) noexcept;

// std::allocator, with huge pages preferred.
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
  void deallocate(T* begin, size_t count) noexcept {
    if (count * sizeof(T) > kSurelyMapped) give_back_pages(begin, count * sizeof(T));
    std::allocator<T>().deallocate(begin, count);
  }

  friend bool operator==(HugePageAllocator, HugePageAllocator) { return true; }
  friend bool operator!=(HugePageAllocator, HugePageAllocator) { return false; }

 private:
  // glibc keeps no freed block of more than 32 MiB for later (DEFAULT_MMAP_THRESHOLD_MAX).
  static constexpr size_t kSurelyMapped = size_t{32} << 20;
};

template <typename T>
using LargeVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace memledger::core
