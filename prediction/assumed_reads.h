#pragma once

// What a program read without anybody knowing it, and what runs say that assume something else.

#include <string_view>
#include <vector>

#include "prediction/prediction.h"

namespace memledger::prediction {

// Adds what a run read: of each read the most of its processes, and of those that were added
// before.
void add_reads(const Run& run, std::vector<MeasuredRead>& reads);

// Those that matter most first; the order of two runs is the same.
void sort_reads(std::vector<MeasuredRead>& reads);

// Whether a read may be why the verdict is not known. Where memory was short, no other values were
// tried, and the memory is why.
bool may_decide(const MeasuredRead& read, const Prediction& prediction);

// What runs say that assumed something else.
struct ReadsTried {
  std::vector<Run> within;  // their peaks are possible, too
  // Where no run of the low end has enough memory: one that has, as something else was assumed.
  bool fits_otherwise = false;
};

// Judges each of `reads` by `assuming` runs, of a program whose other runs are `runs`.
ReadsTried judge_reads(const std::vector<Run>& runs, const std::vector<Run>& assuming,
                       std::vector<MeasuredRead>& reads);

// Returns which more runs are needed: see prediction.h.
std::vector<AssumingRun> wanted_runs(std::string_view specification, const std::vector<Run>& runs,
                                     const std::vector<Run>& assuming);

}  // namespace memledger::prediction
