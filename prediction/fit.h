#pragma once

// The search for the largest value of a program's argument with which it still fits. It knows no
// program: it names the value to try next, from what the values before took.
//
//   FitSearch search({/*from=*/1, /*to=*/std::nullopt});
//   while (const std::optional<int64_t> value = search.next()) search.note(measure(*value));
//   const FitOutcome outcome = search.outcome();

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prediction/prediction.h"

namespace memledger::prediction {

// Where no upper bound is named: many programs read their arguments as int.
inline constexpr int64_t kLargestFitValue = 2147483647;

// Both included.
struct FitBounds {
  int64_t from = 1;
  std::optional<int64_t> to;
};

// What the fullest device gave with one value, in bytes. Peaks that come from runs without a limit
// may exceed the capacity even where the program fits: LibTorch frees its cache first.
struct FitPeaks {
  int64_t capacity = 0;
  Interval allocated, reserved, process;

  friend bool operator==(const FitPeaks& a, const FitPeaks& b);
};

struct FitPoint {
  int64_t value = 0;
  Verdict verdict = Verdict::kNotKnown;
  std::optional<FitPeaks> peaks;  // empty: not measured
  std::string sentence;           // the verdict with its reason, for people

  // Returns whether the peaks may end at the capacity, as memory was short.
  bool may_be_cut() const;
};

// Returns the point of a prediction; its peaks are those of the device with the least headroom.
FitPoint fit_point(int64_t value, const Prediction& prediction);

enum class FitEnd : uint8_t {
  kFound,     // the largest value fits and the next does not, or is not known to
  kAllFit,    // the largest is the upper bound
  kNoneFits,  // not even the first value
  kProgramFailed,
  kValueUnused,  // the peak is the same with all values
  kGaveUp,       // the caller stopped early: some values between two were not tried
};

struct FitOutcome {
  FitEnd end = FitEnd::kNoneFits;
  std::optional<int64_t> largest;  // that is known to fit; with kProgramFailed, kValueUnused: none
  std::optional<int64_t> next;     // the smallest above it that does not fit, or is not known to
  // Two values whose peaks show that more can take less: first < second, and its peak is higher.
  std::optional<std::pair<int64_t, int64_t>> falling;
};

// Assumes that a program takes more with larger values; where peaks show that it does not,
// `falling` says so. Not thread-safe.
class FitSearch {
 public:
  explicit FitSearch(const FitBounds& bounds) : bounds_(bounds) {}

  // Returns the value to try next; nothing once both sides are known. If the last three values did
  // not halve what is left, returns its middle.
  std::optional<int64_t> next() const;
  // Returns whether the peaks of a value are wanted even if it does not fit. Where they are not,
  // those of such a value may end at the capacity.
  bool wants_peaks(int64_t value) const;
  // Takes what came of next().
  void note(FitPoint point);
  // Takes what came of a value that was noted before, and is known better now. Where it does not
  // fit after all, the search goes on below it.
  void replace(FitPoint point);

  // In the order in which they were tried.
  const std::vector<FitPoint>& tried() const { return tried_; }
  FitOutcome outcome() const;

 private:
  // What lies between a value that fits and the smallest that does not.
  struct Bracket {
    int64_t fits;
    std::optional<int64_t> above;  // does not fit; empty: none is known
  };
  Bracket bracket() const;
  int64_t guess_next() const;
  int64_t second_largest_that_fits() const;
  bool has_ended() const;
  bool is_unused() const;
  int64_t upper_bound() const { return bounds_.to.value_or(kLargestFitValue); }
  const FitPoint* failed() const;

  const FitBounds bounds_;
  std::vector<FitPoint> tried_;
  std::vector<int64_t> widths_;  // of the bracket, after each value that has left one
};

}  // namespace memledger::prediction
