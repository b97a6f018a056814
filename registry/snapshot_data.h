#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "registry/core/huge_pages.h"
#include "registry/snapshot.h"

namespace memledger {

struct Snapshot::Data {
  std::chrono::system_clock::time_point time;
  std::vector<DeviceInfo> devices;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, core::LargeVector<StorageInfo>>
      storages;  // each in order of birth
  // Rows by address, then by birth. Made at the first find_address(): most snapshots see none.
  mutable std::once_flag addresses_are_known;
  mutable std::vector<const StorageInfo*> by_address;
  uint64_t peak_maker = 0;
  bool deaths_known = true;
  bool labels_known = true;
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  bool cuda_unseen_before_tracking = false;
  bool cuda_tracking_was_off = false;
  bool names_only = false;
};

}  // namespace memledger
