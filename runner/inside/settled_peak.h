#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "prediction/measurement.h"

namespace memledger::inside {

// Finds when a training program has shown what it takes. Knows no LibTorch. Not thread-safe.
//
// It has settled when its peak has not moved from one step of an optimizer to that optimizer's
// next. Steps of another kind may still come, such as that with an epoch's last, smaller batch, and
// what they leave of LibTorch's cache moves the peak again. So more steps are looked at. If there
// are such, a whole round of all kinds has to come again, and to leave the same blocks in use and
// free: then what follows is known as long as the rounds go on.
class SettledPeak {
 public:
  // What is seen after a step.
  struct Step {
    const void* optimizer = nullptr;  // any address that tells optimizers apart
    int64_t peak_bytes = 0;           // the highest so far
    int64_t used_bytes = 0;           // now, between steps
    size_t unstepped_parameters = 0;  // used by the forward pass, and never written to by a step
    int64_t allocations = 0;          // so far
    int64_t requested_bytes = 0;      // by them
    uint64_t blocks = 0;              // a hash of all blocks of the allocator, between steps
    int64_t seconds = 0;              // since the program began
  };

  // Returns whether the program has shown enough; once true, it stays true. All optimizers must
  // have stepped twice, and nothing may have grown since the last step of this one. No parameter
  // may wait for its first step (in a GAN the generator may be trained every fifth step), unless
  // kPatientSteps have passed. Then the steps that follow must have shown what kind they are.
  bool note(const Step& step);

  // From now on steps that differ need not come again.
  void take_any_steps() { takes_any_ = true; }

  // Returns what the steps had in common; kNone before note() has returned true.
  prediction::Steps kind() const { return kind_; }

  // Returns all optimizers that are not forgotten.
  std::vector<const void*> optimizers() const;
  // Forgets one that is no more: an input that an attack writes to looks like a parameter, and may
  // have its step once.
  void forget(const void* optimizer) { optimizers_.erase(optimizer); }

  int64_t steps() const { return steps_; }

  static constexpr int64_t kPatientSteps = 50;
  // What lives on between steps varies a little with the batch.
  static constexpr int64_t kNegligibleGrowth = int64_t{64} << 10;
  // How far it looks, in allocations of the program: the same in each run, where time is not.
  static constexpr int64_t kLookAhead = 12'000;
  // Where steps differ: until a round has come again.
  static constexpr int64_t kLongestLook = 100'000;
  // For programs whose steps take long, which dry-run would end before they are seen.
  static constexpr int64_t kLongestSeconds = 60;

 private:
  struct Optimizer {
    int steps = 0;
    int64_t peak_bytes = 0;  // after its last step
    int64_t used_bytes = 0;  // the most after any
  };
  // A step, since it settled.
  struct Seen {
    int64_t allocations = 0, requested_bytes = 0;
    uint64_t blocks = 0;

    bool is_like(const Seen& other) const {
      return allocations == other.allocations && requested_bytes == other.requested_bytes;
    }
  };

  bool is_still(const Step& step);
  bool have_all_stepped_twice() const;
  prediction::Steps kind_of_seen(int64_t looked_at, bool is_late) const;
  bool has_round_come_again() const;
  bool are_last_nearly_alike() const;

  std::map<const void*, Optimizer> optimizers_;
  bool takes_any_ = false;
  int64_t steps_ = 0;
  int64_t allocations_ = 0, requested_bytes_ = 0;  // after the last step
  bool has_settled_ = false;
  int64_t settled_allocations_ = 0, settled_seconds_ = 0;
  std::vector<Seen> seen_;
  std::map<std::pair<int64_t, int64_t>, size_t> last_of_kind_;  // indices into seen_
  prediction::Steps kind_ = prediction::Steps::kNone;
};

}  // namespace memledger::inside
