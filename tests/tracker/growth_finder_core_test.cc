// What counts as growth, on made-up sums: no LibTorch.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tracker/growth_series.h"

namespace memledger {
namespace {

// What GrowthFinder does: the sum at the end of the warm-up is where it begins.
template <typename Bytes>
Growth growth_of(int64_t steps, Bytes bytes, const GrowthRule& rule = {}) {
  int64_t last = 0;
  for (int64_t step = 1; step <= rule.warm_up_steps; ++step) last = bytes(step);
  GrowthSeries series(last);
  for (int64_t step = rule.warm_up_steps + 1; step <= steps; ++step) {
    const int64_t now = bytes(step);
    if (now != last) series.note(step, now);
    last = now;
  }
  return series.growth(steps, rule);
}

// At how many of the steps it would have been said to grow.
template <typename Bytes>
int64_t steps_said_to_grow(int64_t steps, Bytes bytes, const GrowthRule& rule = {}) {
  int64_t said = 0;
  int64_t last = 0;
  GrowthSeries series;
  for (int64_t step = 1; step <= steps; ++step) {
    const int64_t now = bytes(step);
    if (step <= rule.warm_up_steps) {
      series = GrowthSeries(now);
    } else if (now != last) {
      series.note(step, now);
    }
    last = now;
    if (step > rule.warm_up_steps && series.growth(step, rule).growing) ++said;
  }
  return said;
}

constexpr int64_t kMib = 1 << 20;

TEST_SUITE_BEGIN("growth series");

TEST_CASE("a sum that grows at every step is found after ten, with its slope and its first step") {
  const auto bytes = [](int64_t step) { return step < 40 ? 5000 : 5000 + (step - 39) * 12288; };
  CHECK_FALSE(growth_of(48, bytes).growing);
  const Growth growth = growth_of(49, bytes);
  REQUIRE(growth.growing);
  CHECK(growth.bytes_per_step == 12288);
  CHECK(growth.since_step == 40);
  CHECK(growth.grown_bytes == 10 * 12288);
  CHECK(growth_of(5000, bytes).since_step == 40);
  CHECK(growth_of(5000, bytes).bytes_per_step == doctest::Approx(12288));
}

TEST_CASE("4 bytes a step among hundreds of MB that stay") {
  const Growth growth = growth_of(60, [](int64_t step) { return 400 * kMib + step * 4; });
  REQUIRE(growth.growing);
  CHECK(growth.bytes_per_step == 4);
  CHECK(growth.since_step == 6);
}

TEST_CASE("growth at every tenth step") {
  const auto bytes = [](int64_t step) { return step / 10 * 4096; };
  CHECK_FALSE(growth_of(99, bytes).growing);
  const Growth growth = growth_of(100, bytes);
  REQUIRE(growth.growing);
  CHECK(growth.bytes_per_step == doctest::Approx(409.6));
  CHECK(growth.since_step == 10);
  SUBCASE("at any moment from then on") {
    for (int64_t steps = 100; steps < 400; ++steps) CHECK(growth_of(steps, bytes).growing);
  }
}

TEST_CASE("growth that begins at step 400 is dated to step 400, jump at the start or not") {
  for (const int64_t jump : {int64_t{0}, 100 * kMib}) {
    const auto bytes = [jump](int64_t step) {
      return (step >= 20 ? jump : 0) + (step >= 400 ? (step - 399) * 64 : 0);
    };
    CHECK_FALSE(growth_of(399, bytes).growing);
    for (const int64_t steps : {410, 500, 1000, 20000}) {
      CAPTURE(steps);
      const Growth growth = growth_of(steps, bytes);
      REQUIRE(growth.growing);
      CHECK(growth.since_step == 400);
      CHECK(growth.bytes_per_step == doctest::Approx(64));
    }
  }
}

TEST_CASE("now and then by chance, one step in five") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    int64_t bytes = 0;
    const Growth growth =
        growth_of(600, [&](int64_t) { return bytes += random() % 5 == 0 ? 100 : 0; });
    CAPTURE(seed);
    REQUIRE(growth.growing);
    CHECK(growth.bytes_per_step > 10);
    CHECK(growth.bytes_per_step < 30);
  }
}

