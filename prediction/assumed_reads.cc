#include "prediction/assumed_reads.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "prediction/measure_variables.h"

namespace memledger::prediction {
namespace {

using Kind = MeasuredRead::Kind;
using Effect = MeasuredRead::Effect;

// Maximum number of reads that are tried one by one. More are tried all at once.
constexpr size_t kMaxAlone = 3;
constexpr size_t kMaxTruthsAlone = 6;
// Maximum number that is tried one by one after trying all at once had an effect.
constexpr size_t kMaxAfterAll = 8;

// From small to huge.
constexpr std::array<const char*, 4> kNumbers = {kAssumeSmall, kAssumeOne, kAssumeLarge,
                                                 kAssumeHuge};

bool is_truth(const MeasuredRead& read) { return read.kind == Kind::kBranch; }

// Whether it stands for all copies of a process that is not watched: then it is tried alone.
bool is_of_driver(const MeasuredRead& read) { return absl::StartsWith(read.site, "copied:"); }

// Whether the value is what was assumed at first.
bool is_first(const MeasuredRead& read, std::string_view value) {
  return (value == kAssumeSmall && read.assumed == 0) || (value == kAssumeOne && read.assumed == 1);
}

// The values of a read besides the first.
std::vector<std::string> other_values(const MeasuredRead& read) {
  if (is_truth(read)) return {kAssumeOther};
  std::vector<std::string> values;
  for (const char* const value : kNumbers) {
    if (!is_first(read, value)) values.emplace_back(value);
    // Conditions such as `n < 1000` hold for few of the others.
    if (value == std::string_view(kAssumeOne) && is_of_driver(read))
      values.emplace_back(kAssumeMiddle);
  }
  return values;
}

// What each process allocated, by device.
std::vector<std::vector<int64_t>> allocations_of(const Run& run) {
  std::vector<std::vector<int64_t>> rows;
  for (const Measurement& process : run.processes) {
    for (const MeasuredDevice& device : process.devices) {
      rows.push_back(
          {process.rank, process.steps, device.index, device.allocations, device.requested_in_all});
      // cudaMallocAsync counts neither.
      if (device.allocations == 0) rows.back().push_back(device.allocated_peak);
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// By device: what tensors, LibTorch and the processes had at most.
using Peaks = std::map<int, std::array<int64_t, 3>>;

Peaks peaks_of(const Run& run) {
  Peaks peaks;
  for (const Measurement& process : run.processes) {
    for (const MeasuredDevice& device : process.devices) {
      std::array<int64_t, 3>& sums = peaks[device.index];
      sums[0] += device.allocated_peak;
      sums[1] += device.reserved_peak;
      sums[2] += device.process_peak;
    }
  }
  return peaks;
}

bool takes_less(const Run& run, const Run& than) {
  const Peaks few = peaks_of(run), many = peaks_of(than);
  for (const auto& [device, peaks] : many) {
    const auto found = few.find(device);
    if (found == few.end() || found->second[2] < peaks[2]) return true;
  }
  return false;
}

bool is_of_same_end(const Run& a, const Run& b) {
  return a.end == b.end && a.addresses == b.addresses && a.is_limited == b.is_limited;
}

bool came_further(const Run& run) { return run.goes_on || run.as_far; }

// The run without its assumptions, of several the one that came as far; nullptr where there is
// none.
const Run* base_of(const Run& assuming, const std::vector<Run>& runs) {
  const Run* base = nullptr;
  for (const Run& run : runs) {
    if (!is_of_same_end(run, assuming) || run.varies_sizes) continue;
    if (came_further(run) == came_further(assuming)) return &run;
    if (base == nullptr) base = &run;
  }
  return base;
}

bool has_read(const Run& run, const MeasuredRead& read) {
  return std::any_of(run.processes.begin(), run.processes.end(), [&](const Measurement& process) {
    return std::any_of(process.unknown_reads.begin(), process.unknown_reads.end(),
                       [&](const MeasuredRead& other) { return other.site == read.site; });
  });
}

// Whether it takes a run that comes further to see the read, such as one of an evaluation.
bool is_read_late(const MeasuredRead& read, const std::vector<Run>& runs) {
  return std::none_of(runs.begin(), runs.end(),
                      [&](const Run& run) { return !came_further(run) && has_read(run, read); });
}

// The same with another end.
bool assume_alike(const std::vector<AssumedRead>& a, const std::vector<AssumedRead>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const AssumedRead& one, const AssumedRead& other) {
                      return one.site == other.site && one.value == other.value;
                    });
}

const Run* find_made(const std::vector<Run>& assuming, const std::vector<AssumedRead>& assumed,
                     Run::End end) {
  const auto made = std::find_if(assuming.begin(), assuming.end(), [&](const Run& run) {
    return run.end == end && assume_alike(run.assumed_reads, assumed);
  });
  return made == assuming.end() ? nullptr : &*made;
}

// Without those that ended before what the runs of their end showed that were made again to come
// further: they say nothing of that.
std::vector<Run> that_came_as_far(const std::vector<Run>& assuming, const std::vector<Run>& runs) {
  std::vector<Run> result;
  std::copy_if(assuming.begin(), assuming.end(), std::back_inserter(result), [&](const Run& run) {
    return came_further(run) || std::none_of(runs.begin(), runs.end(), [&run](const Run& other) {
             return other.as_far && other.end == run.end;
           });
  });
  return result;
}

enum class Outcome : uint8_t { kAlike, kSamePeak, kOtherPeak, kNoMemory, kFailed, kTimedOut };

Outcome outcome_of(const Run& run, const std::vector<Run>& runs) {
  if (run.failed_allocation()) return Outcome::kNoMemory;
  // One that was killed may have run out of the host's memory.
  constexpr int kKilled = 128 + 9;
  if (run.program.timed_out || run.program.status == kKilled) return Outcome::kTimedOut;
  if (!run.has_ended_well()) return Outcome::kFailed;
  const Run* const base = base_of(run, runs);
  if (base == nullptr) return Outcome::kOtherPeak;
  if (allocations_of(run) == allocations_of(*base)) return Outcome::kAlike;
  return peaks_of(run) == peaks_of(*base) ? Outcome::kSamePeak : Outcome::kOtherPeak;
}

bool is_without_effect(Outcome outcome) {
  return outcome == Outcome::kAlike || outcome == Outcome::kSamePeak;
}

// The end at which a read is tried: the high one, unless it was read at the low one only.
Run::End end_of(const MeasuredRead& read, const std::vector<Run>& runs) {
  const bool is_high = std::any_of(runs.begin(), runs.end(), [&](const Run& run) {
    return run.end == Run::End::kHigh && has_read(run, read);
  });
  return is_high ? Run::End::kHigh : Run::End::kLow;
}

const char* all_of_kind(const MeasuredRead& read) {
  return is_truth(read) ? kAllTruths : kAllNumbers;
}

// The run that says what a value does: that of the read alone, else of all at once. One of all that
// fails says nothing of each.
const Run* run_with(const MeasuredRead& read, const std::string& value, Run::End end,
                    const std::vector<Run>& assuming) {
  if (const Run* const alone = find_made(assuming, {{read.site, value}}, end)) return alone;
  const Run* const all = find_made(assuming, {{all_of_kind(read), value}}, end);
  return all != nullptr &&
                 (all->has_ended_well() || all->failed_allocation() || all->program.timed_out)
             ? all
             : nullptr;
}

const Run* run_at_either_end(const MeasuredRead& read, const std::string& value,
                             const std::vector<Run>& runs, const std::vector<Run>& assuming) {
  const Run* const run = run_with(read, value, end_of(read, runs), assuming);
  // A program that does not fit is tried at the low end.
  return run != nullptr ? run : run_with(read, value, Run::End::kLow, assuming);
}

// What other values do, from small to huge.
struct Tried {
  std::string value;
  const Run* run = nullptr;
  Outcome outcome = Outcome::kFailed;
};

std::vector<Tried> tried_values(const MeasuredRead& read, const std::vector<Run>& runs,
                                const std::vector<Run>& assuming) {
  std::vector<Tried> tried;
  for (std::string value : other_values(read)) {
    const Run* run = run_at_either_end(read, value, runs, assuming);
    const bool is_taken = run != nullptr && outcome_of(*run, runs) != Outcome::kFailed;
    if (value == kAssumeHuge && !is_taken) {
      if (const Run* const less = run_at_either_end(read, kAssumeMillion, runs, assuming)) {
        value = kAssumeMillion;
        run = less;
      }
    }
    if (run == nullptr) continue;
    // It may have ended before the read.
    if (run->has_ended_well() && !has_read(*run, read)) continue;
    tried.push_back({value, run, outcome_of(*run, runs)});
  }
  return tried;
}

const Run* find_tried(const std::vector<Tried>& tried, std::string_view value) {
  const auto found = std::find_if(tried.begin(), tried.end(), [&](const Tried& one) {
    return one.value == value && one.outcome != Outcome::kFailed;
  });
  return found == tried.end() ? nullptr : found->run;
}

// Whether the largest values that the program takes have one peak: then larger ones have it, too. A
// million is so little that it may hide below the peak, so that nothing may depend on it.
bool has_largest(const std::vector<Tried>& tried) {
  const Run* const large = find_tried(tried, kAssumeLarge);
  if (large == nullptr) return false;
  if (const Run* const huge = find_tried(tried, kAssumeHuge))
    return peaks_of(*large) == peaks_of(*huge);
  const Run* const million = find_tried(tried, kAssumeMillion);
  return million != nullptr && allocations_of(*large) == allocations_of(*million);
}

// Whether a value between small and large ones has a peak of its own, so that no end shows what
// others between them have.
bool middle_differs(const std::vector<Tried>& tried) {
  const Run* const middle = find_tried(tried, kAssumeMiddle);
  if (middle == nullptr) return false;
  const Peaks peaks = peaks_of(*middle);
  const auto& of_middle = *std::find_if(tried.begin(), tried.end(),
                                        [&](const Tried& one) { return one.run == middle; });
  if (of_middle.outcome != Outcome::kOtherPeak) return false;
  return std::none_of(tried.begin(), tried.end(), [&](const Tried& one) {
    return one.run != middle && one.outcome != Outcome::kFailed && peaks_of(*one.run) == peaks;
  });
}

Effect effect_of(const MeasuredRead& read, const std::vector<Tried>& tried) {
  if (tried.size() < other_values(read).size()) return Effect::kNotTried;
  const auto any = [&](auto condition) {
    return std::any_of(tried.begin(), tried.end(),
                       [&](const Tried& one) { return condition(one.outcome); });
  };
  const auto is = [](Outcome wanted) { return [=](Outcome outcome) { return outcome == wanted; }; };
  if (any(is(Outcome::kNoMemory)) || any(is(Outcome::kTimedOut))) return Effect::kOpen;
  if (middle_differs(tried)) return Effect::kOpen;
  const bool any_ended = any([](Outcome outcome) { return outcome != Outcome::kFailed; });
  // A truth with which the program fails is none that it goes on with.
  if (!any_ended) return is_truth(read) ? Effect::kNone : Effect::kOpen;
  if (any(is(Outcome::kOtherPeak)))
    return is_truth(read) || has_largest(tried) ? Effect::kWithin : Effect::kOpen;
  // Nor is it known then what more would take.
  if (any(is(Outcome::kSamePeak)) && !is_truth(read) && !has_largest(tried)) return Effect::kOpen;
  return any(is(Outcome::kSamePeak)) ? Effect::kSamePeak : Effect::kNone;
}

std::vector<MeasuredRead> reads_of(const std::vector<Run>& runs) {
  std::vector<MeasuredRead> reads;
  for (const Run& run : runs) add_reads(run, reads);
  return reads;
}

std::vector<MeasuredRead> sites_of(std::string_view specification, const std::vector<Run>& runs) {
  std::vector<MeasuredRead> reads = reads_of(runs);
  sort_reads(reads);
  // The user has said what whole numbers are.
  const bool are_said = absl::StrContains(std::string(specification), ",numbers=");
  reads.erase(std::remove_if(reads.begin(), reads.end(),
                             [&](const MeasuredRead& read) {
                               return read.site.empty() || read.is_harmless ||
                                      (are_said && read.kind == Kind::kNumber);
                             }),
              reads.end());
  return reads;
}

// Which runs a verdict needs, those that are made among them.
class Plan {
 public:
  Plan(const std::vector<Run>& runs, const std::vector<Run>& assuming)
      : runs_(runs), assuming_(assuming) {}

  // For a program that fits.
  std::vector<AssumingRun> of_fitting(const std::vector<MeasuredRead>& sites) {
    std::vector<MeasuredRead> truths, numbers, of_driver;
    for (const MeasuredRead& site : sites)
      (is_of_driver(site) ? of_driver : is_truth(site) ? truths : numbers).push_back(site);
    const bool are_few = truths.size() + numbers.size() <= kMaxAlone;
    add(numbers, are_few);
    add(truths, are_few || truths.size() <= kMaxTruthsAlone);
    add(of_driver, true);
    add_low_ends();
    return std::move(wanted_);
  }

  // For one that does not.
  std::vector<AssumingRun> of_failing(const std::vector<MeasuredRead>& sites) {
    for (const MeasuredRead& site : sites) {
      for (const std::string& value : other_values(site)) {
        const bool is_alone = sites.size() <= kMaxAlone || is_of_driver(site);
        want({{is_alone ? site.site : all_of_kind(site), value}}, Run::End::kLow);
      }
    }
    return std::move(wanted_);
  }

 private:
  void want(std::vector<AssumedRead> assumed, Run::End end, bool as_far = false) {
    if (find_made(assuming_, assumed, end) != nullptr) return;
    const bool is_wanted =
        std::any_of(wanted_.begin(), wanted_.end(), [&](const AssumingRun& other) {
          return other.end == end && assume_alike(other.assumed_reads, assumed);
        });
    if (!is_wanted) wanted_.push_back({std::move(assumed), end, as_far});
  }

  void add(const std::vector<MeasuredRead>& sites, bool is_alone) {
    if (!is_alone && !add_at_once(sites)) return;
    for (const MeasuredRead& site : sites) {
      for (const std::string& value : other_values(site)) {
        if (is_alone || something_came_of_all(site, value)) add_alone(site, value);
      }
    }
  }

  // Returns whether those are few enough to be tried one by one that something may come of.
  bool add_at_once(const std::vector<MeasuredRead>& sites) {
    const bool any_late = std::any_of(
        sites.begin(), sites.end(), [this](const auto& site) { return is_read_late(site, runs_); });
    size_t tried_again = 0;
    for (const MeasuredRead& site : sites) {
      const Run::End end = end_of(site, runs_);
      bool is_tried_again = false;
      for (const std::string& value : other_values(site)) {
        want({{all_of_kind(site), value}}, end, any_late);
        if (value == kAssumeHuge && has_failed({{all_of_kind(site), value}}, end))
          want({{all_of_kind(site), kAssumeMillion}}, end, any_late);
        is_tried_again |= something_came_of_all(site, value);
      }
      tried_again += is_tried_again;
    }
    return tried_again <= kMaxAfterAll;
  }

  // Whether the value has an effect where all reads of its kind have it. Where the program takes no
  // huge one, a million is in its place.
  bool something_came_of_all(const MeasuredRead& site, const std::string& value) const {
    const Run::End end = end_of(site, runs_);
    const char* const kind = all_of_kind(site);
    const Run* made = find_made(assuming_, {{kind, value}}, end);
    if (value == kAssumeHuge && has_failed({{kind, value}}, end))
      made = find_made(assuming_, {{kind, kAssumeMillion}}, end);
    return made != nullptr && !is_without_effect(outcome_of(*made, runs_));
  }

  bool has_failed(const std::vector<AssumedRead>& assumed, Run::End end) const {
    const Run* const made = find_made(assuming_, assumed, end);
    return made != nullptr && outcome_of(*made, runs_) == Outcome::kFailed;
  }

  void add_alone(const MeasuredRead& site, const std::string& value) {
    const Run::End end = end_of(site, runs_);
    const bool is_late = is_read_late(site, runs_);
    want({{site.site, value}}, end, is_late);
    if (value != kAssumeHuge || !has_failed({{site.site, value}}, end)) return;
    // The driver does not see what finds room in a cache.
    if (is_of_driver(site)) return want({{site.site, kAssumeMillion}}, end, is_late);
    // Where other values allocate alike, nothing is open.
    const std::vector<Tried> tried = tried_values(site, runs_, assuming_);
    const bool is_open = std::any_of(tried.begin(), tried.end(), [](const Tried& one) {
      return one.outcome != Outcome::kAlike && one.outcome != Outcome::kFailed;
    });
    if (is_open) want({{site.site, kAssumeMillion}}, end, is_late);
  }

  // What takes less moves the low end.
  void add_low_ends() {
    for (const Run& run : assuming_) {
      if (run.end != Run::End::kHigh || outcome_of(run, runs_) != Outcome::kOtherPeak) continue;
      const Run* const base = base_of(run, runs_);
      if (base != nullptr && takes_less(run, *base)) want(run.assumed_reads, Run::End::kLow);
    }
  }

  const std::vector<Run>& runs_;
  const std::vector<Run>& assuming_;
  std::vector<AssumingRun> wanted_;
};

bool all_end_well(const std::vector<Run>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const Run& run) {
    return run.has_ended_well() && !run.failed_allocation();
  });
}

// Runs of the low end that say that it does not fit; none where one does not.
std::vector<Run> failing_low_runs(const std::vector<Run>& runs) {
  std::vector<Run> low;
  for (const Run& run : runs) {
    if (run.end != Run::End::kLow || !run.is_limited) continue;
    if (!run.failed_allocation() || run.assumes_sizes) return {};
    low.push_back(run);
  }
  return low;
}

bool is_same(const MeasuredRead& a, const MeasuredRead& b) {
  if (a.kind != b.kind || a.site != b.site) return false;
  if (!a.site.empty()) return true;
  return a.op == b.op && a.place == b.place && a.loop == b.loop;
}

}  // namespace

