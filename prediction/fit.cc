#include "prediction/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace memledger::prediction {
namespace {

// How many times the largest that fits the next value is, as long as none is known not to fit: at
// the least after the first value, whose peak is mostly what does not depend on it, and at the
// most.
constexpr int64_t kLeastGrowth = 8, kMostGrowth = 16;
// At the most, once peaks have grown by this share of the capacity, so that their slope is known.
constexpr int64_t kMostGrowthOnSlope = 64;
constexpr double kSlopeKnown = 0.01;
// After so many values with the same peak the program is taken to ignore the value.
constexpr size_t kSameUntilUnused = 4;
// Peaks that fall by less are noise of workspaces.
constexpr double kFallsBy = 0.01;
// A curve is taken for bent if this changes the estimate by so much.
constexpr double kBent = 0.05;
// The next step from a side of the bracket is so many times the one before, which was too small.
constexpr int64_t kFasterBy = 4;
// What is left of an uncertainty that a value has lessened enough.
constexpr double kMuchLess = 0.75;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A value and the bytes that it needs of the device, as a point of a curve.
struct Sample {
  double value, bytes;
};

// What a device must have lies between the peak of the tensors, if LibTorch's cache gave everything
// back, and the peak without a limit, if nothing: 0 and 1.
class CacheShare {
 public:
  explicit CacheShare(const std::vector<FitPoint>& tried) {
    for (const FitPoint& point : tried) {
      if (!point.peaks) continue;
      const double with_cache = bytes_of(*point.peaks, 1), without = bytes_of(*point.peaks, 0);
      if (with_cache <= without) continue;
      const double at_capacity =
          (static_cast<double>(point.peaks->capacity) - without) / (with_cache - without);
      if (point.verdict == Verdict::kFits) {
        most_ = std::min(most_, at_capacity);
      } else {
        least_ = std::max(least_, at_capacity);
      }
    }
    least_ = std::min(least_, 1.0);
    most_ = std::max(most_, 0.0);
  }

  double estimate() const { return (least_ + most_) / 2; }
  // How far apart the least and the most are that it can be.
  double uncertainty() const { return std::max(0.0, most_ - least_); }

  static double bytes_of(const FitPeaks& peaks, double share) {
    const double beside = static_cast<double>(peaks.process.high - peaks.reserved.high);
    const double allocated = static_cast<double>(peaks.allocated.high);
    const double cached = static_cast<double>(peaks.reserved.high) - allocated;
    return beside + allocated + share * std::max(0.0, cached);
  }

