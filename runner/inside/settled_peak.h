#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace memledger::inside {

// Finds when a training program has shown what it takes: its peak has not moved from one step of an
// optimizer to that optimizer's next. Knows no LibTorch. Not thread-safe.
class SettledPeak {
 public:
  // What is seen after a step.
  struct Step {
    const void* optimizer = nullptr;  // any address that tells optimizers apart
    int64_t peak_bytes = 0;           // the highest so far
    int64_t used_bytes = 0;           // now, between steps
    size_t unstepped_parameters = 0;  // used by the forward pass, and never written to by a step
  };

  // Returns whether the peak is settled: all optimizers seen have stepped twice, nothing has grown
  // since this one's step before, and no parameter waits for another optimizer's first step (a
  // generator that is trained every fifth time), or it has waited for kPatientSteps.
  bool note(const Step& step);

  // Returns all optimizers that are not forgotten.
  std::vector<const void*> optimizers() const;
  // Forgets one that is no more: an input that an attack writes to looks like a parameter, and may
  // have its step once.
  void forget(const void* optimizer) { optimizers_.erase(optimizer); }

  int64_t steps() const { return steps_; }

  static constexpr int64_t kPatientSteps = 50;
  // What lives on between steps varies a little with the batch.
  static constexpr int64_t kNegligibleGrowth = int64_t{64} << 10;

 private:
  struct Optimizer {
    int steps = 0;
    int64_t peak_bytes = 0;  // after its last step
    int64_t used_bytes = 0;  // the most after any
  };

  bool have_all_stepped_twice() const;

  std::map<const void*, Optimizer> optimizers_;
  int64_t steps_ = 0;
};

}  // namespace memledger::inside
