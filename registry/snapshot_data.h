#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "registry/core/huge_pages.h"
#include "registry/snapshot.h"

namespace memledger {

// Not Abseil's, whose values differ between two copies of memledger in one process: one reads the snapshots of the other.
struct AddressHash {
  size_t operator()(uintptr_t address) const noexcept {
    const uint64_t mixed = (address >> 4) * 0x9E3779B97F4A7C15ull;
    return mixed ^ mixed >> 32;
  }
};

struct Snapshot::Data {
  std::chrono::system_clock::time_point time;
  std::vector<DeviceInfo> devices;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, core::LargeVector<StorageInfo>> storages;  // each in order of birth
  // Made by the first who asks: most never do. Of several storages at one address (of a peak) the last born.
  mutable std::once_flag addresses_are_known;
  mutable absl::flat_hash_map<uintptr_t, const StorageInfo*, AddressHash> by_address;
  bool complete = true;
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  bool cuda_unseen_before_tracking = false;
  bool cuda_tracking_was_off = false;
};

}  // namespace memledger
