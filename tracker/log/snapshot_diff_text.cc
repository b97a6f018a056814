// SnapshotDiff as the log shows it, and as JSON.

#include <ostream>
#include <string_view>

#include "text/json.h"
#include "tracker/log/log_text.h"
#include "tracker/snapshot_diff.h"

namespace memledger {
namespace {

constexpr int kJsonVersion = 1;

std::string_view base_name(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);
}

std::string location_text(const SnapshotDiff& diff) {
  std::string text = log_text::printable(base_name(diff.where.file())) + " line " +
                     std::to_string(diff.where.line()) + ": " +
                     log_text::printable(diff.where.function());
  if (!diff.label.empty()) text += " [" + log_text::printable(diff.label) + "]";
  return text;
}

std::string last_column(const DiffRow& row) {
  if (!row.names.empty()) {
    std::string text = log_text::printable(row.names.front());
    if (row.names.size() > 1) text += " …";
    if (row.sign == '+' && row.producer.rfind("aten::resize", 0) == 0) text += " (resized)";
    return row.adopted ? text + " (before tracking)" : text;
  }
  std::string text = row.adopted            ? "before tracking"
                     : row.producer.empty() ? "?"
                                            : log_text::printable(row.producer);
  if (!row.label.empty()) text += " [" + log_text::printable(row.label) + "]";
  return text;
}

std::string_view role_text(const DiffRow& row) {
  switch (row.kind) {
    case StorageKind::kLibraryWorkspace:
      return "LibraryWorkspace";
    case StorageKind::kRawBlock:
      return "RawBlock";
    case StorageKind::kTensor:
    case StorageKind::kScratch:
      break;
  }
  return to_string(row.role);
}

const char* json_bool(bool value) { return value ? "true" : "false"; }

std::string json_strings(const std::vector<std::string>& values) {
  std::string json = "[";
  for (size_t i = 0; i < values.size(); ++i) json += (i == 0 ? "" : ",") + json_string(values[i]);
  return json + "]";
}

std::string json_shape(const std::optional<std::vector<int64_t>>& shape) {
  if (!shape.has_value()) return "null";
  std::string json = "[";
  for (size_t i = 0; i < shape->size(); ++i)
    json += (i == 0 ? "" : ",") + std::to_string((*shape)[i]);
  return json + "]";
}

std::string json_row(const DiffRow& row) {
  std::string json = "{\"sign\":" + json_string(std::string_view(&row.sign, 1));
  json += ",\"count\":" + std::to_string(row.count) + ",\"bytes\":" + std::to_string(row.bytes);
  json += ",\"shape\":" + json_shape(row.shape);
  json +=
      ",\"dtype\":" + (row.dtype.has_value() ? json_string(log_text::dtype(row.dtype)) : "null");
  json += ",\"role\":" + json_string(role_text(row)) + ",\"names\":" + json_strings(row.names);
  json += ",\"producer\":" + json_string(row.producer) + ",\"label\":" + json_string(row.label);
  return json + ",\"adopted\":" + json_bool(row.adopted) + "}";
}

}  // namespace

std::string to_string(const DiffRow& row) {
  return std::string(1, row.sign) + " | " + std::to_string(row.count) +
         " * Size:" + log_text::padded(log_text::size(row.shape), 20) +
         " | Memory: " + log_text::memory(row.bytes) + " M | " +
         log_text::padded(std::string(role_text(row)), 20) + " | " + log_text::dtype(row.dtype) +
         " | " + last_column(row);
}

std::string SnapshotDiff::at_line() const {
  return "At " + log_text::padded(location_text(*this), 50) +
         " Total Tensor Used Memory:" + log_text::total(tensor_bytes) +
         "Mb Total Allocated Memory:" + log_text::total(allocated_bytes) + "Mb";
}

std::string SnapshotDiff::to_json() const {
  const auto time_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  std::string json =
      "{\"schema\":\"memledger.snapshot_diff\",\"version\":" + std::to_string(kJsonVersion);
  json += ",\"time_ms\":" + std::to_string(time_ms) + ",\"device\":" + json_string(device.str());
  json += ",\"file\":" + json_string(where.file()) + ",\"line\":" + std::to_string(where.line());
  json += ",\"function\":" + json_string(where.function()) + ",\"label\":" + json_string(label);
  json += ",\"tensor_bytes\":" + (tensor_bytes ? std::to_string(*tensor_bytes) : "null") +
          ",\"allocated_bytes\":" + std::to_string(allocated_bytes);
  json += ",\"born_bytes\":" + std::to_string(born_bytes()) +
          ",\"died_bytes\":" + std::to_string(died_bytes());
  json += std::string(",\"from_snapshot\":") + json_bool(from_snapshot);
  json += std::string(",\"unseen_before_tracking\":") + json_bool(unseen_before_tracking);
  json += std::string(",\"tracking_was_off\":") + json_bool(tracking_was_off);
  json += ",\"hooks\":{\"unknown_frees\":" + std::to_string(health.unknown_frees) +
          ",\"dropped_records\":" + std::to_string(health.dropped_records) +
          ",\"swallowed_exceptions\":" + std::to_string(health.swallowed_exceptions) + "}";
  json += ",\"unread\":" + json_strings(unread) + ",\"rows\":[";
  for (size_t i = 0; i < rows.size(); ++i) json += (i == 0 ? "" : ",") + json_row(rows[i]);
  return json + "]}";
}

std::ostream& operator<<(std::ostream& out, const DiffRow& row) { return out << to_string(row); }

std::ostream& operator<<(std::ostream& out, const SnapshotDiff& diff) {
  for (const DiffRow& row : diff.rows) out << row << '\n';
  if (!diff.rows.empty()) out << '\n';
  return out << diff.at_line() << '\n';
}

}  // namespace memledger
