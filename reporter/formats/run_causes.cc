#include "reporter/formats/run_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "reporter/formats/report_format.h"
#include "text/bytes.h"
#include "text/names.h"

namespace memledger {
namespace {

constexpr int64_t kLeastBytes = int64_t{1} << 20;
constexpr int64_t kLeastCache = int64_t{64} << 20;  // LibTorch takes 20 MiB at once
constexpr size_t kLeastRounds = 8;
constexpr size_t kMaxPerRound = 4;  // rows of one kind that one round leaves

bool is_worth_telling(int64_t bytes, const DeviceReport& rows) {
  return bytes >= kLeastBytes && bytes >= rows.total_bytes / 10;
}

// Rows of one kind, the oldest first.
struct Kind {
  std::vector<const ReportRow*> rows;
  size_t per_round = 0;
  uint32_t operators = 0;
};

// Returns how many operators came between most rows and those `step` places later; 0: they differ.
uint32_t usual_distance(const std::vector<const ReportRow*>& rows, size_t step) {
  std::map<uint32_t, size_t> counts;
  for (size_t i = step; i < rows.size(); ++i)
    ++counts[rows[i]->operator_run - rows[i - step]->operator_run];  // may wrap
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == counts.end() || most->second * 5 < (rows.size() - step) * 4) return 0;
  return most->first;
}

void find_period(Kind& kind) {
  for (size_t step = 1; step <= kMaxPerRound && kind.rows.size() >= kLeastRounds * step; ++step) {
    const uint32_t distance = usual_distance(kind.rows, step);
    if (distance == 0) continue;
    kind.per_round = step;
    kind.operators = distance;
    return;
  }
}

std::vector<Kind> kinds_of(const DeviceReport& rows, bool awaiting_backward_only) {
  using Key = std::tuple<uint32_t, std::string_view, std::string_view, std::string_view,
                         std::string_view, std::string_view, int64_t>;
  std::map<Key, Kind> kinds;
  for (const ReportRow& row : rows.rows) {
    if (!row.anonymous || row.operator_run == 0 || row.nbytes.value_or(0) == 0) continue;
    if (row.kind != RowKind::kStorage || row.storage_kind != StorageKind::kTensor) continue;
    if (awaiting_backward_only && !row.awaits_backward) continue;
    kinds[{row.thread, row.op, row.autograd_node, row.label, row.module, row.where, *row.nbytes}]
        .rows.push_back(&row);
  }
  std::vector<Kind> result;
  for (auto& [key, kind] : kinds) {
    if (kind.rows.size() < kLeastRounds) continue;
    std::sort(kind.rows.begin(), kind.rows.end(),
              [](const ReportRow* a, const ReportRow* b) { return a->storage_id < b->storage_id; });
    find_period(kind);
    if (kind.operators != 0) result.push_back(std::move(kind));
  }
  return result;
}

int64_t bytes_of(const Kind& kind) {
  return *kind.rows.front()->nbytes * static_cast<int64_t>(kind.rows.size());
}

std::string row_text(const ReportRow& row) {
  ReportRow plain = row;
  plain.where.clear();
  const std::string shape =
      row.dtype ? table_shape(row.shape) + " " + std::string(dtype_name(*row.dtype)) + " " : "";
  return shape + table_name(producer(plain)) +
         (row.where.empty() ? "" : " at " + printable(row.where)) +
         (row.held_by.empty() ? "" : ", held by " + table_name(row.held_by));
}

}  // namespace

std::optional<UnusedGraph> unused_graph(const RunOfDevice& device) {
  const DeviceReport& rows = device.peak;
  UnusedGraph graph;
  const auto goes_before = [](const ReportRow& row, const ReportRow& other) {
    return std::pair(row.where.empty(), row.storage_id) <
           std::pair(other.where.empty(), other.storage_id);
  };
  const std::vector<PartOfRow> parts = parts_of(rows, device);
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    // A parameter that was moved to a device was made by an operator that read a leaf.
    const ReportRow& row = rows.rows[i];
    if (!row.awaits_backward || parts[i].part != Part::kActivations) continue;
    graph.bytes += row.nbytes.value_or(0);
    if (graph.first == nullptr || goes_before(row, *graph.first)) graph.first = &row;
  }
  if (!is_worth_telling(graph.bytes, rows)) return std::nullopt;
  return graph;
}

