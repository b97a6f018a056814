#include "runner/inside/settled_peak.h"

#include <algorithm>
#include <utility>

namespace memledger::inside {

bool SettledPeak::note(const Step& step) {
  ++steps_;
  Optimizer& optimizer = optimizers_[step.optimizer];
  const bool is_first = optimizer.steps++ == 0;
  const bool has_moved = std::exchange(optimizer.peak_bytes, step.peak_bytes) != step.peak_bytes;
  const bool has_grown = step.used_bytes > optimizer.used_bytes + kNegligibleGrowth;
  optimizer.used_bytes = std::max(optimizer.used_bytes, step.used_bytes);
  if (is_first || has_moved || has_grown || !have_all_stepped_twice()) return false;
  return step.unstepped_parameters == 0 || steps_ >= kPatientSteps;
}

std::vector<const void*> SettledPeak::optimizers() const {
  std::vector<const void*> result;
  for (const auto& [optimizer, steps] : optimizers_) result.push_back(optimizer);
  return result;
}

bool SettledPeak::have_all_stepped_twice() const {
  return std::all_of(optimizers_.begin(), optimizers_.end(),
                     [](const auto& entry) { return entry.second.steps >= 2; });
}

}  // namespace memledger::inside
