#pragma once

// Values that a program read and nobody knows, and what runs show that assume other values.

#include <string_view>
#include <vector>

#include "prediction/prediction.h"

namespace memledger::prediction {

// Adds what a run read. Keeps the largest figures of each read, over all processes and all runs
// that were added.
void add_reads(const Run& run, std::vector<MeasuredRead>& reads);

// Sorts the reads that matter most to the front; their order does not depend on the run.
void sort_reads(std::vector<MeasuredRead>& reads);

// Returns whether a read may be why the verdict is not known. False if it has an upper bound, or
// was not tried because memory was short.
bool may_decide(const MeasuredRead& read, const Prediction& prediction);

// What runs show that assumed other values.
struct ReadsTried {
  std::vector<Run> within;  // their peaks are possible, too
  // No run of the low end has enough memory, but one that assumes other values has.
  bool fits_otherwise = false;
};

// Judges each of `reads` by `assuming` runs, of a program whose other runs are `runs`.
ReadsTried judge_reads(const std::vector<Run>& runs, const std::vector<Run>& assuming,
                       std::vector<MeasuredRead>& reads);

// Returns which more runs are needed: see prediction.h.
std::vector<AssumingRun> wanted_runs(std::string_view specification, const std::vector<Run>& runs,
                                     const std::vector<Run>& assuming);

}  // namespace memledger::prediction