TEST_CASE("in bursts, five steps of every hundred") {
  const Growth growth = growth_of(2050, [](int64_t step) {
    return (step / 100 * 5 + std::min<int64_t>(step % 100, 5)) * 1000;
  });
  REQUIRE(growth.growing);
  CHECK(growth.bytes_per_step == doctest::Approx(50).epsilon(0.1));
}

TEST_CASE("below a sawtooth twenty times as high") {
  const Growth growth = growth_of(3000, [](int64_t step) { return step * 10 + step % 50 * 200; });
  REQUIRE(growth.growing);
  CHECK(growth.bytes_per_step == doctest::Approx(10).epsilon(0.3));
}

TEST_CASE("with one jump in the middle, which does not bend the slope") {
  const Growth growth =
      growth_of(300, [](int64_t step) { return step * 4 + (step >= 100 ? 100 * kMib : 0); });
  REQUIRE(growth.growing);
  CHECK(growth.since_step == 6);
  CHECK(growth.bytes_per_step == doctest::Approx(4));
}

TEST_CASE("where it began is not hidden by a hiccup, nor by a livelier end") {
  const Growth hiccup =
      growth_of(400, [](int64_t step) { return (step - (step >= 250 ? 3 : 0)) * 100; });
  REQUIRE(hiccup.growing);
  CHECK(hiccup.since_step == 6);
  const Growth lively = growth_of(
      415, [](int64_t step) { return step / 10 * 100 + std::max<int64_t>(0, step - 400); });
  REQUIRE(lively.growing);
  CHECK(lively.since_step == 10);
}

TEST_CASE("after most of what there was has been given back, growth counts from there") {
  const Growth growth = growth_of(
      200, [](int64_t step) { return step < 20 ? 1000 : std::max<int64_t>(0, step - 29) * 100; });
  REQUIRE(growth.growing);
  CHECK(growth.since_step == 30);
  CHECK(growth.bytes_per_step == doctest::Approx(100));
}

TEST_CASE("a square root goes on growing, a logarithm ends as steady") {
  CHECK(growth_of(1000, [](int64_t step) {
          return std::llround(1e6 * std::sqrt(static_cast<double>(step)));
        }).growing);
  CHECK_FALSE(growth_of(100, [](int64_t step) {
                return std::llround(1e6 * std::log(static_cast<double>(step)));
              }).growing);
  CHECK_FALSE(growth_of(10000, [](int64_t step) {
                return std::llround(1e6 * std::log(static_cast<double>(step)));
              }).growing);
}

TEST_CASE("what is healthy is never said to grow") {
  const auto healthy = [](auto bytes) { return steps_said_to_grow(1500, bytes) == 0; };
  CHECK(healthy([](int64_t) { return 0; }));
  CHECK(healthy([](int64_t) { return 700 * kMib; }));
  // Growth in the warm-up does not count.
  CHECK(healthy([](int64_t step) { return std::min<int64_t>(step, 5) * 100 * kMib; }));
  // One jump; a staircase of four.
  CHECK(healthy([](int64_t step) { return step < 300 ? 0 : kMib; }));
  CHECK(healthy([](int64_t step) { return std::min<int64_t>(step / 100, 4) * kMib; }));
  // A cache that fills in nine steps; a vector that doubles.
  CHECK(healthy([](int64_t step) { return std::min<int64_t>(step, 14) * kMib; }));
  CHECK(healthy([](int64_t step) {
    return int64_t{1} << static_cast<int>(std::log2(static_cast<double>(step)));
  }));
  // Evaluation every fifty steps; every third batch larger; a sawtooth that fills within the
  // warm-up's reach.
  CHECK(healthy([](int64_t step) { return step % 50 < 5 ? 30 * kMib : kMib; }));
  CHECK(healthy([](int64_t step) { return step % 3 == 0 ? 3 * kMib : 2 * kMib; }));
  CHECK(healthy([](int64_t step) { return step % 10 * kMib; }));
  // It goes down.
  CHECK(healthy([](int64_t step) { return (2000 - step) * 100; }));
  // Noise.
  std::mt19937 random(1);
  CHECK(healthy([&](int64_t) { return static_cast<int64_t>(random() % 1000); }));
}

