#include "runner/inside/settled_peak.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace memledger::inside {
namespace {

using prediction::Steps;

// Steps that differ by less than one part in this many count as alike.
constexpr int64_t kNearly = 100;
constexpr ptrdiff_t kNearlyAlikeSteps = 8;

}  // namespace

bool SettledPeak::note(const Step& step) {
  ++steps_;
  if (kind_ != Steps::kNone) return true;
  const Seen seen{step.allocations - std::exchange(allocations_, step.allocations),
                  step.requested_bytes - std::exchange(requested_bytes_, step.requested_bytes),
                  step.blocks};
  const bool is_still = this->is_still(step);
  if (!has_settled_) {
    if (!is_still) return false;
    has_settled_ = true;
    settled_allocations_ = step.allocations;
    settled_seconds_ = step.seconds;
  }
  seen_.push_back(seen);
  // The first may have been the one that made the last state, or have come after an evaluation.
  if (seen_.size() > 1) last_of_kind_[{seen.allocations, seen.requested_bytes}] = seen_.size() - 1;
  if (!is_still) return false;
  kind_ = kind_of_seen(step.allocations - settled_allocations_,
                       step.seconds - settled_seconds_ >= kLongestSeconds);
  return kind_ != Steps::kNone;
}

std::vector<const void*> SettledPeak::optimizers() const {
  std::vector<const void*> result;
  for (const auto& [optimizer, steps] : optimizers_) result.push_back(optimizer);
  return result;
}

bool SettledPeak::is_still(const Step& step) {
  Optimizer& optimizer = optimizers_[step.optimizer];
  const bool is_first = optimizer.steps++ == 0;
  const bool has_moved = std::exchange(optimizer.peak_bytes, step.peak_bytes) != step.peak_bytes;
  const bool has_grown = step.used_bytes > optimizer.used_bytes + kNegligibleGrowth;
  optimizer.used_bytes = std::max(optimizer.used_bytes, step.used_bytes);
  if (is_first || has_moved || has_grown || !have_all_stepped_twice()) return false;
  return step.unstepped_parameters == 0 || steps_ >= kPatientSteps;
}

bool SettledPeak::have_all_stepped_twice() const {
  return std::all_of(optimizers_.begin(), optimizers_.end(),
                     [](const auto& entry) { return entry.second.steps >= 2; });
}

Steps SettledPeak::kind_of_seen(int64_t looked_at, bool is_late) const {
  if (looked_at < kLookAhead && !is_late) return Steps::kNone;
  if (last_of_kind_.size() <= 1) return Steps::kAlike;
  if (takes_any_) return Steps::kDiffer;
  if (looked_at < kLongestLook && has_round_come_again()) return Steps::kRepeat;
  if (looked_at < kLongestLook && !is_late) return Steps::kNone;
  return are_last_nearly_alike() ? Steps::kAlike : Steps::kDiffer;
}

// Whether the last steps are like those before them, with the same blocks at both ends and all
// kinds of steps among them.
bool SettledPeak::has_round_come_again() const {
  size_t oldest = seen_.size() - 1;
  for (const auto& [kind, last] : last_of_kind_) oldest = std::min(oldest, last);
  for (size_t length = seen_.size() - oldest; 2 * length <= seen_.size(); ++length) {
    const auto begin = seen_.end() - static_cast<ptrdiff_t>(length);
    if ((begin - 1)->blocks != seen_.back().blocks) continue;
    if (std::equal(begin, seen_.end(), begin - static_cast<ptrdiff_t>(length),
                   [](const Seen& a, const Seen& b) { return a.is_like(b); }))
      return true;
  }
  return false;
}

bool SettledPeak::are_last_nearly_alike() const {
  const auto count = std::min(kNearlyAlikeSteps, static_cast<ptrdiff_t>(seen_.size()));
  const int64_t wanted = seen_.back().requested_bytes;
  return std::all_of(seen_.end() - count, seen_.end(), [&](const Seen& seen) {
    return std::abs(seen.requested_bytes - wanted) <= wanted / kNearly + kNegligibleGrowth;
  });
}

}  // namespace memledger::inside
