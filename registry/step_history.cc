#include "registry/step_history.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "registry/record_values.h"
#include "registry/state.h"

namespace memledger {
namespace {

Snapshot snapshot_of(const core::RecordList& records) {
  if (records.size() == 0) return Snapshot();
  auto data = std::make_shared<Snapshot::Data>();
  data->time = std::chrono::system_clock::now();
  note_what_went_unseen(RegistryState::get(), *data);
  add_rows(records, *data);
  for (const auto& [key, rows] : data->storages) {
    DeviceInfo info;
    info.device = c10::Device(key.first, key.second);
    for (const StorageInfo& row : rows) {
      info.table_bytes += row.nbytes;
      if (row.adopted) info.adopted_bytes += row.nbytes;
      if (row.raw_block) info.raw_block_bytes += row.nbytes;
      if (row.kind == StorageKind::kLibraryWorkspace) info.library_workspace_bytes += row.nbytes;
    }
    info.counters.current_bytes = info.table_bytes;
    info.counters.current_count = static_cast<int64_t>(rows.size());
    data->devices.push_back(info);
  }
  return Snapshot(std::move(data));
}

}  // namespace

void keep_steps() {
  std::atomic<core::StepMarks*>& marks = RegistryState::get().step_marks;
  if (marks.load(std::memory_order_acquire) != nullptr) return;
  auto made = std::make_unique<core::StepMarks>(RegistryState::get().ledger);
  core::StepMarks* none = nullptr;
  // For the process.
  if (marks.compare_exchange_strong(none, made.get())) static_cast<void>(made.release());
}

StepHistory step_history() {
  core::StepMarks* const marks = RegistryState::get().step_marks.load(std::memory_order_acquire);
  StepHistory result;
  result.ran_backward = RegistryState::get().ledger.last_backward_pass() != 0;
  if (marks == nullptr) return result;
  const core::StepMarks::History history = marks->history();
  result.steps = history.steps;
  for (const core::StepMarks::Record& record : history.records) {
    for (const core::DeviceTotals& totals : record.devices) {
      result.course.push_back({device_of(totals.device), record.step, totals.counters.current_bytes,
                               totals.counters.peak_bytes});
    }
  }
  for (const core::StepMarks::PeakStep& peak : history.peaks) {
    const int64_t now = RegistryState::get().ledger.counters(peak.device).peak_bytes;
    if (peak.step > 0 && peak.bytes == now)
      result.peaks.push_back({device_of(peak.device), peak.step, 0, peak.bytes});
  }
  if (history.steps >= core::StepMarks::kBaselineStep)
    result.baseline_step = core::StepMarks::kBaselineStep;
  result.baseline = snapshot_of(history.baseline);
  result.last = snapshot_of(history.last);
  return result;
}

uint64_t newest_storage_so_far() noexcept { return RegistryState::get().ledger.newest_id(); }

}  // namespace memledger
