#include "runner/inside/stage_recorder.h"

#include <algorithm>
#include <mutex>

namespace memledger::inside {

using prediction::MeasuredStage;
using prediction::Stage;

void StageRecorder::include(const Peaks& more, Peaks& peaks) {
  for (size_t i = 0; i < kMaxDevices; ++i) {
    peaks[i].allocated = std::max(peaks[i].allocated, more[i].allocated);
    peaks[i].process = std::max(peaks[i].process, more[i].process);
  }
}

void StageRecorder::decide(int undecided, int stage) {
  Peaks& peaks = peaks_[static_cast<size_t>(undecided)];
  include(peaks, peaks_[static_cast<size_t>(stage)]);
  peaks.fill(Bytes());
}

void StageRecorder::note_forward() {
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  if (is_forward_open_) return;
  decide(kBetween, kTraining);
  is_forward_open_ = true;
  trains_ = false;
  now_ = kTraining;
}

void StageRecorder::note_mode(ModeOf module, bool trains) {
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  if (!is_forward_open_) return;
  if (trains) {
    // Modules of another kind that do not train are frozen.
    decide(kUndecided, module == undecided_by_ ? kEvaluation : kTraining);
    trains_ = true;
    now_ = kTraining;
  } else if (!trains_ && now_ != kUndecided) {
    undecided_by_ = module;
    now_ = kUndecided;
  }
}

void StageRecorder::note_backward() {
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  decide(kUndecided, kTraining);
  decide(kBetween, kTraining);
  is_forward_open_ = false;
  now_ = kTraining;
}

void StageRecorder::note_step() { note_backward(); }

void StageRecorder::note_forward_without_gradients() {
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  if (is_forward_open_) return;
  decide(kBetween, kEvaluation);
  now_ = kEvaluation;
}

void StageRecorder::note_without_gradients() {
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  if (!is_forward_open_ && now_ == kTraining) now_ = kBetween;
}

void StageRecorder::note_bytes(int device, int64_t allocated, int64_t process) {
  if (device < 0 || static_cast<size_t>(device) >= kMaxDevices) return;
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  Bytes& bytes = peaks_[static_cast<size_t>(now_)][static_cast<size_t>(device)];
  bytes.allocated = std::max(bytes.allocated, allocated);
  bytes.process = std::max(bytes.process, process);
}

void StageRecorder::forget_peaks() {
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  for (Peaks& peaks : peaks_) peaks.fill(Bytes());
}

std::vector<MeasuredStage> StageRecorder::stages() const {
  const std::lock_guard<ForkSafeMutex> hold(mutex_);
  std::vector<MeasuredStage> result;
  for (const Stage stage : {Stage::kTraining, Stage::kEvaluation, Stage::kNeither}) {
    Peaks peaks = peaks_[static_cast<size_t>(stage)];
    // What would have decided has not followed.
    if (stage == Stage::kEvaluation) include(peaks_[kUndecided], peaks);
    if (stage == Stage::kTraining) include(peaks_[kBetween], peaks);
    for (size_t i = 0; i < kMaxDevices; ++i) {
      if (peaks[i].process == 0) continue;
      result.push_back({stage, static_cast<int>(i), peaks[i].allocated, peaks[i].process});
    }
  }
  return result;
}

}  // namespace memledger::inside
