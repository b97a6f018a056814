#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/base/attributes.h"
#include "registry/core/huge_pages.h"

namespace memledger::core {

// Where in a shard's table the storage at an address is: linear probing, 8 bytes for each place. A
// hash map of addresses took three times the memory and half of what a birth and a death cost. The
// addresses themselves are read from the table, whose lines the caller needs in any case.
class AddressIndex {
 public:
  using Slot = uint32_t;
  static constexpr Slot kNone = ~Slot{0};

  struct Found {
    size_t place = 0;
    Slot slot = kNone;
  };

  // Looks for an address; `address_at(slot)` is that of a slot. Without one, `place` is where
  // insert() puts it.
  template <typename AddressAt>
  Found find(uintptr_t address, const AddressAt& address_at) const noexcept {
    if (cells_.empty()) return {};
    const uint32_t hash = hash_of(address);
    for (size_t place = home_of(hash);; place = next(place)) {
      const Cell& cell = cells_[place];
      if (cell.slot == kNone || (cell.hash == hash && address_at(cell.slot) == address))
        return {place, cell.slot};
    }
  }

  // Returns whether insert() may be called.
  bool has_room() const noexcept { return size_ < most_; }
  // Makes room for one more; call it before find(). Throws std::bad_alloc, and then nothing has
  // changed.
  void make_room() {
    if (!has_room()) grow();
  }
  // Puts a slot where find() has found none, or another that it replaces.
  void insert(uintptr_t address, size_t place, Slot slot) noexcept {
    Cell& cell = cells_[place];
    size_ += cell.slot == kNone;
    cell = {slot, hash_of(address)};
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE void erase(size_t place) noexcept {
    --size_;
    // An entry that was put further on, because no nearer place was free, moves up.
    for (size_t later = next(place);; later = next(later)) {
      const Cell cell = cells_[later];
      if (cell.slot == kNone) break;
      const size_t mask = cells_.size() - 1;
      if (((later - home_of(cell.hash)) & mask) >= ((later - place) & mask)) {
        cells_[place] = cell;
        place = later;
      }
    }
    cells_[place] = {};
  }

  size_t size() const noexcept { return size_; }

 private:
  static constexpr size_t kLeast = 16;

  struct Cell {
    Slot slot = kNone;
    uint32_t hash = 0;
  };

  // The ledger takes the upper five bits of the same product for the shard.
  static uint32_t hash_of(uintptr_t address) noexcept {
    return static_cast<uint32_t>((address >> 6) * 0x9E3779B97F4A7C15ull >> 27);
  }
  size_t home_of(uint32_t hash) const noexcept { return hash >> shift_; }
  size_t next(size_t place) const noexcept { return (place + 1) & (cells_.size() - 1); }

  void grow() {
    LargeVector<Cell> cells(cells_.empty() ? kLeast : 2 * cells_.size());
    cells_.swap(cells);
    most_ = cells_.size() / 4 * 3;
    shift_ = 32 - static_cast<uint32_t>(__builtin_ctzll(cells_.size()));
    for (const Cell& cell : cells) {
      if (cell.slot == kNone) continue;
      size_t place = home_of(cell.hash);
      while (cells_[place].slot != kNone) place = next(place);
      cells_[place] = cell;
    }
  }

  LargeVector<Cell> cells_;
  size_t size_ = 0;
  size_t most_ = 0;
  uint32_t shift_ = 0;
};

}  // namespace memledger::core
