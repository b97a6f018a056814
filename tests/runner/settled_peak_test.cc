#include "runner/inside/settled_peak.h"

#include <doctest/doctest.h>

namespace memledger::inside {
namespace {

const int kFirst = 0, kSecond = 0;

TEST_CASE("a peak is settled at the second step at the earliest") {
  SettledPeak peak;
  CHECK_FALSE(peak.note({&kFirst, 100, 10, 0}));
  CHECK(peak.note({&kFirst, 100, 10, 0}));
  CHECK(peak.steps() == 2);
}

TEST_CASE("it is not while it moves") {
  SettledPeak peak;
  CHECK_FALSE(peak.note({&kFirst, 100, 10, 0}));
  CHECK_FALSE(peak.note({&kFirst, 101, 10, 0}));
  CHECK(peak.note({&kFirst, 101, 10, 0}));
}

TEST_CASE("nor while something grows below it") {
  constexpr int64_t kMiB = int64_t{1} << 20;
  SettledPeak peak;
  CHECK_FALSE(peak.note({&kFirst, 100 * kMiB, 10 * kMiB, 0}));
  CHECK_FALSE(peak.note({&kFirst, 100 * kMiB, 11 * kMiB, 0}));
  CHECK_FALSE(peak.note({&kFirst, 100 * kMiB, 12 * kMiB, 0}));
  // Batches differ: less than before is no growth, nor is back to what was there.
  CHECK(peak.note({&kFirst, 100 * kMiB, 9 * kMiB, 0}));
  CHECK(peak.note({&kFirst, 100 * kMiB, 12 * kMiB + SettledPeak::kNegligibleGrowth, 0}));
}

TEST_CASE("each optimizer has to step twice") {
  SettledPeak peak;
  CHECK_FALSE(peak.note({&kFirst, 100, 10, 0}));
  CHECK_FALSE(peak.note({&kSecond, 120, 10, 0}));
  CHECK_FALSE(peak.note({&kFirst, 120, 10, 0}));
  CHECK(peak.note({&kSecond, 120, 10, 0}));
}

TEST_CASE("one that has ended is not waited for") {
  SettledPeak peak;
  CHECK_FALSE(peak.note({&kFirst, 100, 10, 0}));
  CHECK_FALSE(peak.note({&kSecond, 100, 10, 0}));
  CHECK(peak.optimizers().size() == 2);
  peak.forget(&kSecond);
  CHECK(peak.note({&kFirst, 100, 10, 0}));
}

TEST_CASE("parameters that nobody has trained yet are waited for, not for ever") {
  SettledPeak peak;
  for (int64_t i = 1; i < SettledPeak::kPatientSteps; ++i)
    CHECK_FALSE(peak.note({&kFirst, 100, 10, 4}));
  CHECK(peak.note({&kFirst, 100, 10, 4}));
}

}  // namespace
}  // namespace memledger::inside
