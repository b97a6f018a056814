#include "tracker/growth_series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace memledger {
namespace {

constexpr size_t kRisesOfOneSize = 8;  // beyond that, two are put together
constexpr size_t kMostRises = 256;
// A pause this many times longer than those of the surest growth is not part of it.
constexpr int64_t kForeignPause = 4;
constexpr int64_t kQuietPauses = 2;
constexpr double kLeastNewGround = 0.25;
constexpr double kLeastSecondHalf = 0.5;
constexpr size_t kHalf = 8;     // pieces of each half for the comparison of the two
constexpr size_t kSlopes = 33;  // points between which slopes are taken

int size_class(int64_t count) {
  int result = 0;
  while (count > 1) {
    count /= 2;
    ++result;
  }
  return result;
}

// Returns the mean of the middle four of eight.
double middle_mean(std::array<double, kHalf> values) {
  std::sort(values.begin(), values.end());
  return (values[2] + values[3] + values[4] + values[5]) / 4;
}

// The floor as straight lines between its rises.
struct Point {
  double step;
  double bytes;
};
using Line = std::vector<Point>;

double bytes_at(const Line& line, double step) {
  const auto after =
      std::upper_bound(line.begin(), line.end(), step,
                       [](double at, const Point& point) { return at < point.step; });
  if (after == line.begin()) return line.front().bytes;
  if (after == line.end()) return line.back().bytes;
  const auto before = after - 1;
  return before->bytes +
         (after->bytes - before->bytes) * (step - before->step) / (after->step - before->step);
}

template <size_t N>
std::array<double, N> sampled(const Line& line) {
  std::array<double, N> result{};
  const double length = line.back().step - line.front().step;
  for (size_t i = 0; i < N; ++i) {
    result[i] = bytes_at(
        line, line.front().step + length * static_cast<double>(i) / static_cast<double>(N - 1));
  }
  return result;
}

bool is_straight(const Line& line) {
  const std::array<double, 2 * kHalf + 1> bytes = sampled<2 * kHalf + 1>(line);
  std::array<double, kHalf> first{};
  std::array<double, kHalf> second{};
  for (size_t i = 0; i < kHalf; ++i) {
    first[i] = bytes[i + 1] - bytes[i];
    second[i] = bytes[kHalf + i + 1] - bytes[kHalf + i];
  }
  return middle_mean(second) >= kLeastSecondHalf * middle_mean(first);
}

double slope_of(const Line& line) {
  const std::array<double, kSlopes> bytes = sampled<kSlopes>(line);
  const double apart = (line.back().step - line.front().step) / static_cast<double>(kSlopes - 1);
  std::vector<double> slopes;
  slopes.reserve(kSlopes * (kSlopes - 1) / 2);
  for (size_t i = 0; i < kSlopes; ++i) {
    for (size_t j = i + 1; j < kSlopes; ++j)
      slopes.push_back((bytes[j] - bytes[i]) / (apart * static_cast<double>(j - i)));
  }
  const auto middle = slopes.begin() + static_cast<std::ptrdiff_t>(slopes.size() / 2);
  std::nth_element(slopes.begin(), middle, slopes.end());
  return *middle;
}

}  // namespace

// Lowers a rise to end at `bytes`, between rise.below and rise.above. When it got there is no
// longer known, so its steps are cut in proportion.
void GrowthSeries::cut(Rise& rise, int64_t bytes) {
  const double part =
      static_cast<double>(bytes - rise.below) / static_cast<double>(rise.above - rise.below);
  rise.last_step =
      rise.first_step +
      static_cast<int64_t>(part * static_cast<double>(rise.last_step - rise.first_step));
  rise.count = std::max<int64_t>(1, static_cast<int64_t>(part * static_cast<double>(rise.count)));
  if (rise.count == 1) {
    rise.last_step = rise.first_step;
    rise.longest_pause = 0;
  }
  rise.above = bytes;
}

GrowthSeries::Rise GrowthSeries::together(const Rise& older, const Rise& newer) {
  Rise both = older;
  both.last_step = newer.last_step;
  both.count = older.count + newer.count;
  both.longest_pause =
      std::max({older.longest_pause, newer.longest_pause, newer.first_step - older.last_step});
  both.above = newer.above;
  return both;
}

void GrowthSeries::note(int64_t step, int64_t bytes) {
  step = std::max(step, last_step_ + 1);
  last_step_ = step;
  while (!rises_.empty() && rises_.back().below >= bytes) rises_.pop_back();
  if (rises_.empty()) {
    floor_before_ = std::min(floor_before_, bytes);
  } else if (rises_.back().above > bytes) {
    cut(rises_.back(), bytes);
  }
  const int64_t floor = rises_.empty() ? floor_before_ : rises_.back().above;
  if (bytes > floor) {
    rises_.push_back({step, step, 1, 0, floor, bytes, highest_});
    thin_out();
  }
  bytes_ = bytes;
  highest_ = std::max(highest_, bytes);
}

