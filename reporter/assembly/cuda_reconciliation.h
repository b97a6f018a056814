#pragma once

// How what the registry knows of one CUDA device adds up to what LibTorch's allocator says: from
// values, so that it can be tried by hand.

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/snapshot.h"
#include "reporter/report.h"

namespace memledger {

// What the allocator of one device said, at the instant of the snapshot or as near to it as the
// program's threads allow.
struct AllocatorView {
  std::optional<DeviceStatistics> statistics;
  std::optional<DeviceBlocks> blocks;
  std::vector<LibraryWorkspace> workspaces;  // of any device
  std::optional<DeviceMemory> memory;        // what the driver says of the whole device
};

// The lines between the rows and the allocator's figure, in the order of the chain.
struct DeviceAccount {
  std::vector<ReportItem> items;
  // Storages that an item counts: they are no rows.
  std::unordered_set<uint64_t> not_rows;
};

// Addresses of the blocks in use that neither a storage nor a library's workspace accounts for,
// ascending: born before tracking, or of a thread that was allocating or freeing at that moment.
std::vector<uintptr_t> unclaimed_blocks(c10::Device device, const Snapshot& snapshot,
                                        const AllocatorView& view);

DeviceAccount account_of(c10::Device device, const Snapshot& snapshot, const AllocatorView& view);

}  // namespace memledger
