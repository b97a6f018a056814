// SavedTensors as a table.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "text/bytes.h"
#include "text/dtype.h"
#include "text/names.h"
#include "text/shape.h"

namespace memledger {
namespace graph_internal {

namespace {

constexpr size_t kTableRows = 50;

std::string device_text(const std::optional<c10::Device>& device) {
  return device.has_value() ? device->str() : "?";
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text + " ";
}

std::string table_line(const std::string& size, const std::string& node, const std::string& slot,
                       const std::string& shape, const std::string& dtype,
                       const std::string& device, const std::string& remarks) {
  std::string line(size.size() < 10 ? 10 - size.size() : 0, ' ');
  line += size + "  " + padded(node, 32) + padded(slot, 22) + padded(shape, 24) +
          padded(dtype, 14) + padded(device, 7) + remarks;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string remarks_on(const SavedTensorsData& data, const SavedTensorRow& row) {
  std::string out;
  const auto add = [&out](const std::string& text) {
    if (!out.empty()) out += "; ";
    out += text;
  };
  if (row.role != SavedRole::kActivation) add(to_string(row.role));
  if (row.shares_with) {
    const CompactRow& first = data.rows[*row.shares_with];
    add("shares with " + table_name(data.node_name(first)) + "." + table_name(data.slot(first)));
  } else if (row.view) {
    add("shows " + readable_size(*row.extent_bytes) + " of it");
  }
  if (row.in_place_modified) add("modified in place");
  if (row.lent) add("lent");
  if (row.inferred) add("inferred");
  return out;
}

bool is_counted_activation(const CompactRow& row) {
  return row.counted && row.role == SavedRole::kActivation;
}

// What counts comes first, then what is unknown, then what is not included or shared.
std::pair<int, int64_t> weight_of(const CompactRow& row) {
  const int kind = is_counted_activation(row)                                    ? 2
                   : row.role == SavedRole::kActivation && row.storage_bytes < 0 ? 1
                                                                                 : 0;
  return {kind, row.counted ? row.storage_bytes : 0};
}

// The indices of all rows, the heaviest `shown` of them first.
std::vector<size_t> by_weight(const SavedTensorsData& data, size_t shown) {
  std::vector<size_t> order(data.rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                    [&](size_t a, size_t b) {
                      const auto left = weight_of(data.rows[a]);
                      const auto right = weight_of(data.rows[b]);
                      return left != right ? left > right : a < b;
                    });
  return order;
}

std::string size_text(const SavedTensorsData& data, const SavedTensorRow& row) {
  if (!row.storage_bytes) return "?";
  return readable_size(row.counted ? data.rounded(*row.storage_bytes) : 0);
}

void print_totals(std::ostream& out, const SavedTensors& saved) {
  out << "Saved for backward: " << readable_size(saved.total_bytes()) << " (" << saved.total_bytes()
      << " bytes), " << saved.row_count() << " saved tensors, " << saved.node_count() << " nodes\n";
  if (saved.inferred_bytes() > 0)
    out << "Included, inferred: " << readable_size(saved.inferred_bytes()) << '\n';
  for (const SavedRole role : kRoles) {
    if (role == SavedRole::kActivation || saved.bytes(role) == 0) continue;
    out << "Not included, " << to_string(role) << ": " << readable_size(saved.bytes(role)) << '\n';
  }
}

void print_rows(std::ostream& out, const SavedTensorsData& data) {
  const size_t shown = std::min(data.rows.size(), kTableRows);
  const std::vector<size_t> order = by_weight(data, shown);
  if (shown > 0) out << table_line("Bytes", "Node", "Slot", "Shape", "Dtype", "Device", "Remarks");
  for (size_t k = 0; k < shown; ++k) {
    const SavedTensorRow row = data.row(order[k]);
    out << table_line(size_text(data, row), table_name(row.node), table_name(row.slot),
                      shape_text(row.shape), dtype_text(row.dtype), device_text(row.device),
                      remarks_on(data, row));
  }
  if (shown == order.size()) return;
  int64_t rest = 0;
  for (size_t k = shown; k < order.size(); ++k) {
    const CompactRow& row = data.rows[order[k]];
    if (is_counted_activation(row)) rest += data.rounded(row.storage_bytes);
  }
  out << "… and " << order.size() - shown << " more, " << readable_size(rest) << '\n';
}

void print_unread(std::ostream& out, const std::vector<UnreadNode>& unread) {
  const size_t shown = std::min(unread.size(), kTableRows);
  for (size_t i = 0; i < shown; ++i) out << "Not read: " << unread[i] << '\n';
  if (shown < unread.size()) out << "… and " << unread.size() - shown << " more nodes not read\n";
}

}  // namespace
}  // namespace graph_internal

std::ostream& operator<<(std::ostream& out, SavedRole role) { return out << to_string(role); }
std::ostream& operator<<(std::ostream& out, UnreadReason reason) {
  return out << to_string(reason);
}

std::ostream& operator<<(std::ostream& out, const SavedTensorRow& row) {
  out << table_name(row.node) << '.' << table_name(row.slot) << ": " << shape_text(row.shape) << ' '
      << dtype_text(row.dtype) << " on " << graph_internal::device_text(row.device) << ", ";
  if (row.storage_bytes) {
    out << readable_size(*row.storage_bytes);
  } else {
    out << '?';
  }
  return out << (row.shares_with ? " shared, " : ", ") << row.role;
}

std::ostream& operator<<(std::ostream& out, const UnreadNode& node) {
  out << table_name(node.node) << " (" << node.reason;
  if (!node.detail.empty()) out << ": " << table_name(node.detail);
  return out << ')';
}

std::ostream& operator<<(std::ostream& out, const SavedTensors& saved) {
  graph_internal::print_totals(out, saved);
  graph_internal::print_rows(out, *saved.data_);
  graph_internal::print_unread(out, saved.data_->unread);
  return out;
}

}  // namespace memledger
