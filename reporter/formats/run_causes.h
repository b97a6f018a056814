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

// Rows that rounds of the same operators left behind.
struct Rounds {
  int64_t count = 0;
  int64_t bytes = 0;       // of all
  int64_t bytes_each = 0;  // of a round with rows of each kind
  uint32_t operators = 0;  // outermost ones of the thread, from one round to the next
  int64_t regular = 0;    // of the distances between rows of the kind with most bytes, that many…
  int64_t distances = 0;  // … of so many are so many operators
  bool are_equal = true;  // each round left the same number of rows of each kind
  std::vector<const ReportRow*> examples;  // one of each kind, the one with most bytes first
};
// Returns the rounds that left most. Rows are of one kind where thread, operator, node, label,
// layer, line and bytes are the same. A kind counts with eight rows, if four in five of them came
// so many operators after the one before; the count takes all of its rows. With the option only
// rows that await a backward pass. Nothing below a tenth of the rows' bytes and 1 MiB. Cost grows
// with rows.
std::optional<Rounds> rounds_of(const DeviceReport& rows, bool awaiting_backward_only);

// Rows of one kind that came again and again, but not so many operators apart each time: from the
// birth of the first to the newest storage, by births, in each eighth. By kind is meant the same as
// in rounds_of(), but sizes may differ.
struct Recurring {
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t least = 0, most = 0;         // bytes of each
  const ReportRow* example = nullptr;  // the newest
};
// Returns the kind with most bytes, not below a tenth of the rows' bytes and 1 MiB. `newest`: the
// highest id of a storage so far.
std::optional<Recurring> recurring_of(const DeviceReport& rows, uint64_t newest);

// Return sentences without an end, empty where there is nothing to say.
std::string unused_graph_text(const RunReport& run, const RunOfDevice& device);
std::string rounds_text(const RunReport& run, const RunOfDevice& device);
// Describes what recurring_of() found at the end, where that has no rounds.
std::string recurring_text(const RunReport& run, const RunOfDevice& device);
// Describes a cache of a quarter of what was reserved, within a tenth of its peak.
std::string cache_text(const RunReport& run, const RunOfDevice& device);
std::string pinned_text(const PinnedOfRun& pinned);
// Adds the device's rows of pinned memory.
void add_pinned_rows(PinnedOfRun& pinned, const DeviceReport& end);

}  // namespace memledger