std::optional<Rounds> rounds_of(const DeviceReport& rows, bool awaiting_backward_only) {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Kind>> by_period;
  for (Kind& kind : kinds_of(rows, awaiting_backward_only))
    by_period[{kind.rows.front()->thread, kind.operators}].push_back(std::move(kind));
  std::optional<Rounds> result;
  int64_t most = 0;
  for (auto& [period, kinds] : by_period) {
    Rounds rounds;
    rounds.operators = period.second;
    int64_t bytes = 0;
    std::sort(kinds.begin(), kinds.end(),
              [](const Kind& a, const Kind& b) { return bytes_of(a) > bytes_of(b); });
    for (const Kind& kind : kinds) {
      bytes += bytes_of(kind);
      rounds.bytes_each += *kind.rows.front()->nbytes * static_cast<int64_t>(kind.per_round);
      rounds.count =
          std::max(rounds.count, static_cast<int64_t>(kind.rows.size() / kind.per_round));
      // The newest, as that is followed where not all are.
      rounds.examples.push_back(kind.rows.back());
    }
    if (bytes <= most || !is_worth_telling(bytes, rows)) continue;
    most = bytes;
    result = std::move(rounds);
  }
  return result;
}

std::string unused_graph_text(const RunReport& run, const RunOfDevice& device) {
  // Before an early end, the pass may have been about to come.
  if (run.is_partial && run.ran_backward) return "";
  const std::optional<UnusedGraph> graph = unused_graph(device);
  if (!graph) return "";
  std::string text =
      fmt::format("{} that autograd recorded was {} run backward{}", readable_size(graph->bytes),
                  run.is_partial ? "not" : "never", run.is_partial ? " yet" : "");
  const bool has_line = !graph->first->where.empty();
  if (has_line) text += ", first at " + printable(graph->first->where);
  return fmt::format("{}: if it need not be, put {} {}", text,
                     run.is_python ? "torch.no_grad()" : "torch::NoGradGuard",
                     has_line ? "there" : "around the forward pass");
}

std::string rounds_text(const RunReport& run, const RunOfDevice& device) {
  if (run.baseline_step > 0) return "";  // growth by step is told
  std::optional<Rounds> rounds;
  bool is_at_end = false;
  if (device.end && device.end->total_bytes > 0) {
    rounds = rounds_of(*device.end, /*awaiting_backward_only=*/false);
    is_at_end = rounds.has_value();
  }
  if (!rounds) rounds = rounds_of(device.peak, /*awaiting_backward_only=*/true);
  if (!rounds) return "";
  std::string text = fmt::format(
      "{}each of {} rounds of {} left {}: {}", is_at_end ? "" : "at the peak ", rounds->count,
      rounds->operators == 1 ? "one operator" : fmt::format("{} operators", rounds->operators),
      readable_size(rounds->bytes_each), row_text(*rounds->examples.front()));
  if (rounds->examples.size() > 1) text += fmt::format(", {} more", rounds->examples.size() - 1);
  return text;
}

std::string cache_text(const RunReport& run, const RunOfDevice& device) {
  if (!device.cache) return "";
  const CacheAtPeak& cache = *device.cache;
  const int64_t free = cache.whole_bytes + cache.piece_bytes;
  const int64_t reserved_peak = device.figures.reserved_peak.value_or(0);
  const bool is_of_peak = cache.reserved_bytes >= reserved_peak - reserved_peak / 10;
  if (!is_of_peak || free < kLeastCache || free < cache.reserved_bytes / 4) return "";
  std::string text = fmt::format("at {} reserved, LibTorch's cache had {} free",
                                 readable_size(cache.reserved_bytes), readable_size(free));
  if (cache.whole_segments > 0) {
    text += fmt::format(", {} in {} whole segment{} that {} gives back",
                        readable_size(cache.whole_bytes), cache.whole_segments,
                        cache.whole_segments == 1 ? "" : "s",
                        run.is_python ? "torch.cuda.empty_cache()" : "emptyCache()");
  }
  if (cache.pieces > 0) {
    text +=
        fmt::format(", {} in {} piece{} beside living tensors", readable_size(cache.piece_bytes),
                    cache.pieces, cache.pieces == 1 ? "" : "s");
    if (cache.pieces > 1) text += fmt::format(" (largest {})", readable_size(cache.largest_piece));
  }
  return text +
         ", of which memledger dry-run measures what expandable_segments and max_split_size_mb "
         "save";
}

std::string pinned_text(const PinnedOfRun& pinned) {
  if (pinned.peak_bytes < kLeastBytes) return "";  // LibTorch's own copies of a value
  std::string text = fmt::format("pinned host memory  peak {}", readable_size(pinned.peak_bytes));
  if (pinned.now_bytes != pinned.peak_bytes)
    text += fmt::format(", now {}", readable_size(pinned.now_bytes));
  if (pinned.tensors > 0) {
    text += fmt::format(", {} in {} tensor{}", readable_size(pinned.tensor_bytes), pinned.tensors,
                        pinned.tensors == 1 ? "" : "s");
    if (pinned.now_bytes >= pinned.rounded_bytes && pinned.rounded_bytes > pinned.tensor_bytes) {
      text += fmt::format("; LibTorch rounds each up to a power of two, {}",
                          readable_size(pinned.rounded_bytes));
    }
  }
  return text;
}

}  // namespace memledger
