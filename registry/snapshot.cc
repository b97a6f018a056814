#include "registry/snapshot.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "registry/snapshot_data.h"

namespace memledger {
namespace {

std::pair<c10::DeviceType, c10::DeviceIndex> key_of(c10::Device device) {
  return {device.type(), device.index()};
}

// Drops the CPU's index; gives other devices without an index the first.
c10::Device canonical(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return c10::Device(device.type());
  return device.has_index() ? device : c10::Device(device.type(), 0);
}

}  // namespace

c10::ArrayRef<DeviceInfo> Snapshot::devices() const {
  return data_ ? c10::ArrayRef<DeviceInfo>(data_->devices) : c10::ArrayRef<DeviceInfo>();
}

Counters Snapshot::counters(c10::Device device) const {
  for (const DeviceInfo& info : devices()) {
    if (info.device == canonical(device)) return info.counters;
  }
  return {};
}

c10::ArrayRef<StorageInfo> Snapshot::storages(c10::Device device) const {
  if (!data_) return {};
  const auto rows = data_->storages.find(key_of(canonical(device)));
  return rows == data_->storages.end() ? c10::ArrayRef<StorageInfo>()
                                       : c10::ArrayRef<StorageInfo>(rows->second);
}

int64_t Snapshot::total_bytes(c10::Device device) const {
  int64_t total = 0;
  for (const StorageInfo& storage : storages(device)) total += storage.nbytes;
  return total;
}

const StorageInfo* Snapshot::find(uint64_t id) const {
  if (!data_) return nullptr;
  for (const auto& [device, rows] : data_->storages) {
    const auto row_iterator =
        std::lower_bound(rows.begin(), rows.end(), id,
                         [](const StorageInfo& row, uint64_t wanted) { return row.id < wanted; });
    if (row_iterator != rows.end() && row_iterator->id == id) return &*row_iterator;
  }
  return nullptr;
}

const StorageInfo* Snapshot::find_address(c10::Device device, const void* address) const {
  if (!data_ || address == nullptr) return nullptr;
  std::call_once(data_->addresses_are_known, [this] {
    size_t count = 0;
    for (const auto& [device_key, rows] : data_->storages) count += rows.size();
    std::vector<const StorageInfo*> all;
    all.reserve(count);
    for (const auto& [device_key, rows] : data_->storages) {
      for (const StorageInfo& row : rows) all.push_back(&row);
    }
    std::sort(all.begin(), all.end(), [](const StorageInfo* a, const StorageInfo* b) {
      return std::tie(a->address, a->id) < std::tie(b->address, b->id);
    });
    data_->by_address = std::move(all);
  });
  // A peak may hold several storages at one address: the last born is wanted.
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  const auto after =
      std::upper_bound(data_->by_address.begin(), data_->by_address.end(), wanted,
                       [](uintptr_t at, const StorageInfo* row) { return at < row->address; });
  if (after == data_->by_address.begin()) return nullptr;
  const StorageInfo* const last = *std::prev(after);
  return last->address == wanted && last->device == canonical(device) ? last : nullptr;
}

uint64_t Snapshot::peak_maker() const { return data_ ? data_->peak_maker : 0; }

bool Snapshot::complete() const { return deaths_known() && labels_known(); }
bool Snapshot::deaths_known() const { return !data_ || data_->deaths_known; }
bool Snapshot::labels_known() const { return !data_ || data_->labels_known; }

std::chrono::system_clock::time_point Snapshot::time() const {
  return data_ ? data_->time : std::chrono::system_clock::time_point();
}

bool Snapshot::unseen_before_tracking(c10::DeviceType type) const {
  return data_ && (type == c10::DeviceType::CUDA
                       ? data_->cuda_unseen_before_tracking
                       : type == c10::DeviceType::CPU && data_->unseen_before_tracking);
}

bool Snapshot::names_only() const { return data_ != nullptr && data_->names_only; }

bool Snapshot::tracking_was_off(c10::DeviceType type) const {
  return data_ &&
         (type == c10::DeviceType::CUDA ? data_->cuda_tracking_was_off
                                        : type == c10::DeviceType::CPU && data_->tracking_was_off);
}

}  // namespace memledger