TEST_CASE("a cache that fills is growing while it fills, and steady soon after") {
  const auto bytes = [](int64_t step) { return std::min<int64_t>(step, 200) * 1000; };
  CHECK(growth_of(200, bytes).growing);
  CHECK(growth_of(202, bytes).growing);
  CHECK_FALSE(growth_of(203, bytes).growing);
  SUBCASE("filled by chance, as keys are drawn") {
    std::mt19937 random(3);
    std::vector<bool> has(200);
    int64_t full = 0;
    CHECK_FALSE(growth_of(800, [&](int64_t) {
                  const size_t key = random() % has.size();
                  if (!has[key]) full += 1000;
                  has[key] = true;
                  return full;
                }).growing);
  }
  SUBCASE("a tolerance of its size") {
    GrowthRule rule;
    rule.tolerance_bytes = 195 * 1000;
    CHECK(steps_said_to_grow(1000, bytes, rule) == 0);
    CHECK(growth_of(
              1000, [](int64_t step) { return step * 1000; }, rule)
              .growing);
  }
}

TEST_CASE("a sawtooth is growing at most until it has come down once, though its height varies") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    int64_t level = 0;
    int64_t most = 200;
    const auto bytes = [&](int64_t) {
      if (++level > most) {
        level = 0;
        most = 190 + static_cast<int64_t>(random() % 40);
      }
      return level;
    };
    CAPTURE(seed);
    CHECK(steps_said_to_grow(200, bytes) > 180);
    // From the second ramp on.
    CHECK(steps_said_to_grow(5000, [&](int64_t step) { return step == 5 ? 200 : bytes(step); }) ==
          0);
  }
}

TEST_CASE(
    "random walks and requests in flight: a false word at less than one moment in a thousand") {
  int64_t walk_said = 0;
  int64_t flight_said = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    int64_t walk = 100;
    walk_said += steps_said_to_grow(500, [&](int64_t) {
      return walk = std::max<int64_t>(0, walk + (random() % 2 == 0 ? 1 : -1));
    });
    int64_t flying = 50;
    flight_said += steps_said_to_grow(500, [&](int64_t) {
      const int64_t landed = std::binomial_distribution<int64_t>(flying, 0.1)(random);
      return flying += std::poisson_distribution<int64_t>(5)(random) - landed;
    });
  }
  CHECK(walk_said < 200 * 500 / 1000);
  CHECK(flight_said < 200 * 500 / 10000);
}

TEST_CASE("a million steps take little memory, and the first is still known") {
  GrowthSeries series;
  size_t most = 0;
  for (int64_t step = 40; step <= 1000000; ++step) {
    series.note(step, step * 8);
    most = std::max(most, series.points());
  }
  CHECK(most <= 256);
  const Growth growth = series.growth(1000000, {});
  REQUIRE(growth.growing);
  CHECK(growth.since_step == 40);
  CHECK(growth.bytes_per_step == doctest::Approx(8));
  SUBCASE("also when the pauses vary") {
    GrowthSeries uneven;
    std::mt19937 random(7);
    size_t points = 0;
    int64_t step = 5;
    int64_t bytes = 0;
    for (int i = 0; i < 200000; ++i) {
      step += random() % 100 == 0 ? 1000 : 1 + static_cast<int64_t>(random() % 10);
      uneven.note(step, bytes += 1 + static_cast<int64_t>(random() % 100));
      points = std::max(points, uneven.points());
    }
    CHECK(points <= 256);
    CHECK(uneven.growth(step, {}).growing);
  }
  SUBCASE("and what is given back is forgotten") {
    series.note(1000001, 500000 * 8);
    CHECK(series.growth(1000001, {}).growing == false);
    series.note(1000002, 0);
    CHECK(series.points() == 0);
  }
}

// The floor by definition, kept whole.
TEST_CASE("the floor is what stays: rises of a short series, against a plain computation") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> all = {0};
    GrowthSeries series(0);
    for (int64_t step = 1; step <= 12; ++step) {
      all.push_back(static_cast<int64_t>(random() % 20));
      if (all[all.size() - 1] != all[all.size() - 2]) series.note(step, all.back());
    }
    size_t rises = 0;
    int64_t least = all.back();
    for (size_t i = all.size() - 1; i-- > 0;) {
      if (all[i] < least) ++rises;
      least = std::min(least, all[i]);
    }
    CAPTURE(seed);
    CHECK(series.points() == rises);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
