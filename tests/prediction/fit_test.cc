// The search for the largest value that fits, driven by made-up programs whose answer is known.

#include "prediction/fit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace memledger::prediction {
namespace {

constexpr double kMiB = 1 << 20;
constexpr int64_t kCapacity = int64_t{22} << 30;
constexpr double kContext = 359 * kMiB;

using Bytes = std::function<double(double value)>;

// A program as a device sees it.
struct Program {
  Bytes allocated;          // the peak of its tensors at the high end
  double low_share = 0.97;  // of it, at the low end
  double cached_share = 0;  // what is reserved beyond it, without a limit
  double needed_share = 0;  // of what is reserved beyond it: cannot be freed
  int64_t fails_from = 0;   // 0: never
  int64_t times_out_from = 0;
};

FitPoint run(const Program& program, int64_t value) {
  FitPoint point;
  point.value = value;
  if (program.fails_from != 0 && value >= program.fails_from) {
    point.verdict = Verdict::kFailed;
    return point;
  }
  if (program.times_out_from != 0 && value >= program.times_out_from) return point;
  const double high = program.allocated(static_cast<double>(value));
  const double low = high * program.low_share;
  const auto bytes = [](double x) { return static_cast<int64_t>(x); };
  FitPeaks peaks;
  peaks.capacity = kCapacity;
  peaks.allocated = {bytes(low), bytes(high)};
  peaks.reserved = {bytes(low * (1 + program.cached_share)),
                    bytes(high * (1 + program.cached_share))};
  peaks.process = {peaks.reserved.low + bytes(kContext), peaks.reserved.high + bytes(kContext)};
  point.peaks = peaks;
  const auto fits = [&](double allocated) {
    return allocated * (1 + program.cached_share * program.needed_share) + kContext <= kCapacity;
  };
  point.verdict = fits(high)  ? Verdict::kFits
                  : fits(low) ? Verdict::kNotKnown
                              : Verdict::kDoesNotFit;
  return point;
}

struct Searched {
  FitOutcome outcome;
  std::vector<int64_t> values;
};

Searched search(const Program& program, FitBounds bounds = {}) {
  FitSearch search(bounds);
  Searched result;
  while (const std::optional<int64_t> value = search.next()) {
    REQUIRE(result.values.size() < kMostFitValues);
    REQUIRE(*value >= bounds.from);
    REQUIRE(*value <= bounds.to.value_or(kLargestFitValue));
    REQUIRE(std::count(result.values.begin(), result.values.end(), *value) == 0);
    result.values.push_back(*value);
    search.note(run(program, *value));
  }
  result.outcome = search.outcome();
  return result;
}

// The answer by trying all of them.
int64_t largest_by_hand(const Program& program) {
  int64_t value = 0;
  while (run(program, value + 1).verdict == Verdict::kFits) ++value;
  return value;
}

std::string text_of(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += std::to_string(value) + " ";
  return text;
}

// Returns the number of values that were tried.
size_t check_found(const Program& program, FitBounds bounds = {}) {
  const Searched searched = search(program, bounds);
  INFO("tried ", text_of(searched.values));
  const int64_t largest = largest_by_hand(program);
  CHECK(searched.outcome.end == FitEnd::kFound);
  CHECK(searched.outcome.largest == largest);
  CHECK(searched.outcome.next == largest + 1);
  const auto was_tried = [&](int64_t value) {
    return std::count(searched.values.begin(), searched.values.end(), value) == 1;
  };
  CHECK(was_tried(largest));
  CHECK(was_tried(largest + 1));
  return searched.values.size();
}

Bytes line(double constant_mib, double mib) {
  return [=](double value) { return (constant_mib + mib * value) * kMiB; };
}

TEST_CASE("a peak in proportion to the value is found in four values") {
  CHECK(check_found({line(0, 90)}) <= 4);
  CHECK(check_found({line(0, 3)}) <= 5);
  CHECK(check_found({line(0, 10000)}) <= 5);
}

TEST_CASE("a peak that is a constant and a multiple of the value is found in six values") {
  for (const double mib : {1.0, 7.0, 88.0, 700.0, 5000.0}) {
    CAPTURE(mib);
    CHECK(check_found({line(700, mib)}) <= 6);
    CHECK(check_found({line(9000, mib)}) <= 6);
    CHECK(check_found({line(700, mib)}, {1, 100000}) <= 6);
  }
}

TEST_CASE("plateaus of segments cost few values more") {
  for (const double segment : {2.0, 20.0, 200.0}) {
    for (const double mib : {11.0, 88.0, 700.0}) {
      if (segment > 10 * mib) continue;
      CAPTURE(segment);
      CAPTURE(mib);
      CHECK(check_found({[=](double value) {
              return std::ceil((500 + mib * value) / segment) * segment * kMiB;
            }}) <= 10);
    }
  }
}

TEST_CASE("what LibTorch has cached and can free again is told from what it needs") {
  for (const double cached : {0.02, 0.15, 0.5}) {
    for (const double needed : {0.0, 0.1, 0.3, 0.5, 0.8, 1.0}) {
      CAPTURE(cached);
      CAPTURE(needed);
      Program program{line(700, 88)};
      program.cached_share = cached;
      program.needed_share = needed;
      CHECK(check_found(program) <= 12);
    }
  }
}

TEST_CASE("a quadratic peak is found") {
  for (const double square : {0.002, 0.05, 3.0}) {
    CAPTURE(square);
    const auto bytes = [=](double value) {
      return (400 + 2 * value + square * value * value) * kMiB;
    };
    CHECK(check_found({bytes}) <= 10);
    CHECK(check_found({bytes}, {1, 5000}) <= 10);
  }
}

TEST_CASE("a peak in steps is found") {
  CHECK(check_found({[](double value) { return std::ceil(value / 8) * 700 * kMiB; }}) <= 11);
}

TEST_CASE("a wall that no peak foretells is found by halving") {
  const Program wall{[](double value) { return (value <= 300 ? 100 + value : 40000) * kMiB; }};
  CHECK(check_found(wall, {200, 512}) <= 12);
  CHECK(check_found(wall, {290, 512}) <= 12);
}

TEST_CASE("random programs with a smooth peak and some noise") {
  std::mt19937 random(1);
  int programs = 0, found = 0;
  for (int i = 0; i < 500; ++i) {
    const auto between = [&](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    const double constant = between(0, 12000), mib = std::exp(between(-1, 8)),
                 power = between(0.8, 1.6), noise = between(0, 0.002);
    Program program{[=](double value) {
      const double wave = 1 + noise * std::sin(value * 1.7);
      return (constant + mib * std::pow(value, power)) * wave * kMiB;
    }};
    program.cached_share = between(0, 0.5);
    program.needed_share = between(0, 1);
    program.low_share = between(0.6, 1);
    if (run(program, 1).verdict != Verdict::kFits) continue;
    const Searched searched = search(program);
    INFO("constant ", constant, " mib ", mib, " power ", power, " noise ", noise, " cached ",
         program.cached_share, " needed ", program.needed_share, " tried ",
         text_of(searched.values));
    REQUIRE(searched.outcome.largest);
    REQUIRE(searched.outcome.next);
    const int64_t largest = *searched.outcome.largest, next = *searched.outcome.next;
    CHECK(run(program, largest).verdict == Verdict::kFits);
    CHECK(run(program, next).verdict != Verdict::kFits);
    ++programs;
    if (searched.outcome.end == FitEnd::kFound) {
      CHECK(next == largest + 1);
      ++found;
    } else {
      // Of so many values the last few do not matter.
      CHECK(searched.outcome.end == FitEnd::kGaveUp);
      CHECK(largest > 400);
      CHECK(static_cast<double>(next - largest) < 0.03 * static_cast<double>(largest));
    }
  }
  CHECK(programs > 400);
  CHECK(found > programs * 7 / 10);
}

TEST_CASE("nothing fits where the first value does not") {
  const Searched searched = search({line(30000, 1)});
  CHECK(searched.values == std::vector<int64_t>{1});
  CHECK(searched.outcome.end == FitEnd::kNoneFits);
  CHECK_FALSE(searched.outcome.largest);
  CHECK(searched.outcome.next == 1);
}

TEST_CASE("where all fit up to --to, that is the answer, found in few values") {
  const Searched searched = search({line(700, 88)}, {1, 100});
  CHECK(searched.outcome.end == FitEnd::kAllFit);
  CHECK(searched.outcome.largest == 100);
  CHECK_FALSE(searched.outcome.next);
  CHECK(searched.values.size() <= 4);
  CHECK(search({line(700, 88)}, {7, 7}).values == std::vector<int64_t>{7});
  CHECK(search({line(700, 88)}, {7, 7}).outcome.end == FitEnd::kAllFit);
}

TEST_CASE("a value whose next is the upper bound and does not fit") {
  const int64_t largest = largest_by_hand({line(700, 88)});
  const Searched searched = search({line(700, 88)}, {1, largest + 1});
  CHECK(searched.outcome.end == FitEnd::kFound);
  CHECK(searched.outcome.largest == largest);
}

TEST_CASE("the search begins where it is told to") {
  const Searched searched = search({line(700, 88)}, {100, std::nullopt});
  CHECK(searched.values.front() == 100);
  CHECK(searched.outcome.largest == largest_by_hand({line(700, 88)}));
}

TEST_CASE("a program that fails ends the search") {
  Program program{line(700, 88)};
  program.fails_from = 1;
  CHECK(search(program).values.size() == 1);
  CHECK(search(program).outcome.end == FitEnd::kProgramFailed);
  program.fails_from = 100;
  const Searched searched = search(program);
  CHECK(searched.outcome.end == FitEnd::kProgramFailed);
  CHECK_FALSE(searched.outcome.largest);
  CHECK(searched.values.back() >= 100);
  CHECK(searched.values.size() <= 4);
}

TEST_CASE("a program that does not end in time bounds the answer from above") {
  Program program{line(700, 88)};
  program.times_out_from = 100;
  const Searched searched = search(program);
  INFO("tried ", text_of(searched.values));
  CHECK(searched.outcome.end == FitEnd::kFound);
  CHECK(searched.outcome.largest == 99);
  program.times_out_from = 1;
  CHECK(search(program).outcome.end == FitEnd::kNoneFits);
}

TEST_CASE("a program that ignores the value is found out") {
  const Program program{line(700, 0)};
  const Searched searched = search(program);
  CHECK(searched.outcome.end == FitEnd::kValueUnused);
  CHECK_FALSE(searched.outcome.largest);
  CHECK(searched.values.size() == 4);
  // What is asked has an answer all the same.
  CHECK(search(program, {1, 10}).outcome.end == FitEnd::kAllFit);
}

TEST_CASE("a peak that falls is told") {
  const Searched rising = search({line(700, 88)});
  CHECK_FALSE(rising.outcome.falling);
  const Searched falling =
      search({[](double value) { return (value < 4 ? 5000 : 700 + 88 * value) * kMiB; }});
  INFO("tried ", text_of(falling.values));
  REQUIRE(falling.outcome.falling);
  CHECK(*falling.outcome.falling == std::pair<int64_t, int64_t>(1, falling.values[1]));
  CHECK(falling.outcome.largest == rising.outcome.largest);
}

TEST_CASE("where twelve values are not enough, what is known is told") {
  // All but a needle: each value that is tried says nothing of the next.
  const int64_t edge = 1234567;
  const Searched searched = search({[=](double value) {
    return (value + (value <= edge ? 100 : 40000)) * 0.0001 * kMiB +
           (value <= edge ? 0 : 40000 * kMiB);
  }});
  INFO("tried ", text_of(searched.values));
  CHECK(searched.values.size() == kMostFitValues);
  CHECK(searched.outcome.end == FitEnd::kGaveUp);
  REQUIRE(searched.outcome.largest);
  CHECK(*searched.outcome.largest <= edge);
  if (searched.outcome.next) CHECK(*searched.outcome.next > edge);
}

TEST_CASE("the point of a prediction has the peaks of its fullest device") {
  Prediction prediction;
  prediction.verdict = Verdict::kFits;
  DevicePrediction roomy, full;
  roomy.capacity_bytes = full.capacity_bytes = 1000;
  roomy.process_peak = {400, 500};
  full.process_peak = {800, 900};
  full.allocated_peak = {600, 700};
  prediction.devices = {roomy, full};
  const FitPoint point = fit_point(8, prediction);
  CHECK(point.value == 8);
  REQUIRE(point.peaks);
  CHECK(point.peaks->process.high == 900);
  CHECK(point.peaks->allocated.low == 600);
  CHECK_FALSE(fit_point(8, Prediction{}).peaks);
}

}  // namespace
}  // namespace memledger::prediction
