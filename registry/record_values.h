#pragma once

// The table's records as public values, with the names that their ids stand for.

#include <c10/core/Device.h>

#include <atomic>
#include <vector>

#include "registry/birthplace.h"
#include "registry/core/event_ring.h"
#include "registry/core/ledger.h"
#include "registry/core/storage_record.h"
#include "registry/snapshot.h"
#include "registry/snapshot_data.h"
#include "registry/state.h"

namespace memledger {

c10::Device device_of(core::DeviceKey key);
// Returns the first device of a type for a device without index, as registry/device_statistics.h.
core::DeviceKey key_of(c10::Device device);

// Stack and adoption are the record's: they stay empty.
Birthplace birthplace_value(const core::Birthplace& birthplace);
StorageInfo storage_value(const core::StorageRecord& record);
StorageInfo storage_value(const core::LedgerEvent& event);
std::vector<DeviceInfo> device_values(const std::vector<core::DeviceTotals>& devices);

// Appends the records' rows to those of their devices, in the same order.
void add_rows(const core::RecordList& records, Snapshot::Data& data);

// Returns who was alive at a device's peak. At one peak there is only one storage at an address.
Snapshot peak_value(const core::LedgerPeak& peak, c10::Device device);

// Sets what Snapshot::Data and Changes say of storages that may have gone unseen.
template <typename Value>
void note_what_went_unseen(const RegistryState& state, Value& value) {
  const Unseen& cpu = state.unseen_of(WatchedType::kCpu);
  const Unseen& cuda = state.unseen_of(WatchedType::kCuda);
  value.unseen_before_tracking = cpu.before.load(std::memory_order_relaxed);
  value.tracking_was_off = cpu.in_gap.load(std::memory_order_relaxed);
  value.cuda_unseen_before_tracking = cuda.before.load(std::memory_order_relaxed);
  value.cuda_tracking_was_off = cuda.in_gap.load(std::memory_order_relaxed);
  value.names_only = state.ever_names_only.load(std::memory_order_relaxed);
}

}  // namespace memledger