 private:
  double least_ = 0, most_ = 1;
};

double line_at(const Sample& a, const Sample& b, double bytes) {
  const double slope = (b.bytes - a.bytes) / (b.value - a.value);
  return slope <= 0 ? kInfinite : a.value + (bytes - a.bytes) / slope;
}

// The value at which the parabola through three samples reaches `bytes`, on its rising side; NaN if
// it does not.
double parabola_at(const Sample& a, const Sample& b, const Sample& c, double bytes) {
  const double slope_ab = (b.bytes - a.bytes) / (b.value - a.value);
  const double slope_bc = (c.bytes - b.bytes) / (c.value - b.value);
  const double bend = (slope_bc - slope_ab) / (c.value - a.value);
  // In powers of (value - b.value).
  const double slope = slope_ab + bend * (b.value - a.value);
  const double rest = b.bytes - bytes;
  const double inside = slope * slope - 4 * bend * rest;
  if (inside < 0) return std::nan("");
  const double divisor = slope + std::sqrt(inside);
  return divisor <= 0 ? std::nan("") : b.value - 2 * rest / divisor;
}

// The samples next to a value at which the curve may reach the capacity: at most three, by value.
std::vector<Sample> samples_around(const std::vector<FitPoint>& tried, double share, int64_t fits) {
  std::vector<Sample> samples;
  for (const FitPoint& point : tried) {
    if (!point.peaks) continue;
    samples.push_back(
        {static_cast<double>(point.value), CacheShare::bytes_of(*point.peaks, share)});
  }
  const auto distance = [fits](const Sample& sample) {
    return std::abs(sample.value - static_cast<double>(fits));
  };
  // The nearest above is worth more than the second below.
  std::sort(samples.begin(), samples.end(),
            [&](const Sample& a, const Sample& b) { return distance(a) < distance(b); });
  const auto above = std::find_if(samples.begin(), samples.end(), [fits](const Sample& sample) {
    return sample.value > static_cast<double>(fits);
  });
  if (above != samples.end() && above - samples.begin() > 1)
    std::rotate(samples.begin() + 1, above, above + 1);
  if (samples.size() > 3) samples.resize(3);
  return samples;
}

// Where the needed bytes reach the capacity; infinite if they do not seem to, nothing if no peak is
// known.
std::optional<double> estimate(const std::vector<FitPoint>& tried, int64_t fits) {
  const auto measured = std::find_if(tried.begin(), tried.end(),
                                     [](const FitPoint& point) { return point.peaks.has_value(); });
  if (measured == tried.end()) return std::nullopt;
  const double share = CacheShare(tried).estimate();
  const auto capacity = static_cast<double>(measured->peaks->capacity);
  std::vector<Sample> samples = samples_around(tried, share, fits);
  if (samples.size() == 1) {
    // All that tensors take is in proportion to the value, at the most: so many fit at the least.
    const FitPeaks& peaks = *measured->peaks;
    const double beside = static_cast<double>(peaks.process.high - peaks.reserved.high);
    const double per_value = static_cast<double>(peaks.allocated.high) / samples[0].value;
    return per_value <= 0 ? kInfinite : (capacity - beside) / per_value;
  }
  const double straight = line_at(samples[0], samples[1], capacity);
  if (samples.size() < 3) return straight;
  std::sort(samples.begin(), samples.end(),
            [](const Sample& a, const Sample& b) { return a.value < b.value; });
  const double bent = parabola_at(samples[0], samples[1], samples[2], capacity);
  const bool is_bent = std::isfinite(bent) && bent > 0 &&
                       !(std::abs(bent - straight) <= kBent * std::max(bent, straight));
  return is_bent ? bent : straight;
}

bool knows_slope(const std::vector<FitPoint>& tried) {
  double least = kInfinite, most = 0, capacity = 0;
  for (const FitPoint& point : tried) {
    if (!point.peaks) continue;
    const auto allocated = static_cast<double>(point.peaks->allocated.high);
    least = std::min(least, allocated);
    most = std::max(most, allocated);
    capacity = static_cast<double>(point.peaks->capacity);
  }
  return most - least > kSlopeKnown * capacity;
}

int64_t clamped(double value, int64_t low, int64_t high) {
  if (!(value > static_cast<double>(low))) return low;
  return value >= static_cast<double>(high) ? high : static_cast<int64_t>(value);
}

}  // namespace

bool operator==(const FitPeaks& a, const FitPeaks& b) {
  const auto same = [](const Interval& x, const Interval& y) {
    return x.low == y.low && x.high == y.high;
  };
  return a.capacity == b.capacity && same(a.allocated, b.allocated) &&
         same(a.reserved, b.reserved) && same(a.process, b.process);
}

FitPoint fit_point(int64_t value, const Prediction& prediction) {
  FitPoint point;
  point.value = value;
  point.verdict = prediction.verdict;
  point.sentence = prediction.sentence();
  const auto fullest = std::min_element(prediction.devices.begin(), prediction.devices.end(),
                                        [](const DevicePrediction& a, const DevicePrediction& b) {
                                          return a.headroom_bytes() < b.headroom_bytes();
                                        });
  if (fullest != prediction.devices.end()) {
    point.peaks = FitPeaks{fullest->capacity_bytes, fullest->allocated_peak, fullest->reserved_peak,
                           fullest->process_peak};
  }
  return point;
}

FitSearch::Bracket FitSearch::bracket() const {
  Bracket bracket{bounds_.from - 1, std::nullopt};
  for (const FitPoint& point : tried_) {
    if (point.verdict == Verdict::kFits) {
      bracket.fits = std::max(bracket.fits, point.value);
    } else if (!bracket.above || point.value < *bracket.above) {
      bracket.above = point.value;
    }
  }
  return bracket;
}

