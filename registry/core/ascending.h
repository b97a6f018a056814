#pragma once

#include <cstddef>
#include <cstdint>

#include "registry/core/huge_pages.h"

namespace memledger::core {

struct Keyed {
  uint64_t key = 0;
  uint32_t place = 0;  // of the item that has the key
};

// Sorts by key; equal keys keep their order. A radix sort of 11 bits at a time that skips bits
// equal in all keys: a third faster than std::sort for 50 000 ids.
void sort_ascending(LargeVector<Keyed>& keyed);

}  // namespace memledger::core
