#include "prediction/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace memledger::prediction {
namespace {

// Bounds of the next value, as multiples of the largest that fits, as long as none is known not to
// fit. The minimum holds after the first value, whose peak hardly depends on the value.
constexpr int64_t kLeastGrowth = 8, kMostGrowth = 16;
// The maximum once peaks have grown by kSlopeKnown of the capacity, so that their slope is known.
constexpr int64_t kMostGrowthOnSlope = 64;
constexpr double kSlopeKnown = 0.01;
// Number of values with the same peak after which the program is taken to ignore the value.
constexpr size_t kSameUntilUnused = 4;
// Peaks that fall by less are noise of workspaces.
constexpr double kFallsBy = 0.01;
// A curve counts as bent if that changes the estimate by more than this share.
constexpr double kBent = 0.05;
// If a value lay too near to one side of the bracket, the next one goes this many times as far from
// that side.
constexpr int64_t kFasterBy = 4;
// If this many values do not halve the bracket, the next one is its middle.
constexpr size_t kPatience = 3;
// A value has reduced the uncertainty enough if no more than this share of it is left.
constexpr double kMuchLess = 0.75;
// Below this share of the memory it is no better than the noise of peaks.
constexpr double kUncertain = 0.03;

// Values that differ by less than this share are neighbours.
constexpr double kNear = 0.1;
// A program that fits and takes less than this share of the capacity has all the memory that it
// wants.
constexpr double kRoomy = 0.95;
constexpr int kHalvings = 20;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A value and the bytes that tensors take with it, as a point of a curve.
struct Sample {
  double value, bytes;
};

// The peak of the tensors does not end at the capacity where the program fits.
bool knows_allocated(const FitPoint& point) {
  return point.peaks && (point.verdict == Verdict::kFits || !point.may_be_cut());
}

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

// The peak of the tensors by value: of at most three values, those next to `fits`.
class Curve {
 public:
  Curve(const std::vector<FitPoint>& tried, int64_t fits) {
    for (const FitPoint& point : tried) {
      if (!knows_allocated(point)) continue;
      samples_.push_back(
          {static_cast<double>(point.value), static_cast<double>(point.peaks->allocated.high)});
    }
    const auto from = static_cast<double>(fits);
    // The nearest above is worth more than the second below.
    std::sort(samples_.begin(), samples_.end(), [from](const Sample& a, const Sample& b) {
      return std::abs(a.value - from) < std::abs(b.value - from);
    });
    const auto above = std::find_if(samples_.begin(), samples_.end(),
                                    [from](const Sample& one) { return one.value > from; });
    if (above != samples_.end() && above - samples_.begin() > 1)
      std::rotate(samples_.begin() + 1, above, above + 1);
    // The slope between neighbours is noise.
    const auto is_near = [this](const Sample& one) {
      return std::abs(one.value - samples_.front().value) < kNear * samples_.front().value;
    };
    if (samples_.size() > 2) {
      std::stable_partition(samples_.begin() + 1, samples_.end(),
                            [&](const Sample& one) { return !is_near(one); });
    }
    if (samples_.size() > 3) samples_.resize(3);
  }

  bool is_empty() const { return samples_.empty(); }

  // Returns the value at which the tensors take `bytes`; infinite if there seems to be none.
  double value_at(double bytes) const {
    if (samples_.size() == 1) {
      // At most all of it is in proportion to the value, so at least this many fit.
      const double per_value = samples_[0].bytes / samples_[0].value;
      return per_value <= 0 ? kInfinite : bytes / per_value;
    }
    const double straight = line_at(samples_[0], samples_[1], bytes);
    if (samples_.size() < 3) return straight;
    std::vector<Sample> sorted = samples_;
    std::sort(sorted.begin(), sorted.end(),
              [](const Sample& a, const Sample& b) { return a.value < b.value; });
    const double bent = parabola_at(sorted[0], sorted[1], sorted[2], bytes);
    const bool is_bent = std::isfinite(bent) && bent > 0 &&
                         !(std::abs(bent - straight) <= kBent * std::max(bent, straight));
    return is_bent ? bent : straight;
  }

 private:
  std::vector<Sample> samples_;
};

// How much of what LibTorch's cache holds beyond the tensors, without a limit, is needed: 0 if all
// of it can be freed where memory is short, 1 if none. Fragments decide that, so values must show
// it.
class CacheShare {
 public:
  CacheShare(const std::vector<FitPoint>& tried, const Curve& curve) {
    for (const FitPoint& point : tried) {
      if (!point.peaks) continue;
      capacity_ = static_cast<double>(point.peaks->capacity);
      if (point.may_be_cut()) continue;
      beside_ = static_cast<double>(point.peaks->process.high - point.peaks->reserved.high);
      if (point.peaks->allocated.high <= 0) continue;
      cached_ = std::max(0.0, static_cast<double>(point.peaks->reserved.high) /
                                      static_cast<double>(point.peaks->allocated.high) -
                                  1);
    }
    for (const FitPoint& point : tried) narrow(point, curve);
  }

  // The maximum that tensors can take, as far as it is known.
  double most_allocated() const { return most_allocated((least_ + most_) / 2); }
  // How much of the memory depends on how large the share is, of what it can be.
  double uncertainty() const { return std::max(0.0, most_ - least_) * cached_; }

 private:
  double most_allocated(double share) const {
    return (capacity_ - beside_) / (1 + share * cached_);
  }

