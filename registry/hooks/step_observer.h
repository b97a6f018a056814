#pragma once

// Calls an observer for each operator that writes to a tensor in place under no_grad, as
// optimizers' steps do, on the thread that runs it and before it runs. What such a thread changes
// without a lock (an optimizer's states) can be read there and then.

#include <array>
#include <atomic>

namespace at {
class Tensor;
}

namespace memledger {

// `written` is the operator's first tensor: a parameter or its data(), an optimizer's own state, or
// anything else.
using StepObserver = void (*)(const at::Tensor& written) noexcept;

// Add and remove an observer of the copy that watches: one per copy of memledger, at most eight.
// Adding one again, or a ninth, changes nothing. A removed one may still be running on another
// thread.
void add_step_observer(StepObserver observer) noexcept;
void remove_step_observer(StepObserver observer) noexcept;

// The observers of the copy that watches. Lock-free.
class StepObservers {
 public:
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  void tell(const at::Tensor& written) const noexcept {
    for (const std::atomic<StepObserver>& slot : slots_) {
      if (const StepObserver observer = slot.load(std::memory_order_acquire)) observer(written);
    }
  }
  void add(StepObserver observer) noexcept {
    for (const std::atomic<StepObserver>& slot : slots_) {
      if (slot.load() == observer) return;
    }
    for (std::atomic<StepObserver>& slot : slots_) {
      StepObserver none = nullptr;
      if (!slot.compare_exchange_strong(none, observer)) continue;
      count_.fetch_add(1);
      return;
    }
  }
  void remove(StepObserver observer) noexcept {
    for (std::atomic<StepObserver>& slot : slots_) {
      StepObserver there = observer;
      if (slot.compare_exchange_strong(there, nullptr)) count_.fetch_sub(1);
    }
  }

 private:
  std::array<std::atomic<StepObserver>, 8> slots_{};
  std::atomic<int> count_{0};
};

}  // namespace memledger
