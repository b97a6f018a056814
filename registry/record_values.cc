#include "registry/record_values.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

namespace memledger {
namespace {

StorageKind kind_of(const core::StorageRecord& record, bool temporary) {
  if (record.library_workspace) return StorageKind::kLibraryWorkspace;
  if (record.raw_block) return StorageKind::kRawBlock;
  const bool from_an_operator =
      record.birthplace.op != 0 && !record.adopted && !temporary && !record.names_only;
  // Not `described`: an event has no room for long shapes.
  return from_an_operator && record.dtype == core::kUnknownDtype ? StorageKind::kScratch
                                                                 : StorageKind::kTensor;
}

void fill(StorageInfo& info, const core::StorageRecord& record) {
  const RegistryState& state = RegistryState::get();
  static_cast<Birthplace&>(info) = birthplace_value(record.birthplace);
  info.awaits_backward =
      record.birthplace.recorded && record.id > state.ledger.last_backward_pass();
  info.stack = record.stack;
  info.adopted = record.adopted;
  info.id = record.id;
  info.address = record.address;
  info.nbytes = record.nbytes;
  info.device = device_of(record.device);
  info.stack_weight = record.stack_weight;
  info.temporary =
      state.running.is_running(record.birthplace.thread, record.birthplace.op_sequence);
  info.raw_block = record.raw_block;
  info.used_as_parameter = record.parameter_like;
  info.consumer = record.consumer;
  info.is_gradient = record.gradient;
  info.kind = kind_of(record, info.temporary);
  if (record.described) {
    info.dtype = static_cast<c10::ScalarType>(record.dtype);
    info.shape.assign(record.shape.begin(), record.shape.end());
  }
}

}  // namespace

c10::Device device_of(core::DeviceKey key) {
  return c10::Device(static_cast<c10::DeviceType>(key.type),
                     static_cast<c10::DeviceIndex>(key.index));
}

core::DeviceKey key_of(c10::Device device) {
  const bool indexed = !device.is_cpu() && !device.is_meta();
  const c10::DeviceIndex index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  return {static_cast<int8_t>(device.type()), static_cast<int8_t>(indexed ? index : -1)};
}

Birthplace birthplace_value(const core::Birthplace& birthplace) {
  const RegistryState& state = RegistryState::get();
  Birthplace value;
  value.op = state.names.name(birthplace.op);
  value.autograd_node = state.names.name(birthplace.autograd_node);
  value.label = state.labels.name(birthplace.label);
  value.forward_op = state.names.name(birthplace.forward_op);
  value.forward_label = state.labels.name(birthplace.forward_label);
  value.parameter = birthplace.parameter & ~core::kLookedUp;
  value.parameter_looked_up = (birthplace.parameter & core::kLookedUp) != 0;
  value.parameter_inferred = birthplace.parameter_inferred;
  value.thread = birthplace.thread;
  value.phase = birthplace.phase;
  value.phase_inferred = birthplace.phase_inferred;
  value.recomputed = birthplace.recomputed;
  value.operator_run = birthplace.op_sequence;
  return value;
}

StorageInfo storage_value(const core::StorageRecord& record) {
  StorageInfo info;
  fill(info, record);
  return info;
}

std::vector<DeviceInfo> device_values(const std::vector<core::DeviceTotals>& devices) {
  std::vector<DeviceInfo> result;
  result.reserve(devices.size());
  for (const core::DeviceTotals& totals : devices) {
    result.push_back({device_of(totals.device), totals.counters, totals.table_bytes,
                      totals.adopted_bytes, totals.raw_block_bytes,
                      totals.library_workspace_bytes});
  }
  return result;
}

StorageInfo storage_value(const core::LedgerEvent& event) {
  core::StorageRecord record;
  record.id = event.id;
  record.address = event.address;
  record.nbytes = event.nbytes;
  record.birthplace = event.birthplace;
  record.stack = event.stack;
  record.device = event.device;
  record.adopted = event.adopted;
  record.raw_block = event.raw_block;
  record.library_workspace = event.library_workspace;
  record.parameter_like = event.parameter_like;
  record.names_only = event.names_only;
  record.described = event.described;
  record.dtype = event.dtype;
  record.shape.assign(event.shape.begin(), event.shape.begin() + event.dims);
  StorageInfo info = storage_value(record);
  if (!event.complete && info.kind == StorageKind::kScratch) info.kind = StorageKind::kTensor;
  return info;
}

void add_rows(const core::RecordList& records, Snapshot::Data& data) {
  std::vector<std::pair<core::DeviceKey, size_t>> counts;
  const auto count_of = [&](core::DeviceKey device) {
    return std::find_if(counts.begin(), counts.end(),
                        [&](const auto& entry) { return entry.first == device; });
  };
  for (const core::StorageRecord& record : records) {
    auto count = count_of(record.device);
    if (count == counts.end()) count = counts.insert(count, {record.device, 0});
    ++count->second;
  }
  std::vector<core::LargeVector<StorageInfo>*> rows;
  for (const auto& [device, count] : counts) {
    const c10::Device torch_device = device_of(device);
    rows.push_back(&data.storages[{torch_device.type(), torch_device.index()}]);
    rows.back()->reserve(count);
  }
  for (const core::StorageRecord& record : records) {
    fill(rows[static_cast<size_t>(count_of(record.device) - counts.begin())]->emplace_back(),
         record);
  }
}

Snapshot peak_value(const core::LedgerPeak& peak, c10::Device device) {
  const RegistryState& state = RegistryState::get();
  auto data = std::make_shared<Snapshot::Data>();
  data->time = std::chrono::system_clock::now();
  data->peak_maker = peak.maker;
  data->deaths_known = peak.complete;
  data->labels_known = peak.labels_known;
  note_what_went_unseen(state, *data);
  add_rows(peak.records, *data);
  DeviceInfo info;
  info.device = device_of(key_of(device));
  info.counters.current_bytes = info.counters.peak_bytes = peak.bytes;
  info.counters.current_count = static_cast<int64_t>(peak.records.size());
  for (const core::StorageRecord& record : peak.records) {
    info.table_bytes += record.nbytes;
    if (record.adopted) info.adopted_bytes += record.nbytes;
    if (record.raw_block) info.raw_block_bytes += record.nbytes;
    if (record.library_workspace) info.library_workspace_bytes += record.nbytes;
  }
  data->devices.push_back(info);
  return Snapshot(std::move(data));
}

}  // namespace memledger
