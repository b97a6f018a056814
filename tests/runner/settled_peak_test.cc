#include "runner/inside/settled_peak.h"

#include <doctest/doctest.h>

#include <string_view>

namespace memledger::inside {
namespace {

using prediction::Steps;

constexpr int64_t kMiB = int64_t{1} << 20;
const int kFirst = 0, kSecond = 0;

// Steps of a program, one after the other, and whether they show enough.
class Program {
 public:
  // `allocations` are those of this step.
  bool step(SettledPeak::Step step, int64_t allocations = SettledPeak::kLookAhead) {
    allocations_ += allocations;
    step.allocations = allocations_;
    return peak_.note(step);
  }
  // Steps of one optimizer: a letter is a kind, as that of a smaller batch, all of the same peak.
  // Returns after how many of them it was enough; 0: never.
  int steps(std::string_view kinds, int64_t allocations, uint64_t blocks = 7) {
    for (const char kind : kinds) {
      requested_ += kind * kMiB;
      SettledPeak::Step step{&kFirst, 100, 10, 0};
      step.requested_bytes = requested_;
      step.blocks = blocks;
      if (this->step(step, allocations)) return static_cast<int>(peak_.steps());
    }
    return 0;
  }
  SettledPeak& peak() { return peak_; }

 private:
  SettledPeak peak_;
  int64_t allocations_ = 0, requested_ = 0;
};

TEST_CASE("a peak is settled at the second step at the earliest, and one more is looked at") {
  Program program;
  CHECK_FALSE(program.step({&kFirst, 100, 10, 0}));
  CHECK_FALSE(program.step({&kFirst, 100, 10, 0}));
  CHECK(program.peak().kind() == Steps::kNone);
  CHECK(program.step({&kFirst, 100, 10, 0}));
  CHECK(program.peak().steps() == 3);
  CHECK(program.peak().kind() == Steps::kAlike);
}

TEST_CASE("it is not while it moves") {
  Program program;
  CHECK_FALSE(program.step({&kFirst, 100, 10, 0}));
  CHECK_FALSE(program.step({&kFirst, 101, 10, 0}));
  CHECK_FALSE(program.step({&kFirst, 101, 10, 0}));
  CHECK_FALSE(program.step({&kFirst, 102, 10, 0}));
  CHECK(program.step({&kFirst, 102, 10, 0}));
}

TEST_CASE("nor while something grows below it") {
  Program program;
  CHECK_FALSE(program.step({&kFirst, 100 * kMiB, 10 * kMiB, 0}));
  CHECK_FALSE(program.step({&kFirst, 100 * kMiB, 11 * kMiB, 0}));
  CHECK_FALSE(program.step({&kFirst, 100 * kMiB, 12 * kMiB, 0}));
  // Batches differ: less than before is no growth, nor is back to what was there.
  CHECK_FALSE(program.step({&kFirst, 100 * kMiB, 9 * kMiB, 0}));
  CHECK(program.step({&kFirst, 100 * kMiB, 12 * kMiB + SettledPeak::kNegligibleGrowth, 0}));
}

TEST_CASE("each optimizer has to step twice") {
  Program program;
  CHECK_FALSE(program.step({&kFirst, 100, 10, 0}));
  CHECK_FALSE(program.step({&kSecond, 120, 10, 0}));
  CHECK_FALSE(program.step({&kFirst, 120, 10, 0}));
  CHECK_FALSE(program.step({&kSecond, 120, 10, 0}));
  CHECK(program.step({&kFirst, 120, 10, 0}));
}

TEST_CASE("one that has ended is not waited for") {
  Program program;
  CHECK_FALSE(program.step({&kFirst, 100, 10, 0}));
  CHECK_FALSE(program.step({&kSecond, 100, 10, 0}));
  CHECK(program.peak().optimizers().size() == 2);
  program.peak().forget(&kSecond);
  CHECK_FALSE(program.step({&kFirst, 100, 10, 0}));
  CHECK(program.step({&kFirst, 100, 10, 0}));
}

TEST_CASE("parameters that nobody has trained yet are waited for, not for ever") {
  Program program;
  for (int64_t i = 1; i <= SettledPeak::kPatientSteps; ++i)
    CHECK_FALSE(program.step({&kFirst, 100, 10, 4}));
  CHECK(program.step({&kFirst, 100, 10, 4}));
}

TEST_CASE("steps that are alike are looked at for a while") {
  constexpr int64_t kPart = SettledPeak::kLookAhead / 10;
  Program program;
  CHECK(program.steps("aaaaaaaaaaaaaaaaaaaa", kPart) == 12);
  CHECK(program.peak().kind() == Steps::kAlike);
}

TEST_CASE("of several kinds a whole round comes again") {
  constexpr int64_t kPart = SettledPeak::kLookAhead / 10;
  Program program;
  // The second step settles it; from the third on all count.
  CHECK(program.steps("aaaaaaab"
                      "aaaaaaab"
                      "aaaaaaab",
                      kPart) == 17);
  CHECK(program.peak().kind() == Steps::kRepeat);
}

TEST_CASE("and leaves the same blocks") {
  constexpr int64_t kPart = SettledPeak::kLookAhead / 10;
  Program program;
  CHECK(program.steps("aaaaaaab", kPart, 1) == 0);
  CHECK(program.steps("aaaaaaab", kPart, 2) == 0);
  CHECK(program.steps("aaaaaaab", kPart, 3) == 0);
  CHECK(program.steps("aaaaaaab", kPart, 3) == 25);
  CHECK(program.peak().kind() == Steps::kRepeat);
}

TEST_CASE("where no two steps are alike, none has to come again if so asked") {
  constexpr int64_t kPart = SettledPeak::kLookAhead / 10;
  Program waits, takes_any;
  takes_any.peak().take_any_steps();
  CHECK(waits.steps("abcdefghijklmnopqrst", kPart) == 0);
  CHECK(takes_any.steps("abcdefghijklmnopqrst", kPart) == 12);
  CHECK(takes_any.peak().kind() == Steps::kDiffer);
}

TEST_CASE("a kind that came once is waited for") {
  constexpr int64_t kPart = SettledPeak::kLongestLook / 20;
  Program program;
  // In the end all that is known is that the others are alike.
  CHECK(program.steps("aaabaaaaaaaaaaaaaaaaaaaaaaaa", kPart) == 22);
  CHECK(program.peak().kind() == Steps::kAlike);
}

TEST_CASE("slow steps are not looked at for longer than a minute") {
  Program program;
  SettledPeak::Step step{&kFirst, 100, 10, 0};
  for (int64_t i = 1; i <= 7; ++i) {
    step.seconds = i * 10;
    CHECK_FALSE(program.step(step, 1));
  }
  step.seconds = 80;
  CHECK(program.step(step, 1));
  CHECK(program.peak().kind() == Steps::kAlike);
}

TEST_CASE("steps that go on to differ tell nothing of later ones") {
  constexpr int64_t kPart = SettledPeak::kLongestLook / 20;
  Program program;
  CHECK(program.steps("aabcdefghijklmnopqrstuvwxyz", kPart) == 22);
  CHECK(program.peak().kind() == Steps::kDiffer);
}

}  // namespace
}  // namespace memledger::inside
