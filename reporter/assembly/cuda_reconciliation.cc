#include "reporter/assembly/cuda_reconciliation.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace memledger {
namespace {

using BlocksByAddress = std::unordered_map<uintptr_t, const DeviceBlock*>;

BlocksByAddress blocks_in_use(const std::optional<DeviceBlocks>& blocks) {
  BlocksByAddress result;
  if (!blocks.has_value()) return result;
  for (const DeviceSegment& segment : blocks->segments) {
    for (const DeviceBlock& block : segment.blocks) {
      if (block.state == BlockState::kInUse) result.emplace(block.address, &block);
    }
  }
  return result;
}

void add(std::vector<ReportItem>& items, ReportItemKind kind, std::string name, int64_t bytes,
         size_t count) {
  if (count > 0) items.push_back({kind, std::move(name), bytes, count});
}

}  // namespace

std::vector<uintptr_t> unclaimed_blocks(c10::Device device, const Snapshot& snapshot,
                                        const AllocatorView& view) {
  BlocksByAddress blocks = blocks_in_use(view.blocks);
  for (const LibraryWorkspace& workspace : view.workspaces) {
    if (workspace.device == device) blocks.erase(workspace.address);
  }
  for (const StorageInfo& storage : snapshot.storages(device)) blocks.erase(storage.address);
  std::vector<uintptr_t> addresses;
  for (const auto& [address, block] : blocks) addresses.push_back(address);
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

CudaReconciliation reconcile(c10::Device device, const Snapshot& snapshot,
                             const AllocatorView& view) {
  CudaReconciliation reconciliation;
  BlocksByAddress unclaimed = blocks_in_use(view.blocks);

  for (const LibraryWorkspace& workspace : view.workspaces) {
    if (workspace.device != device) continue;
    std::optional<int64_t> bytes;
    if (const auto block = unclaimed.find(workspace.address); block != unclaimed.end()) {
      bytes = block->second->requested_bytes;
      unclaimed.erase(block);
    }
    const StorageInfo* const known =
        snapshot.find_address(device, reinterpret_cast<const void*>(workspace.address));
    if (known != nullptr) {
      reconciliation.not_rows.insert(known->id);
      bytes = known->nbytes;
    }
    if (bytes.has_value())
      add(reconciliation.items, ReportItemKind::kLibraryWorkspace, workspace.name(), *bytes, 1);
  }

  int64_t raw_bytes = 0;
  size_t raw_count = 0;
  for (const StorageInfo& storage : snapshot.storages(device)) {
    unclaimed.erase(storage.address);
    if (!storage.raw_block || reconciliation.not_rows.count(storage.id) > 0) continue;
    reconciliation.not_rows.insert(storage.id);
    raw_bytes += storage.nbytes;
    ++raw_count;
  }
  add(reconciliation.items, ReportItemKind::kRawBlocks, "", raw_bytes, raw_count);

  int64_t before_bytes = 0;
  for (const auto& [address, block] : unclaimed) before_bytes += block->requested_bytes;
  add(reconciliation.items, ReportItemKind::kBeforeTracking, "", before_bytes, unclaimed.size());

  if (view.blocks.has_value()) {
    const DeviceBlocks& blocks = *view.blocks;
    add(reconciliation.items, ReportItemKind::kRounding, "", blocks.rounding_bytes,
        blocks.rounding_bytes != 0 ? 1 : 0);
    add(reconciliation.items, ReportItemKind::kUnsplitRemainder, "", blocks.unsplit_bytes,
        blocks.unsplit_bytes != 0 ? 1 : 0);
  }
  return reconciliation;
}

}  // namespace memledger
