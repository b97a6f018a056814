#pragma once

// Explains how the registry's storages on one CUDA device add up to the figures of LibTorch's
// allocator. Works on values, so that tests can make them by hand.

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/snapshot.h"
#include "reporter/report.h"

namespace memledger {

// What the allocator of one device said at the snapshot's instant, or as close to it as the
// program's threads allow.
struct AllocatorView {
  std::optional<DeviceStatistics> statistics;
  std::optional<DeviceBlocks> blocks;
  std::vector<LibraryWorkspace> workspaces;  // of any device
  std::optional<DeviceMemory> memory;        // what the driver says of the whole device
};

struct CudaReconciliation {
  // The lines between the rows and the allocator's figure, in the order of the chain.
  std::vector<ReportItem> items;
  // Storages that an item counts, and that must not become rows.
  std::unordered_set<uint64_t> not_rows;
};

// Returns the addresses, ascending, of the blocks in use that belong to no storage and no library's
// workspace: born before tracking, or of a thread that was allocating or freeing at that moment.
std::vector<uintptr_t> unclaimed_blocks(c10::Device device, const Snapshot& snapshot,
                                        const AllocatorView& view);

CudaReconciliation reconcile(c10::Device device, const Snapshot& snapshot,
                             const AllocatorView& view);

}  // namespace memledger
