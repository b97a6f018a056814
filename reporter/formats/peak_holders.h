#pragma once

// Finds who holds what was alive at a device's peak, as far as its end shows: the holders of what
// has lived on, and what an earlier step has left.

#include <cstdint>
#include <string>
#include <vector>

#include "reporter/formats/run_summary.h"
#include "reporter/report.h"

namespace memledger {

struct HeldAtPeak {
  int64_t bytes = 0;
  std::string holder;  // without indices
  // Made behind the line of the optimizer's step, after which the program came back to a line
  // before it; the holder has another one of its kind.
  bool is_of_earlier_step = false;
  const ReportRow* largest = nullptr;  // of the peak's rows
};

// Returns what has a twentieth of the peak and 1 MiB, at least; the most bytes first. Cost grows
// with rows.
std::vector<HeldAtPeak> held_at_peak(const RunOfDevice& device);

// Returns a sentence without an end, empty where there is nothing to say that the end does not.
std::string held_at_peak_text(const RunReport& run, const RunOfDevice& device);

}  // namespace memledger