void GrowthSeries::make_room() {
  if (rises_.size() == rises_.capacity()) rises_.reserve(std::max<size_t>(1, 2 * rises_.size()));
}

// Keeps kRisesOfOneSize of each size, so that sizes double with age. A pause that stands out is
// kept apart, as growth may have begun after it.
void GrowthSeries::thin_out() {
  size_t end = rises_.size();  // of the rises of one size, newest size first
  while (end > 0) {
    const int size = size_class(rises_[end - 1].count);
    size_t begin = end;
    while (begin > 0 && size_class(rises_[begin - 1].count) <= size) --begin;
    if (end - begin <= kRisesOfOneSize) {
      // The older sizes have not changed either.
      if (rises_.size() <= kMostRises) return;
      begin = 0;
    }
    const auto pause = [this](size_t at) {
      return rises_[at + 1].first_step - rises_[at].last_step;
    };
    std::optional<size_t> chosen;
    for (size_t at = begin; at + 1 < end && !chosen.has_value(); ++at) {
      const int64_t usual =
          std::max({rises_[at].longest_pause, rises_[at + 1].longest_pause, int64_t{1},
                    at + 2 < rises_.size() ? pause(at + 1) : int64_t{0}});
      if (pause(at) <= kForeignPause * usual) chosen = at;
    }
    if (!chosen.has_value() && rises_.size() <= kMostRises) return;
    const size_t at = chosen.value_or(begin);
    rises_[at] = together(rises_[at], rises_[at + 1]);
    rises_.erase(rises_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    if (begin == 0) return;
    end = at + 1;
  }
}

Growth GrowthSeries::growth(int64_t now, const GrowthRule& rule) const {
  const size_t n = rises_.size();
  if (n == 0) return {};
  const int64_t quiet = now - rises_.back().last_step;
  const int64_t top = rises_.back().above;
  const int64_t least = std::max<int64_t>(2, rule.min_growths);

  std::vector<int64_t> longest_pause(n);  // from rise i to the last
  for (size_t i = n; i-- > 0;) {
    const Rise& rise = rises_[i];
    longest_pause[i] = rise.longest_pause;
    if (i + 1 == n) continue;
    longest_pause[i] = std::max(
        {rise.longest_pause, longest_pause[i + 1], rises_[i + 1].first_step - rise.last_step});
  }

  // How high the sum must be for growth from rise i on to be more than a refill.
  std::vector<double> new_ground(n);
  for (size_t i = 0; i < n; ++i) {
    const double before = static_cast<double>(rises_[i].highest_before);
    new_ground[i] = before + kLeastNewGround * (before - static_cast<double>(rises_[i].below));
    if (i > 0) new_ground[i] = std::max(new_ground[i], new_ground[i - 1]);
  }

  // How many of its longest pauses the growth from rise `from` has lasted, on ground that is new
  // since rise `start`. There were at least as many rises.
  const auto periods = [&](size_t start, size_t from) -> double {
    const int64_t pause = longest_pause[from];
    if (pause == 0 || quiet > kQuietPauses * pause) return 0;
    if (static_cast<double>(top) < new_ground[start]) return 0;
    return 1 + static_cast<double>(rises_.back().last_step - rises_[from].first_step) /
                   static_cast<double>(pause);
  };
  const auto first_on_new_ground = [&](size_t start) {
    const int64_t before = rises_[start].highest_before;
    return static_cast<size_t>(
        std::partition_point(rises_.begin() + static_cast<std::ptrdiff_t>(start), rises_.end(),
                             [before](const Rise& rise) { return rise.above <= before; }) -
        rises_.begin());
  };

  std::vector<double> lasted(n, 0);
  size_t surest = n;
  for (size_t i = n; i-- > 0;) {
    const size_t from = first_on_new_ground(i);
    if (from < n) lasted[i] = periods(i, from);
    if (lasted[i] >= static_cast<double>(least) && (surest == n || lasted[i] > lasted[surest]))
      surest = i;
  }
  if (surest == n) return {};

  size_t start = surest;
  for (size_t i = 0; i < surest; ++i) {
    if (lasted[i] < static_cast<double>(least) ||
        longest_pause[i] > kForeignPause * longest_pause[surest])
      continue;
    start = i;
    break;
  }
  const Rise& first = rises_[start];
  if (top - first.below <= rule.tolerance_bytes) return {};
  Line line;
  for (size_t i = start; i < n; ++i) {
    const Rise& rise = rises_[i];
    const double share =
        static_cast<double>(rise.above - rise.below) / static_cast<double>(rise.count);
    if (rise.count > 1)
      line.push_back(
          {static_cast<double>(rise.first_step), static_cast<double>(rise.below) + share});
    line.push_back({static_cast<double>(rise.last_step), static_cast<double>(rise.above)});
  }
  if (!is_straight(line)) return {};
  return {true, slope_of(line), first.first_step, top - first.below};
}

}  // namespace memledger
