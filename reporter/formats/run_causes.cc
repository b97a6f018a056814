#include "reporter/formats/run_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "reporter/formats/report_format.h"
#include "text/bytes.h"
#include "text/names.h"
#include "text/places.h"

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
  size_t regular = 0, distances = 0;
};

// Finds how many operators came between most rows and those `step` places later. Returns false if
// they differ.
bool find_distance(Kind& kind, size_t step) {
  const std::vector<const ReportRow*>& rows = kind.rows;
  std::map<uint32_t, size_t> counts;
  for (size_t i = step; i < rows.size(); ++i)
    ++counts[rows[i]->operator_run - rows[i - step]->operator_run];  // may wrap
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == counts.end() || most->second * 5 < (rows.size() - step) * 4 || most->first == 0)
    return false;
  kind.operators = most->first;
  kind.per_round = step;
  kind.regular = most->second;
  kind.distances = rows.size() - step;
  return true;
}

void find_period(Kind& kind) {
  for (size_t step = 1; step <= kMaxPerRound && kind.rows.size() >= kLeastRounds * step; ++step) {
    if (find_distance(kind, step)) return;
  }
}

// Whether it is a tensor that an operator made.
bool may_recur(const ReportRow& row) {
  return row.anonymous && row.operator_run != 0 && row.nbytes.value_or(0) != 0 &&
         row.kind == RowKind::kStorage && row.storage_kind == StorageKind::kTensor;
}

// Whether there is one in each eighth of the births from the first of them to the newest storage,
// and these were half as many again.
bool is_spread(const std::vector<const ReportRow*>& rows, uint64_t newest) {
  constexpr uint64_t kParts = 8;
  uint64_t first = newest;
  for (const ReportRow* const row : rows) first = std::min(first, row->storage_id);
  const uint64_t births = newest - first + 1;
  if (2 * births < 3 * rows.size()) return false;
  std::set<uint64_t> parts;
  for (const ReportRow* const row : rows) {
    if (row->storage_id <= newest) parts.insert((row->storage_id - first) * kParts / births);
  }
  return parts.size() == kParts;
}

std::string streams_text(const CacheAtPeak& cache) {
  if (cache.streams.size() < 2) return "";
  std::string text;
  for (const CacheOfStream& one : cache.streams) {
    text += fmt::format(
        "{} {} for {}", text.empty() ? ", of the free" : ",", readable_size(one.bytes),
        one.stream == 0 ? "the default stream" : fmt::format("stream {:#x}", one.stream));
    if (one.pool != std::pair<uint64_t, uint64_t>{0, 0})
      text += fmt::format(" in private pool {}.{}", one.pool.first, one.pool.second);
  }
  if (cache.more_streams > 0)
    text += fmt::format(", {} more {}", cache.more_streams, readable_size(cache.more_stream_bytes));
  return text;
}

int64_t power_of_two_above(int64_t bytes) {
  int64_t power = 1;
  while (power < bytes) power *= 2;
  return power;
}

