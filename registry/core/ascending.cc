#include "registry/core/ascending.h"

#include <array>
#include <utility>

namespace memledger::core {

void sort_ascending(LargeVector<Keyed>& keyed) {
  constexpr int kBits = 11;
  constexpr size_t kBuckets = size_t{1} << kBits;
  uint64_t any = 0, all = ~uint64_t{0};
  for (const Keyed& item : keyed) {
    any |= item.key;
    all &= item.key;
  }
  const uint64_t differing = keyed.empty() ? 0 : any ^ all;
  LargeVector<Keyed> sorted(differing == 0 ? 0 : keyed.size());
  for (int shift = 0; shift < 64 && differing >> shift != 0; shift += kBits) {
    if ((differing >> shift) % kBuckets == 0) continue;
    std::array<uint32_t, kBuckets> next{};
    for (const Keyed& item : keyed) ++next[(item.key >> shift) % kBuckets];
    uint32_t before = 0;
    for (uint32_t& count : next) before += std::exchange(count, before);
    for (const Keyed& item : keyed) sorted[next[(item.key >> shift) % kBuckets]++] = item;
    keyed.swap(sorted);
  }
}

}  // namespace memledger::core
