#pragma once

// What a run shows of the causes of its memory, a sentence each: a graph that nobody ran backward,
// rounds that each left something, pinned memory that was rounded up.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reporter/formats/run_summary.h"
#include "reporter/report.h"

namespace memledger {

// What autograd may hold for a backward pass that did not come.
struct UnusedGraph {
  int64_t bytes = 0;
  const ReportRow* first = nullptr;  // the oldest whose line is known, else the oldest
};
// Returns it at the peak, if it is a tenth of that and 1 MiB, at least. Cost grows with rows.
std::optional<UnusedGraph> unused_graph(const RunOfDevice& device);

// Rows that rounds of the same operators left behind, one round as much as the other.
struct Rounds {
  int64_t count = 0;
  int64_t bytes_each = 0;
  uint32_t operators = 0;  // outermost ones of the thread, from one round to the next
  std::vector<const ReportRow*> examples;  // one of each kind, the one with most bytes first
};
// Returns the rounds that left most. Rows are of one kind where thread, operator, node, label,
// layer, line and bytes are the same. A kind counts with eight rows, if four in five of them came
// so many operators after the one before; the count takes all of its rows. With the option only
// rows that await a backward pass. Nothing below a tenth of the rows' bytes and 1 MiB. Cost grows
// with rows.
std::optional<Rounds> rounds_of(const DeviceReport& rows, bool awaiting_backward_only);

// Return sentences without an end, empty where there is nothing to say.
std::string unused_graph_text(const RunReport& run, const RunOfDevice& device);
std::string rounds_text(const RunReport& run, const RunOfDevice& device);
// Tells a cache of a quarter of what was reserved, within a tenth of its peak.
std::string cache_text(const RunReport& run, const RunOfDevice& device);
std::string pinned_text(const PinnedOfRun& pinned);

}  // namespace memledger
