// IterationStats as pytorch_mem_profiler prints them, and as CSV.

#include <fmt/format.h>

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
std::string line(const std::string& name, int64_t bytes) {
  const std::string figure = fmt::format("{:.0f} MB", static_cast<double>(bytes) / 1e6);
  const size_t used = name.size() + figure.size();
  return name + std::string(used < kWidth ? kWidth - used : 1, '.') + figure + "\n";
}

std::string lines(const std::vector<NamedBytes>& rows, const char* suffix = "") {
  std::string text;
  for (const NamedBytes& row : rows) text += line("  " + table_name(row.name) + suffix, row.bytes);
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
  text += line("Peak cached", stats.peak_cached_bytes) +
          line("Current cached", stats.current_cached_bytes);
  text += line("Total feature map usage", stats.feature_map_bytes) +
          lines(stats.feature_maps, " feature maps");
  text += "\n" + line("Total layer weight usage", stats.weight_bytes()) + lines(stats.weights);
  text += "\n" + line("Total layer weight gradient usage", stats.weight_gradient_bytes()) +
          lines(stats.weight_gradients);
  text += line("Intermediate gradients", stats.intermediate_gradient_bytes);
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
  const auto row = [&](const char* kind, const std::string& name, int64_t bytes) {
    text +=
        fmt::format("{},{},{},{},{}\n", stats.epoch, stats.iteration, kind, csv_field(name), bytes);
  };
  const auto rows = [&](const char* kind, const std::vector<NamedBytes>& all) {
    for (const NamedBytes& one : all) row(kind, one.name, one.bytes);
  };
  row("peak_cached", "", stats.peak_cached_bytes);
  row("current_cached", "", stats.current_cached_bytes);
  rows("feature_map", stats.feature_maps);
  rows("weight", stats.weights);
  rows("weight_grad", stats.weight_gradients);
  row("intermediate_grad", "", stats.intermediate_gradient_bytes);
  row("most_workspace", "", stats.most_workspace_bytes);
  rows("buffer", stats.buffers);
  rows("optimizer_state", stats.optimizer_state);
  row("workspace", "", stats.workspace_bytes);
  row("other", "", stats.other_bytes);
  row("current_bytes", "", stats.current_bytes);
  return text;
}

}  // namespace memledger
