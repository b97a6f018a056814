#include "reporter/formats/peak_holders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reporter/formats/report_format.h"
#include "text/bytes.h"
#include "text/names.h"

namespace memledger {
namespace {

constexpr int64_t kLeastBytesHeld = int64_t{1} << 20;
constexpr size_t kMaxHeldTold = 2;

bool is_of_the_program(const ReportRow& row) {
  return row.anonymous && row.kind == RowKind::kStorage && row.storage_id != 0 &&
         row.storage_kind == StorageKind::kTensor;
}

// Returns `the graph of running` of `MulBackward0.self in the graph of running`, and so of a cycle:
// whoever has that has all of it.
std::string common_holder(const std::string& held_by) {
  for (const std::string_view part : {" in the graph of ", " in a cycle of "}) {
    constexpr size_t kIn = 4;
    const size_t begin = held_by.find(part);
    if (begin != std::string::npos) return without_indices(held_by.substr(begin + kIn));
  }
  return without_indices(held_by);
}

// C++ shows no variables (runner/inside/kept_results.h).
bool is_nameless(const std::string& held_by) { return held_by.rfind("the program (", 0) == 0; }

using KindOfRow = std::tuple<std::string_view, std::string_view, std::string_view, std::string_view,
                             std::string_view, int64_t>;
KindOfRow kind_of_row(const ReportRow& row) {
  return {row.op, row.autograd_node, row.label, row.module, row.where, row.nbytes.value_or(0)};
}

// `train.py:88 main` taken apart.
struct Line {
  std::string function;  // with its file
  int64_t number = 0;
};
std::optional<Line> line_of(const ReportRow& row) {
  const size_t space = std::min(row.where.find(' '), row.where.size());
  const size_t colon = row.where.rfind(':', space);
  if (colon == std::string::npos || colon + 1 >= space) return std::nullopt;
  const int64_t number = std::strtoll(row.where.c_str() + colon + 1, nullptr, 10);
  if (number <= 0) return std::nullopt;
  return Line{row.where.substr(0, colon) + row.where.substr(space), number};
}

// Knows of which rows an optimizer's step has come since they were made, and another step begun:
// the same function went from behind the step's line to one before it.
class EarlierSteps {
 public:
  explicit EarlierSteps(const DeviceReport& rows) {
    for (const ReportRow& row : rows.rows) {
      if (row.role != Role::kOptimizerState && row.phase != Phase::kOptimizer) continue;
      if (const auto line = line_of(row)) steps_[line->function].insert(line->number);
    }
    for (const ReportRow& row : rows.rows) {
      const auto line = line_of(row);
      if (!line) continue;
      const auto step = steps_.find(line->function);
      if (step == steps_.end() || line->number >= *step->second.begin()) continue;
      uint64_t& newest = came_back_[{row.thread, line->function}];
      newest = std::max(newest, row.storage_id);
    }
  }
  bool has(const ReportRow& row) const {
    const auto line = line_of(row);
    if (!line) return false;
    const auto step = steps_.find(line->function);
    if (step == steps_.end() || line->number <= *step->second.rbegin()) return false;
    const auto back = came_back_.find({row.thread, line->function});
    return back != came_back_.end() && back->second > row.storage_id;
  }

 private:
  std::map<std::string, std::set<int64_t>> steps_;
  std::map<std::pair<uint32_t, std::string>, uint64_t> came_back_;
};

// The holders of rows at the end: by storage, and by kind where all held ones have the same holder.
struct HoldersAtEnd {
  explicit HoldersAtEnd(const DeviceReport& end) {
    for (const ReportRow& row : end.rows) {
      if (!is_of_the_program(row) || row.held_by.empty() || is_nameless(row.held_by)) continue;
      std::string holder = common_holder(row.held_by);
      if (!row.where.empty()) {
        const auto [entry, is_new] = by_kind.try_emplace(kind_of_row(row), holder);
        if (!is_new && entry->second != holder) entry->second.clear();
      }
      by_storage.emplace(row.storage_id, std::move(holder));
    }
  }
  std::unordered_map<uint64_t, std::string> by_storage;
  std::map<KindOfRow, std::string> by_kind;
};

}  // namespace

std::vector<HeldAtPeak> held_at_peak(const RunOfDevice& device) {
  if (!device.end) return {};
  const HoldersAtEnd holders(*device.end);
  const EarlierSteps earlier(device.peak);
  std::map<std::pair<bool, std::string>, HeldAtPeak> all;
  for (const ReportRow& row : device.peak.rows) {
    if (!is_of_the_program(row)) continue;
    const auto same = holders.by_storage.find(row.storage_id);
    std::string holder;
    bool is_left = false;
    if (same != holders.by_storage.end()) {
      holder = same->second;
    } else if (const auto like = holders.by_kind.find(kind_of_row(row));
               like != holders.by_kind.end() && earlier.has(row)) {
      holder = like->second;
      is_left = true;
    }
    if (holder.empty()) continue;
    HeldAtPeak& held = all[{is_left, holder}];
    held.holder = holder;
    held.is_of_earlier_step = is_left;
    held.bytes += row.nbytes.value_or(0);
    if (held.largest == nullptr || row.nbytes.value_or(0) > held.largest->nbytes.value_or(0))
      held.largest = &row;
  }
  std::vector<HeldAtPeak> sorted;
  for (auto& [key, held] : all) {
    if (held.bytes >= kLeastBytesHeld && held.bytes >= device.peak.total_bytes / 20)
      sorted.push_back(std::move(held));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const HeldAtPeak& a, const HeldAtPeak& b) { return a.bytes > b.bytes; });
  return sorted;
}

std::string held_at_peak_text(const RunReport& run, const RunOfDevice& device) {
  // Where nearly all of it lives on, the end says who holds it.
  if (!device.end || device.end->total_bytes >= device.peak.total_bytes / 4 * 3) return "";
  const std::string_view now = run.goes_on ? "now" : "at the end";
  std::string text;
  const std::vector<HeldAtPeak> all = held_at_peak(device);
  for (size_t i = 0; i < std::min(all.size(), kMaxHeldTold); ++i) {
    const HeldAtPeak& held = all[i];
    const std::string line =
        held.largest->where.empty() ? "" : ", made at " + short_line_text(*held.largest) + ",";
    const std::string holder = table_name(held.holder);
    text += fmt::format("{}{}{} ", text.empty() ? "of the peak " : "; ", readable_size(held.bytes),
                        line);
    text +=
        held.is_of_earlier_step
            ? fmt::format("was left by an earlier step, and {} {} holds another one", now, holder)
            : fmt::format("is held {} by {}", now, holder);
  }
  return text;
}

}  // namespace memledger