void add_reads(const Run& run, std::vector<MeasuredRead>& reads) {
  for (const Measurement& process : run.processes) {
    for (const MeasuredRead& read : process.unknown_reads) {
      const auto same = std::find_if(reads.begin(), reads.end(), [&](const MeasuredRead& other) {
        return is_same(other, read);
      });
      if (same == reads.end()) {
        reads.push_back(read);
      } else {
        // Figures of a process that was killed have no lines.
        if (same->place.empty()) same->place = read.place;
        same->count = std::max(same->count, read.count);
        same->bytes = std::max(same->bytes, read.bytes);
        same->before_cap = std::max(same->before_cap, read.before_cap);
        same->has_upper_bound = same->has_upper_bound && read.has_upper_bound;
      }
    }
  }
}

void sort_reads(std::vector<MeasuredRead>& reads) {
  const auto key = [](const MeasuredRead& read) {
    return std::make_tuple(read.has_upper_bound, -read.bytes, read.kind, -read.count,
                           std::cref(read.op), std::cref(read.place), std::cref(read.site));
  };
  std::sort(reads.begin(), reads.end(),
            [&](const MeasuredRead& a, const MeasuredRead& b) { return key(a) < key(b); });
}

bool may_decide(const MeasuredRead& read, const Prediction& prediction) {
  const bool is_untried = !read.site.empty() && read.effect == Effect::kNotTried;
  return !read.has_upper_bound && !(prediction.failure && is_untried);
}

