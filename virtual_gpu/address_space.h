#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace memledger::virtual_gpu {

// The free addresses of a range: the lowest that fits is given out, neighbours merge when they come
// back. Owns no memory.
class AddressSpace {
 public:
  AddressSpace(uintptr_t begin, size_t bytes) { free_.emplace(begin, bytes); }

  // `bytes` must not be 0, `alignment` is a power of two.
  std::optional<uintptr_t> take(size_t bytes, size_t alignment);
  void give(uintptr_t begin, size_t bytes);

  bool is_whole(uintptr_t begin, size_t bytes) const {
    return free_.size() == 1 && *free_.begin() == std::pair<const uintptr_t, size_t>(begin, bytes);
  }

 private:
  std::map<uintptr_t, size_t> free_;
};

constexpr size_t round_up(size_t bytes, size_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

// Addresses at which nothing lies: touching them is a fault. 0 where the system has no such range
// left.
uintptr_t reserve_addresses(size_t bytes, size_t alignment);
void release_addresses(uintptr_t begin, size_t bytes);

}  // namespace memledger::virtual_gpu