  // The share at which the value lies just at the boundary is too much if it fits, else too little.
  void narrow(const FitPoint& point, const Curve& curve) {
    const auto value = static_cast<double>(point.value);
    double low = 0, high = 1;
    if (cached_ <= 0 || value <= curve.value_at(most_allocated(high))) return;
    if (value >= curve.value_at(most_allocated(low))) {
      if (point.verdict == Verdict::kFits) most_ = 0;
      return;
    }
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      (value < curve.value_at(most_allocated(middle)) ? low : high) = middle;
    }
    if (point.verdict == Verdict::kFits) {
      most_ = std::min(most_, low);
    } else {
      least_ = std::max(least_, high);
    }
  }

  double capacity_ = 0, beside_ = 0;
  double cached_ = 0;  // beyond the tensors, as a share of them
  double least_ = 0, most_ = 1;
};

bool knows_slope(const std::vector<FitPoint>& tried) {
  double least = kInfinite, most = 0, capacity = 0;
  for (const FitPoint& point : tried) {
    if (!knows_allocated(point)) continue;
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

bool FitPoint::may_be_cut() const {
  if (!peaks) return false;
  const auto process = static_cast<double>(peaks->process.high);
  const auto capacity = static_cast<double>(peaks->capacity);
  return process <= capacity && (verdict != Verdict::kFits || process > kRoomy * capacity);
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
  if (failed() != nullptr || is_unused()) return true;
  const Bracket bracket = this->bracket();
  if (bracket.fits >= upper_bound()) return true;
  return bracket.above && *bracket.above <= bracket.fits + 1;
}

std::optional<int64_t> FitSearch::next() const {
  if (has_ended()) return std::nullopt;
  const Bracket bracket = this->bracket();
  // Estimates may creep along one side.
  const size_t count = widths_.size();
  const bool creeps = count > kPatience && 2 * widths_[count - 1] > widths_[count - 1 - kPatience];
  if (bracket.above && creeps) return bracket.fits + (*bracket.above - bracket.fits) / 2;
  return guess_next();
}

int64_t FitSearch::second_largest_that_fits() const {
  int64_t largest = bounds_.from - 1, second = largest;
  for (const FitPoint& point : tried_) {
    if (point.verdict != Verdict::kFits) continue;
    second = std::max(second, std::min(largest, point.value));
    largest = std::max(largest, point.value);
  }
  return second;
}

int64_t FitSearch::guess_next() const {
  if (tried_.empty()) return bounds_.from;
  const Bracket bracket = this->bracket();
  const Curve curve(tried_, bracket.fits);
  const CacheShare share(tried_, curve);
  const double estimate = curve.is_empty() ? kInfinite : curve.value_at(share.most_allocated());
  if (!bracket.above) {
    const auto times = [&](int64_t factor) {
      return bracket.fits > upper_bound() / factor ? upper_bound() : bracket.fits * factor;
    };
    const int64_t growth = knows_slope(tried_) ? kMostGrowthOnSlope : kMostGrowth;
    int64_t least = tried_.size() == 1 ? times(kLeastGrowth) : bracket.fits + 1;
    // What fits beyond all estimates goes on in growing steps.
    if (tried_.size() > 1 && estimate < static_cast<double>(bracket.fits))
      least = bracket.fits + 2 * std::max<int64_t>(1, bracket.fits - second_largest_that_fits());
    return clamped(estimate, std::min(least, upper_bound()), times(growth));
  }
  const int64_t middle = bracket.fits + (*bracket.above - bracket.fits) / 2;
  if (estimate >= static_cast<double>(*bracket.above)) return middle;
  const int64_t guess = clamped(estimate, bracket.fits + 1, *bracket.above - 1);
  const size_t count = widths_.size();
  const CacheShare share_before({tried_.begin(), tried_.end() - 1}, curve);
  const bool has_learnt = share_before.uncertainty() > kUncertain &&
                          share.uncertainty() <= kMuchLess * share_before.uncertainty();
  if (count < 2 || widths_[count - 1] <= widths_[count - 2] / 2 || has_learnt) return guess;
  // The value before was too near to one side: go on from there in larger steps.
  const int64_t step = kFasterBy * (widths_[count - 2] - widths_[count - 1]);
  return tried_.back().verdict == Verdict::kFits
             ? std::max(guess, std::min(bracket.fits + step, middle))
             : std::min(guess, std::max(*bracket.above - step, middle));
}

bool FitSearch::wants_peaks(int64_t value) const {
  return tried_.empty() || value / 2 > bracket().fits;
}

void FitSearch::note(FitPoint point) {
  tried_.push_back(std::move(point));
  const Bracket bracket = this->bracket();
  if (bracket.above) widths_.push_back(*bracket.above - bracket.fits);
}

void FitSearch::replace(FitPoint point) {
  const auto known = std::find_if(tried_.begin(), tried_.end(), [&](const FitPoint& other) {
    return other.value == point.value;
  });
  if (known == tried_.end()) return note(std::move(point));
  if (known->verdict != point.verdict) widths_.clear();
  *known = std::move(point);
}

FitOutcome FitSearch::outcome() const {
  FitOutcome outcome;
  std::vector<const FitPoint*> by_value;
  for (const FitPoint& point : tried_) {
    if (knows_allocated(point)) by_value.push_back(&point);
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
