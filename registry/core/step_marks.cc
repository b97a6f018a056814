#include "registry/core/step_marks.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace memledger::core {
namespace {

void note_peaks(std::vector<StepMarks::PeakStep>& peaks, const std::vector<DeviceTotals>& devices,
                int64_t step) {
  for (const DeviceTotals& totals : devices) {
    auto peak = std::find_if(peaks.begin(), peaks.end(), [&](const StepMarks::PeakStep& known) {
      return known.device == totals.device;
    });
    if (peak == peaks.end()) peak = peaks.insert(peak, StepMarks::PeakStep{totals.device});
    if (totals.counters.peak_bytes <= peak->bytes) continue;
    peak->bytes = totals.counters.peak_bytes;
    peak->step = step;
  }
}

}  // namespace

void StepMarks::note_operator(ThreadContext& thread) noexcept {
  if (thread.step == ThreadContext::Step::kNone) thread.step_began_at_id = ledger_.next_id();
  thread.step = ThreadContext::Step::kRan;
}

void StepMarks::note_free(ThreadContext& thread, uintptr_t address) noexcept {
  // The temporaries of a step end with its operators; what is older outlives it.
  const uint64_t id = ledger_.id_at(address);
  if (id == 0 || id >= thread.step_began_at_id) return;
  mark();
  thread.step = ThreadContext::Step::kMarked;
}

void StepMarks::end(ThreadContext& thread) noexcept {
  if (std::exchange(thread.step, ThreadContext::Step::kNone) == ThreadContext::Step::kRan) mark();
  finish();
}

void StepMarks::end_scope(ThreadContext& thread) noexcept {
  thread.step = ThreadContext::Step::kRan;
  end(thread);
}

void StepMarks::mark() noexcept {
  try {
    const std::lock_guard<ForkSafeMutex> hold(mutex_);
    if (marked_ == 0) marked_ = ledger_.open_cursor();
    marked_devices_ = ledger_.changes_since(marked_, /*rows=*/false).devices;
    is_marked_ = true;
  } catch (...) {
    // Without memory a step is missing.
  }
}

void StepMarks::finish() noexcept {
  try {
    const std::lock_guard<ForkSafeMutex> hold(mutex_);
    if (!std::exchange(is_marked_, false)) return;
    if (last_ == 0) last_ = ledger_.open_cursor();
    ledger_.swap_cursors(last_, marked_);
    ++steps_;
    if (steps_ == kBaselineStep) baseline_ = ledger_.copy_cursor(last_);
    note_peaks(peaks_, marked_devices_, steps_);
    keep({steps_, std::move(marked_devices_)});
  } catch (...) {
  }
}

// The last record always stays.
void StepMarks::keep(Record record) {
  if (!records_.empty() && records_.back().step % every_ != 0) records_.pop_back();
  if (records_.size() == kMostRecords) {
    every_ *= 2;
    records_.erase(std::remove_if(records_.begin(), records_.end(),
                                  [&](const Record& kept) { return kept.step % every_ != 0; }),
                   records_.end());
  }
  records_.push_back(std::move(record));
}

void leave_phase(ThreadContext& thread, bool was_set, Phase before, StepMarks* marks) noexcept {
  const auto is_step = [](bool is_set, Phase phase) {
    return is_set && phase == Phase::kOptimizer;
  };
  const bool was_step = is_step(thread.phase.is_set(), thread.phase.set_phase());
  thread.phase.restore_scope(was_set, before);
  if (marks != nullptr && was_step && !is_step(was_set, before)) marks->end_scope(thread);
}

StepMarks::History StepMarks::history() {
  // The step may go on after a report on demand: it is not ended here.
  if (this_thread().step == ThreadContext::Step::kRan) mark();
  History history;
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  history.steps = steps_;
  history.records = records_;
  history.peaks = peaks_;
  uint64_t baseline = baseline_, last = last_;
  if (is_marked_) {
    last = marked_;
    if (++history.steps == kBaselineStep) baseline = marked_;
    note_peaks(history.peaks, marked_devices_, history.steps);
    history.records.push_back({history.steps, marked_devices_});
  }
  if (baseline != 0) history.baseline = ledger_.alive_at(baseline);
  if (last != 0) history.last = ledger_.alive_at(last);
  return history;
}

}  // namespace memledger::core
