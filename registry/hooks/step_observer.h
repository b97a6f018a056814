#pragma once

// Tells of each operator that writes to a tensor in place under no_grad, on the thread that runs it
// and before it runs: so do optimizers step. What such a thread changes without a lock (an
// optimizer's states) can be read there and then.

#include <array>
#include <atomic>

namespace at {
class Tensor;
}

namespace memledger {

// `written` is the operator's first tensor: a parameter or its data(), an optimizer's own state, or
// anything else.
using StepObserver = void (*)(const at::Tensor& written) noexcept;

// Add and remove an observer of the copy that watches: one per copy of memledger, eight in all.
// Adding one again, or a ninth, changes nothing. One that was removed may still be running on
// another thread.
void add_step_observer(StepObserver observer) noexcept;
void remove_step_observer(StepObserver observer) noexcept;

// Those of the copy that watches. Lock-free.
class StepObservers {
 public:
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  void tell(const at::Tensor& written) const noexcept {
    for (const std::atomic<StepObserver>& place : places_) {
      if (const StepObserver observer = place.load(std::memory_order_acquire)) observer(written);
    }
  }
  void add(StepObserver observer) noexcept {
    for (const std::atomic<StepObserver>& place : places_) {
      if (place.load() == observer) return;
    }
    for (std::atomic<StepObserver>& place : places_) {
      StepObserver none = nullptr;
      if (!place.compare_exchange_strong(none, observer)) continue;
      count_.fetch_add(1);
      return;
    }
  }
  void remove(StepObserver observer) noexcept {
    for (std::atomic<StepObserver>& place : places_) {
      StepObserver there = observer;
      if (place.compare_exchange_strong(there, nullptr)) count_.fetch_sub(1);
    }
  }

 private:
  std::array<std::atomic<StepObserver>, 8> places_{};
  std::atomic<int> count_{0};
};

}  // namespace memledger
