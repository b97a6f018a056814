#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "text/csv.h"
#include "text/names.h"
#include "tracker/memory_profiler.h"

namespace memledger {
namespace {

constexpr size_t kWidth = 43;

int64_t sum_of(const std::vector<NamedBytes>& rows) {
  int64_t bytes = 0;
  for (const NamedBytes& row : rows) bytes += row.bytes;
  return bytes;
}

// `Peak cached..........................857 MB`
std::string line(const std::string& name, std::optional<int64_t> bytes) {
  const std::string figure =
      bytes ? fmt::format("{:.0f} MB", static_cast<double>(*bytes) / 1e6) : "? MB";
  const size_t used = name.size() + figure.size();
  return name + std::string(used < kWidth ? kWidth - used : 1, '.') + figure + "\n";
}

// The registry's figures, or nothing where it was off.
std::optional<int64_t> tracked(const IterationStats& stats, int64_t bytes) {
  return stats.tracking_is_off ? std::nullopt : std::optional<int64_t>(bytes);
}

// The figures of the device's caching allocator. The CPU has none, so they are the registry's
// there.
std::optional<int64_t> cached(const IterationStats& stats, int64_t bytes) {
  return stats.device.is_cpu() ? tracked(stats, bytes) : bytes;
}

std::string lines(const IterationStats& stats, const std::vector<NamedBytes>& rows,
                  const char* suffix = "") {
  std::string text;
  for (const NamedBytes& row : rows)
    text += line("  " + table_name(row.name) + suffix, tracked(stats, row.bytes));
  return text;
}

}  // namespace

int64_t IterationStats::weight_bytes() const { return sum_of(weights); }

int64_t IterationStats::weight_gradient_bytes() const { return sum_of(weight_gradients); }

std::string to_string(const IterationStats& stats) {
  const std::string rule = std::string(kWidth, '*') + "\n";
  std::string text =
      rule +
      fmt::format("Memory Usage for Iteration {} of Epoch {}\n", stats.iteration, stats.epoch) +
      rule;
  text += line("Peak cached", cached(stats, stats.peak_cached_bytes)) +
          line("Current cached", cached(stats, stats.current_cached_bytes));
  text += line("Total feature map usage", tracked(stats, stats.feature_map_bytes)) +
          lines(stats, stats.feature_maps, " feature maps");
  text += "\n" + line("Total layer weight usage", tracked(stats, stats.weight_bytes())) +
          lines(stats, stats.weights);
  text += "\n" +
          line("Total layer weight gradient usage", tracked(stats, stats.weight_gradient_bytes())) +
          lines(stats, stats.weight_gradients);
  if (stats.unread_gradients > 0) {
    text += fmt::format("({} gradients were not read beside other threads: see training_paused)\n",
                        stats.unread_gradients);
  }
  text += line("Intermediate gradients", tracked(stats, stats.intermediate_gradient_bytes));
  if (stats.most_workspace_bytes > 0) text += line("Workspaces", stats.most_workspace_bytes);
  if (stats.dropped_events > 0) {
    text += fmt::format(
        "({} events were dropped: feature maps and intermediate gradients are at least these)\n",
        stats.dropped_events);
  }
  return text;
}

std::string to_csv(const IterationStats& stats) {
  std::string text;
  const auto add = [&](std::string_view kind, std::string_view name, std::optional<int64_t> bytes) {
    text += CsvLine()
                .number(stats.epoch)
                .number(stats.iteration)
                .text(kind)
                .text(name)
                .number(bytes)
                .end();
  };
  const auto add_all = [&](std::string_view kind, const std::vector<NamedBytes>& rows) {
    for (const NamedBytes& row : rows) add(kind, row.name, tracked(stats, row.bytes));
  };
  add("peak_cached", "", cached(stats, stats.peak_cached_bytes));
  add("current_cached", "", cached(stats, stats.current_cached_bytes));
  add_all("feature_map", stats.feature_maps);
  add_all("weight", stats.weights);
  add_all("weight_grad", stats.weight_gradients);
  // A number, so it stands where names do.
  if (stats.unread_gradients > 0)
    add("unread_gradients", std::to_string(stats.unread_gradients), {});
  add("intermediate_grad", "", tracked(stats, stats.intermediate_gradient_bytes));
  add("most_workspace", "", tracked(stats, stats.most_workspace_bytes));
  add_all("buffer", stats.buffers);
  add_all("optimizer_state", stats.optimizer_state);
  add("workspace", "", tracked(stats, stats.workspace_bytes));
  add("other", "", tracked(stats, stats.other_bytes));
  add("current_bytes", "", tracked(stats, stats.current_bytes));
  // A number, too.
  if (stats.dropped_events > 0) add("dropped_events", std::to_string(stats.dropped_events), {});
  return text;
}

}  // namespace memledger
