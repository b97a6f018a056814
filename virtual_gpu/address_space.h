#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace memledger::virtual_gpu {

// The free addresses of a range, neighbours merge when they come back. Owns no memory.
class AddressSpace {
 public:
  AddressSpace(uintptr_t begin, size_t bytes) { free_.emplace(begin, bytes); }

  // Takes the lowest that fits. `bytes` must not be 0, `alignment` is a power of two.
  std::optional<uintptr_t> take(size_t bytes, size_t alignment);
  std::optional<uintptr_t> take_highest(size_t bytes, size_t alignment);
  void give(uintptr_t begin, size_t bytes);

  bool is_whole(uintptr_t begin, size_t bytes) const {
    return free_.size() == 1 && *free_.begin() == std::pair<const uintptr_t, size_t>(begin, bytes);
  }

 private:
  std::map<uintptr_t, size_t> free_;
};

// Addresses of a device's blocks, in pages of 2 MiB. The caching allocator prefers, among free
// blocks of one size, the one with the lowest address: the order in which addresses are given out
// decides which blocks are split.
//
// The order is that of cudaMalloc in logs of real devices (rapidsai/rmm issue 75, snapshots of
// PyTorch). A block of more than 32 MiB takes the highest free range, rounded up to a multiple of
// 32 MiB. Smaller blocks share chunks of 32 MiB, which are taken the same way and filled upwards.
// If `ascending` is set, each block takes the lowest free addresses instead.
class DeviceAddresses {
 public:
  static constexpr size_t kPage = size_t{2} << 20;
  static constexpr size_t kChunk = size_t{32} << 20;

  // Both multiples of kChunk.
  DeviceAddresses(uintptr_t begin, size_t bytes, bool ascending)
      : ascending_(ascending), free_(begin, bytes) {}

  // `bytes` is a multiple of kPage, and not 0.
  std::optional<uintptr_t> take(size_t bytes);
  // What take() gave, and for how many bytes.
  void give(uintptr_t begin, size_t bytes);

 private:
  using Pages = uint16_t;  // a bit for each page of a chunk that is taken
  static constexpr size_t kPagesOfChunk = kChunk / kPage;
  static_assert(kPagesOfChunk == 16);

  static size_t longest_gap(Pages taken);
  void set_chunk(uintptr_t begin, Pages before, Pages after);
  std::optional<uintptr_t> take_in_chunk(size_t pages);

  const bool ascending_;
  AddressSpace free_;
  std::map<uintptr_t, Pages> chunks_;
  std::array<std::set<uintptr_t>, kPagesOfChunk + 1> by_gap_;  // chunks, by their longest gap
  // Where no whole chunk was left: as many bytes as were asked for.
  std::map<uintptr_t, size_t> exact_;
};

constexpr size_t round_up(size_t bytes, size_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

// Addresses at which nothing lies: touching them is a fault. 0 where the system has no such range
// left.
uintptr_t reserve_addresses(size_t bytes, size_t alignment);
void release_addresses(uintptr_t begin, size_t bytes);

}  // namespace memledger::virtual_gpu