ReadsTried judge_reads(const std::vector<Run>& runs, const std::vector<Run>& all_assuming,
                       std::vector<MeasuredRead>& reads) {
  ReadsTried result;
  const std::vector<Run> assuming = that_came_as_far(all_assuming, runs);
  for (MeasuredRead& read : reads) {
    if (read.site.empty()) continue;
    if (read.is_harmless) {
      read.effect = Effect::kNone;
      read.has_upper_bound = true;
      continue;
    }
    const std::vector<Tried> tried = tried_values(read, runs, assuming);
    read.effect = effect_of(read, tried);
    read.values_tried = 1 + std::count_if(tried.begin(), tried.end(), [](const Tried& one) {
                          return one.outcome != Outcome::kFailed;
                        });
    read.has_upper_bound = read.effect != Effect::kOpen && read.effect != Effect::kNotTried;
  }
  for (const Run& run : assuming) {
    const bool has_ended = run.has_ended_well() && !run.failed_allocation();
    if (has_ended && outcome_of(run, runs) == Outcome::kOtherPeak) result.within.push_back(run);
    const Run* const base = base_of(run, runs);
    result.fits_otherwise |=
        has_ended && run.end == Run::End::kLow && base != nullptr && base->failed_allocation();
  }
  return result;
}

std::vector<AssumingRun> wanted_runs(std::string_view specification, const std::vector<Run>& runs,
                                     const std::vector<Run>& all_assuming) {
  if (runs.empty()) return {};
  const std::vector<Run> assuming = that_came_as_far(all_assuming, runs);
  Plan plan(runs, assuming);
  if (all_end_well(runs)) return plan.of_fitting(sites_of(specification, runs));
  const std::vector<Run> failing = failing_low_runs(runs);
  if (failing.empty()) return {};
  return plan.of_failing(sites_of(specification, failing));
}

}  // namespace memledger::prediction
