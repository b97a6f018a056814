#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "prediction/measurement.h"
#include "registry/core/fork_safe_mutex.h"

namespace memledger::inside {

// Finds which stage a program is in from what its operators do, and keeps the peaks of each. Knows
// no LibTorch. Thread-safe.
//
// A forward pass without gradients is an evaluation unless a forward pass with gradients is open,
// which has seen neither backward nor a step: such a program checkpoints, or calls a teacher. A
// forward pass with gradients in eval() mode is one if a forward pass in train() mode follows
// before backward does.
class StageRecorder {
 public:
  // Modules whose operators have an argument for training.
  enum class ModeOf : uint8_t { kDropout, kNormalization };

  void note_forward();  // with gradients
  void note_mode(ModeOf module, bool trains);
  void note_backward();
  void note_step();
  void note_forward_without_gradients();
  // Notes that an operator of no forward pass runs without gradients, which may prepare one.
  void note_without_gradients();

  // Notes what is taken of a device at this moment, in bytes.
  void note_bytes(int device, int64_t allocated, int64_t process);

  // Restarts all peaks.
  void forget_peaks();

  // Returns the stages that the program was in, with the devices that had something allocated then.
  std::vector<prediction::MeasuredStage> stages() const;

  // Return whether note_forward() and note_forward_without_gradients() would change nothing. They
  // take no lock.
  bool is_forward_open() const { return is_forward_open_.load(std::memory_order_relaxed); }
  bool is_evaluation_noted() const {
    return is_forward_open() || now_.load(std::memory_order_relaxed) == kEvaluation;
  }
  // Returns whether note_without_gradients() would change nothing.
  bool is_without_gradients_noted() const {
    return is_forward_open() || now_.load(std::memory_order_relaxed) != kTraining;
  }

 private:
  static constexpr size_t kMaxDevices = 16;
  static constexpr int kTraining = static_cast<int>(prediction::Stage::kTraining);
  static constexpr int kEvaluation = static_cast<int>(prediction::Stage::kEvaluation);
  // Training or evaluation: a forward pass in eval() mode, and what comes before one.
  static constexpr int kUndecided = prediction::kStages, kBetween = kUndecided + 1;
  struct Bytes {
    int64_t allocated = 0, process = 0;
  };
  using Peaks = std::array<Bytes, kMaxDevices>;

  static void include(const Peaks& more, Peaks& peaks);
  void decide(int undecided, int stage);

  mutable ForkSafeMutex mutex_;
  std::array<Peaks, kBetween + 1> peaks_{};
  std::atomic<int> now_{static_cast<int>(prediction::Stage::kNeither)};
  std::atomic<bool> is_forward_open_{false};
  bool trains_ = false;  // a module has said so since the forward pass began
  ModeOf undecided_by_ = ModeOf::kDropout;
};

}  // namespace memledger::inside
