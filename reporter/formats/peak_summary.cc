#include "reporter/formats/peak_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "reporter/formats/report_format.h"
#include "text/bytes.h"
#include "text/names.h"

namespace memledger {
namespace {

constexpr size_t kLargest = 10;
constexpr size_t kLayers = 4;

// What people ask for, in this order.
enum class Part : uint8_t {
  kParameters,
  kBuffers,
  kGradients,
  kOptimizerState,
  kInputs,
  kActivations,
  kBackward,
  kWorkspaces,
  kOther,
  kCount
};

std::string_view to_string(Part part) {
  switch (part) {
    case Part::kParameters:
      return "parameters";
    case Part::kBuffers:
      return "buffers";
    case Part::kGradients:
      return "gradients";
    case Part::kOptimizerState:
      return "optimizer state";
    case Part::kInputs:
      return "inputs";
    case Part::kActivations:
      return "activations";
    case Part::kBackward:
      return "gradients of activations";
    case Part::kWorkspaces:
      return "workspaces";
    default:
      return "other";
  }
}

Part part_of(const ReportRow& row) {
  switch (row.role) {
    case Role::kParameter:
      return Part::kParameters;
    case Role::kBuffer:
      return Part::kBuffers;
    case Role::kGradient:
      return Part::kGradients;
    case Role::kOptimizerState:
      return Part::kOptimizerState;
    case Role::kInput:
      return Part::kInputs;
    default:
      break;
  }
  if (row.storage_kind != StorageKind::kTensor) return Part::kWorkspaces;
  if (row.phase == Phase::kForward && !row.module.empty()) return Part::kActivations;
  if (row.phase == Phase::kForward && row.role == Role::kSaved) return Part::kActivations;
  return row.phase == Phase::kBackward ? Part::kBackward : Part::kOther;
}

using Layers = std::map<std::string, int64_t>;

// Returns ` (h.0 0.82M, h.1 0.82M, … 10 more)`, the largest first.
std::string layers_text(const Layers& layers) {
  std::vector<std::pair<std::string, int64_t>> sorted(layers.begin(), layers.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < std::min(sorted.size(), kLayers); ++i) {
    text += fmt::format("{}{} {}", i == 0 ? " (" : ", ", table_name(sorted[i].first),
                        readable_size(sorted[i].second));
  }
  if (sorted.size() > kLayers) text += fmt::format(", … {} more", sorted.size() - kLayers);
  return text.empty() ? text : text + ")";
}

// Returns `, in backward of conv1, by aten::convolution_backward`.
std::string moment_text(const ReportRow* newest) {
  if (newest == nullptr) return "";
  std::string text;
  if (newest->phase != Phase::kOther) text += fmt::format(", in {}", to_string(newest->phase));
  if (!newest->module.empty())
    text += (text.empty() ? ", in " : " of ") + table_name(newest->module);
  if (!newest->op.empty()) text += fmt::format(", by {}", newest->op);
  return text;
}

std::string head_of(const DeviceReport& device, const PeakFigures& figures,
                    const ReportRow* newest) {
  std::string text = device.device.str();
  if (!figures.gpu.empty()) text += fmt::format(" ({})", figures.gpu);
  text += fmt::format("  peak requested {}", readable_size(device.total_bytes));
  if (figures.allocated_peak) text += ", allocated " + readable_size(*figures.allocated_peak);
  if (figures.reserved_peak) text += ", reserved " + readable_size(*figures.reserved_peak);
  if (figures.capacity) text += " of " + readable_size(*figures.capacity);
  return text + moment_text(newest) + "\n";
}

std::string label_of(const ReportRow& row) {
  if (!row.anonymous) return table_name(row.name);
  const std::string made_by = producer(row);
  return made_by.empty() ? table_name(row.name) : table_name(made_by);
}

// Anonymous rows that are alike are one line.
std::vector<std::pair<const ReportRow*, size_t>> largest_of(const DeviceReport& device) {
  std::vector<const ReportRow*> rows;
  for (const ReportRow& row : device.rows) {
    if (row.kind == RowKind::kStorage) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ReportRow* a, const ReportRow* b) {
    return a->nbytes.value_or(0) > b->nbytes.value_or(0);
  });
  std::vector<std::pair<const ReportRow*, size_t>> lines;
  for (const ReportRow* const row : rows) {
    if (!lines.empty() && row->anonymous && lines.back().first->anonymous &&
        lines.back().first->nbytes == row->nbytes && lines.back().first->shape == row->shape &&
        producer(*lines.back().first) == producer(*row)) {
      ++lines.back().second;
      continue;
    }
    if (lines.size() == kLargest) break;
    lines.emplace_back(row, 1);
  }
  return lines;
}

}  // namespace

std::string peak_summary(const DeviceReport& device, const PeakFigures& figures) {
  std::array<int64_t, static_cast<size_t>(Part::kCount)> parts{};
  std::array<Layers, static_cast<size_t>(Part::kCount)> layers;
  const ReportRow* newest = nullptr;
  int64_t nameless = 0;
  for (const ReportRow& row : device.rows) {
    const int64_t bytes = row.nbytes.value_or(0);
    const auto part = static_cast<size_t>(part_of(row));
    parts[part] += bytes;
    if (!row.module.empty()) layers[part][row.module] += bytes;
    if (row.anonymous && row.module.empty() && part_of(row) != Part::kWorkspaces) nameless += bytes;
    if (row.storage_id != 0 && (newest == nullptr || row.storage_id > newest->storage_id))
      newest = &row;
  }
  std::string text = head_of(device, figures, newest);
  std::string composition;
  for (size_t part = 0; part < parts.size(); ++part) {
    if (parts[part] == 0) continue;
    composition += fmt::format("{}{} {}", composition.empty() ? "  " : ", ",
                               to_string(static_cast<Part>(part)), readable_size(parts[part]));
    const bool has_layers =
        static_cast<Part>(part) == Part::kActivations || static_cast<Part>(part) == Part::kBackward;
    if (has_layers) composition += layers_text(layers[part]);
  }
  if (!composition.empty()) text += composition + "\n";
  if (nameless > 0)
    text += fmt::format("  without a name or a layer: {}\n", readable_size(nameless));
  for (const auto& [row, count] : largest_of(device)) {
    const std::string times = count > 1 ? fmt::format("{} x ", count) : "";
    text += fmt::format("  {:>9s}  {:<20s} {}{}{}\n", size_or_unknown(row->nbytes),
                        table_shape(row->shape), times, label_of(*row),
                        row->anonymous || row->where.empty() ? "" : "  " + row->where);
  }
  return text;
}

}  // namespace memledger