const FitPoint* FitSearch::failed() const {
  const auto failed = std::find_if(tried_.begin(), tried_.end(), [](const FitPoint& point) {
    return point.verdict == Verdict::kFailed;
  });
  return failed == tried_.end() ? nullptr : &*failed;
}

bool FitSearch::is_unused() const {
  if (tried_.size() < kSameUntilUnused) return false;
  return std::all_of(tried_.begin(), tried_.end(), [&](const FitPoint& point) {
    return point.peaks && *point.peaks == *tried_.front().peaks;
  });
}

bool FitSearch::has_ended() const {
  if (tried_.empty()) return false;
  if (tried_.size() >= kMostFitValues || failed() != nullptr || is_unused()) return true;
  const Bracket bracket = this->bracket();
  if (bracket.fits >= upper_bound()) return true;
  return bracket.above && *bracket.above <= bracket.fits + 1;
}

std::optional<int64_t> FitSearch::next() const {
  if (has_ended()) return std::nullopt;
  if (tried_.empty()) return bounds_.from;
  const Bracket bracket = this->bracket();
  const std::optional<double> estimate = prediction::estimate(tried_, bracket.fits);
  if (!bracket.above) {
    const auto times = [&](int64_t factor) {
      return bracket.fits > upper_bound() / factor ? upper_bound() : bracket.fits * factor;
    };
    const int64_t growth = knows_slope(tried_) ? kMostGrowthOnSlope : kMostGrowth;
    return clamped(estimate.value_or(kInfinite),
                   tried_.size() == 1 ? times(kLeastGrowth) : bracket.fits + 1, times(growth));
  }
  const int64_t middle = bracket.fits + (*bracket.above - bracket.fits) / 2;
  if (!estimate || *estimate >= static_cast<double>(*bracket.above)) return middle;
  const int64_t guess = clamped(*estimate, bracket.fits + 1, *bracket.above - 1);
  const size_t count = widths_.size();
  const double uncertainty = CacheShare(tried_).uncertainty();
  const double uncertainty_before = CacheShare({tried_.begin(), tried_.end() - 1}).uncertainty();
  if (count < 2 || widths_[count - 1] <= widths_[count - 2] / 2 ||
      uncertainty <= kMuchLess * uncertainty_before)
    return guess;
  // The value before was too near to one side: go on from there in larger steps.
  const int64_t step = kFasterBy * (widths_[count - 2] - widths_[count - 1]);
  return tried_.back().verdict == Verdict::kFits
             ? std::max(guess, std::min(bracket.fits + step, middle))
             : std::min(guess, std::max(*bracket.above - step, middle));
}

void FitSearch::note(FitPoint point) {
  tried_.push_back(std::move(point));
  const Bracket bracket = this->bracket();
  if (bracket.above) widths_.push_back(*bracket.above - bracket.fits);
}

FitOutcome FitSearch::outcome() const {
  FitOutcome outcome;
  std::vector<const FitPoint*> by_value;
  for (const FitPoint& point : tried_) {
    if (point.peaks) by_value.push_back(&point);
  }
  std::sort(by_value.begin(), by_value.end(),
            [](const FitPoint* a, const FitPoint* b) { return a->value < b->value; });
  for (size_t i = 1; i < by_value.size(); ++i) {
    const auto before = static_cast<double>(by_value[i - 1]->peaks->allocated.high);
    if (static_cast<double>(by_value[i]->peaks->allocated.high) >= before * (1 - kFallsBy))
      continue;
    outcome.falling = {by_value[i - 1]->value, by_value[i]->value};
    break;
  }
  const Bracket bracket = this->bracket();
  outcome.next = bracket.above;
  if (failed() != nullptr) {
    outcome.end = FitEnd::kProgramFailed;
    return outcome;
  }
  if (bracket.fits < bounds_.from) return outcome;
  if (bracket.fits < upper_bound() && is_unused()) {
    outcome.end = FitEnd::kValueUnused;
    return outcome;
  }
  outcome.largest = bracket.fits;
  outcome.end = bracket.fits >= upper_bound()                         ? FitEnd::kAllFit
                : bracket.above && *bracket.above == bracket.fits + 1 ? FitEnd::kFound
                                                                      : FitEnd::kGaveUp;
  return outcome;
}

}  // namespace memledger::prediction