std::vector<Kind> kinds_of(const DeviceReport& rows, bool awaiting_backward_only) {
  using Key = std::tuple<uint32_t, std::string_view, std::string_view, std::string_view,
                         std::string_view, std::string_view, int64_t>;
  std::map<Key, Kind> kinds;
  for (const ReportRow& row : rows.rows) {
    if (!may_recur(row)) continue;
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
  plain.called_from.clear();
  const std::string shape =
      row.dtype ? table_shape(row.shape) + " " + std::string(dtype_name(*row.dtype)) + " " : "";
  return shape + table_name(producer(plain)) +
         (row.where.empty() ? "" : " at " + short_line_text(row)) +
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
    std::sort(kinds.begin(), kinds.end(),
              [](const Kind& a, const Kind& b) { return bytes_of(a) > bytes_of(b); });
    rounds.regular = static_cast<int64_t>(kinds.front().regular);
    rounds.distances = static_cast<int64_t>(kinds.front().distances);
    const size_t in_each = kinds.front().rows.size() / kinds.front().per_round;
    for (const Kind& kind : kinds) {
      rounds.bytes += bytes_of(kind);
      rounds.are_equal = rounds.are_equal && kind.rows.size() == in_each * kind.per_round;
      rounds.bytes_each += *kind.rows.front()->nbytes * static_cast<int64_t>(kind.per_round);
      rounds.count =
          std::max(rounds.count, static_cast<int64_t>(kind.rows.size() / kind.per_round));
      // The newest, as that is followed where not all are.
      rounds.examples.push_back(kind.rows.back());
    }
    if (rounds.bytes <= most || !is_worth_telling(rounds.bytes, rows)) continue;
    most = rounds.bytes;
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
  const ReportRow& first = *graph->first;
  if (!first.where.empty()) text += ", first at " + short_line_text(first);
  const std::string place = first.where.empty()         ? "around the forward pass"
                            : first.called_from.empty() ? "there"
                                                        : "at " + short_place(first.called_from);
  return fmt::format("{}: if it need not be, put {} {}", text,
                     run.is_python ? "torch.no_grad()" : "torch::NoGradGuard", place);
}

std::optional<Recurring> recurring_of(const DeviceReport& rows, uint64_t newest) {
  using Key = std::tuple<uint32_t, std::string_view, std::string_view, std::string_view,
                         std::string_view, std::string_view>;
  std::map<Key, std::vector<const ReportRow*>> kinds;
  for (const ReportRow& row : rows.rows) {
    if (!may_recur(row)) continue;
    kinds[{row.thread, row.op, row.autograd_node, row.label, row.module, row.where}].push_back(
        &row);
  }
  std::optional<Recurring> result;
  for (auto& [key, of_kind] : kinds) {
    if (of_kind.size() < kLeastRounds || !is_spread(of_kind, newest)) continue;
    Recurring kind;
    kind.count = static_cast<int64_t>(of_kind.size());
    kind.least = *of_kind.front()->nbytes;
    for (const ReportRow* const row : of_kind) {
      kind.bytes += *row->nbytes;
      kind.least = std::min(kind.least, *row->nbytes);
      kind.most = std::max(kind.most, *row->nbytes);
      if (kind.example == nullptr || row->storage_id > kind.example->storage_id) kind.example = row;
    }
    if (is_worth_telling(kind.bytes, rows) && (!result || kind.bytes > result->bytes))
      result = kind;
  }
  return result;
}

namespace {

std::string rounds_sentence(const Rounds& rounds) {
  const std::string operators =
      rounds.operators == 1 ? "one operator" : fmt::format("{} operators", rounds.operators);
  const bool are_regular = rounds.regular == rounds.distances;
  if (are_regular && rounds.are_equal) {
    return fmt::format("each of {} rounds of {} left {}", rounds.count, operators,
                       readable_size(rounds.bytes_each));
  }
  const std::string mostly =
      are_regular ? "" : fmt::format("mostly ({} of {}) ", rounds.regular, rounds.distances);
  return fmt::format("{} times {} stayed, {} in all, {}{} apart", rounds.count,
                     rounds.are_equal ? readable_size(rounds.bytes_each) : "something",
                     readable_size(rounds.bytes), mostly, operators);
}

std::string recurring_text(const Recurring& kind) {
  const std::string each = kind.least == kind.most ? readable_size(kind.least) + " each"
                                                   : readable_size(kind.least) + " to " +
                                                         readable_size(kind.most) + " each";
  return fmt::format("{} tensors {} stayed alive, {}, {} in all, made throughout the run: {}",
                     kind.count, kind.example->where.empty() ? "of one kind" : "from one place",
                     each, readable_size(kind.bytes), row_text(*kind.example));
}

std::optional<Rounds> rounds_at_end(const RunOfDevice& device) {
  return device.end ? rounds_of(*device.end, /*awaiting_backward_only=*/false) : std::nullopt;
}

}  // namespace

std::string rounds_text(const RunReport& run, const RunOfDevice& device) {
  if (run.baseline_step > 0) return "";  // growth by step is reported
  std::optional<Rounds> rounds = rounds_at_end(device);
  const bool is_at_end = rounds.has_value();
  if (!rounds) rounds = rounds_of(device.peak, /*awaiting_backward_only=*/true);
  if (!rounds) return "";
  std::string text = (is_at_end ? "" : "at the peak ") + rounds_sentence(*rounds) + ": " +
                     row_text(*rounds->examples.front());
  if (rounds->examples.size() > 1) text += fmt::format(", {} more", rounds->examples.size() - 1);
  return text;
}

std::string recurring_text(const RunReport& run, const RunOfDevice& device) {
  if (run.baseline_step > 0 || run.newest_storage == 0 || !device.end || rounds_at_end(device))
    return "";
  const auto kind = recurring_of(*device.end, run.newest_storage);
  return kind ? recurring_text(*kind) : "";
}

std::string cache_text(const RunReport& run, const RunOfDevice& device) {
  if (!device.cache) return "";
  const CacheAtPeak& cache = *device.cache;
  const int64_t free = cache.whole_bytes + cache.piece_bytes + cache.private_bytes;
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
  if (cache.private_bytes > 0) {
    text += fmt::format(", {} in private pools (CUDA graphs, torch.cuda.MemPool)",
                        readable_size(cache.private_bytes));
  }
  if (cache.pieces > 0) {
    text +=
        ", of which memledger dry-run measures what expandable_segments and max_split_size_mb save";
  }
  return text + streams_text(cache);
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
  constexpr size_t kShown = 2;
  for (size_t i = 0; i < std::min(kShown, pinned.kinds.size()); ++i) {
    const PinnedOfRun::Kind& kind = pinned.kinds[i];
    text += fmt::format("{} {} {}{}", i == 0 ? "; of it" : ",", readable_size(kind.bytes),
                        kind.tensors == 1 ? "" : fmt::format("in {} ", kind.tensors), kind.what);
  }
  if (pinned.kinds.size() > kShown) text += fmt::format(", {} more", pinned.kinds.size() - kShown);
  return text;
}

void add_pinned_rows(PinnedOfRun& pinned, const DeviceReport& end) {
  std::map<std::string, PinnedOfRun::Kind> kinds;
  for (PinnedOfRun::Kind& kind : pinned.kinds) kinds.emplace(kind.what, std::move(kind));
  for (const ReportRow& row : end.rows) {
    if (row.kind != RowKind::kExternal || row.external != ExternalMemory::kPinned) continue;
    ++pinned.tensors;
    pinned.tensor_bytes += row.external_bytes;
    pinned.rounded_bytes += power_of_two_above(row.external_bytes);
    const std::string what = row.anonymous ? row_text(row) : table_name(row.name);
    PinnedOfRun::Kind& kind = kinds[what];
    kind.what = what;
    kind.bytes += row.external_bytes;
    ++kind.tensors;
  }
  pinned.kinds.clear();
  for (auto& [what, kind] : kinds) pinned.kinds.push_back(std::move(kind));
  std::stable_sort(pinned.kinds.begin(), pinned.kinds.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
}

}  // namespace memledger
