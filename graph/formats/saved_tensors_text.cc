// SavedTensors as JSON and as a table.

#include <algorithm>
#include <array>
#include <ostream>
#include <string_view>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "text/bytes.h"
#include "text/dtype.h"
#include "text/json.h"
#include "text/names.h"

namespace memledger {
namespace graph_internal {

namespace {

constexpr size_t kTableRows = 50;
constexpr std::array<SavedRole, kRoleCount> kRoles = {
    SavedRole::kActivation, SavedRole::kParameter, SavedRole::kBuffer, SavedRole::kInput,
    SavedRole::kGradient,   SavedRole::kExcluded,  SavedRole::kRoot};

std::string number_or_null(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : "null";
}

std::string json_list(const std::vector<int64_t>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ",";
    out += std::to_string(values[i]);
  }
  return out + "]";
}

const char* json_bool(bool value) { return value ? "true" : "false"; }

std::string json_row(const SavedTensorRow& row) {
  std::string out = "{\"node\":" + json_string(row.node);
  out += ",\"sequence_number\":" + std::to_string(row.sequence_number);
  out += ",\"forward_thread\":" + std::to_string(row.forward_thread);
  out += ",\"slot\":" + json_string(row.slot);
  out += ",\"shape\":" + (row.shape ? json_list(*row.shape) : "null");
  out += ",\"dtype\":" + json_string(dtype_name(row.dtype));
  out += ",\"device\":" + json_string(row.device.str());
  out += ",\"storage_address\":" + std::to_string(row.storage_address);
  out += ",\"storage_id\":" + std::to_string(row.storage_id);
  out += ",\"storage_bytes\":" + number_or_null(row.storage_bytes);
  out += ",\"extent_bytes\":" + number_or_null(row.extent_bytes);
  out += std::string(",\"view\":") + json_bool(row.view);
  out += std::string(",\"counted\":") + json_bool(row.counted);
  out += ",\"shares_with\":" + (row.shares_with ? std::to_string(*row.shares_with) : "null");
  out += std::string(",\"in_place_modified\":") + json_bool(row.in_place_modified);
  out += std::string(",\"inferred\":") + json_bool(row.inferred);
  out += ",\"role\":" + json_string(to_string(row.role));
  return out + "}";
}

std::string human_shape(const std::optional<std::vector<int64_t>>& shape) {
  if (!shape) return "?";
  if (shape->empty()) return "(1,)";
  std::string out = "(";
  for (size_t i = 0; i < shape->size(); ++i) {
    if (i > 0) out += ", ";
    out += (*shape)[i] < 0 ? "?" : std::to_string((*shape)[i]);
  }
  return out + (shape->size() == 1 ? ",)" : ")");
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
          padded(dtype, 10) + padded(device, 7) + remarks;
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
  if (row.inferred) add("inferred");
  return out;
}

}  // namespace
}  // namespace graph_internal

std::string SavedTensors::to_json() const {
  using namespace graph_internal;  // NOLINT: the file's own helpers
  std::string out = "{\"schema\":\"memledger.saved_tensors/1\"";
  out += ",\"total_bytes\":" + std::to_string(total_bytes());
  out += std::string(",\"rounding\":") +
         (data_->rounding == Rounding::kRequested ? "\"requested\"" : "\"cuda_blocks\"");
  out += ",\"bytes\":{";
  for (const SavedRole role : kRoles) {
    if (role != kRoles.front()) out += ",";
    out += json_string(to_string(role)) + ":" + std::to_string(bytes(role));
  }
  out += "},\"nodes\":" + std::to_string(node_count());
  out += ",\"inferred_bytes\":" + std::to_string(inferred_bytes());
  out += ",\"unknown_rows\":" + std::to_string(unknown_rows());
  out += std::string(",\"complete\":") + json_bool(complete());
  out += ",\"rows\":[";
  for (size_t i = 0; i < data_->rows.size(); ++i) {
    if (i > 0) out += ",";
    out += json_row(data_->row(i));
  }
  out += "],\"unread_nodes\":[";
  for (size_t i = 0; i < data_->unread.size(); ++i) {
    const UnreadNode& node = data_->unread[i];
    if (i > 0) out += ",";
    out += "{\"node\":" + json_string(node.node);
    out += ",\"sequence_number\":" + std::to_string(node.sequence_number);
    out += ",\"forward_thread\":" + std::to_string(node.forward_thread);
    out += ",\"reason\":" + json_string(to_string(node.reason));
    out += ",\"detail\":" + json_string(node.detail) + "}";
  }
  return out + "]}";
}

std::ostream& operator<<(std::ostream& out, SavedRole role) { return out << to_string(role); }
std::ostream& operator<<(std::ostream& out, UnreadReason reason) {
  return out << to_string(reason);
}

std::ostream& operator<<(std::ostream& out, const SavedTensorRow& row) {
  out << table_name(row.node) << '.' << table_name(row.slot) << ": "
      << graph_internal::human_shape(row.shape) << ' ' << dtype_name(row.dtype) << " on "
      << row.device.str() << ", ";
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
  using namespace graph_internal;  // NOLINT: the file's own helpers
  const SavedTensorsData& data = *saved.data_;
  out << "Saved for backward: " << readable_size(saved.total_bytes()) << " (" << saved.total_bytes()
      << " bytes), " << data.rows.size() << " saved tensors, " << data.nodes.size() << " nodes\n";
  if (saved.inferred_bytes() > 0)
    out << "Of it inferred: " << readable_size(saved.inferred_bytes()) << '\n';
  for (const SavedRole role : kRoles) {
    if (role == SavedRole::kActivation || saved.bytes(role) == 0) continue;
    out << "Apart from it, " << to_string(role) << ": " << readable_size(saved.bytes(role)) << '\n';
  }

  std::vector<size_t> order(data.rows.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto weight = [&data](size_t i) {
    const CompactRow& row = data.rows[i];
    const bool activation = row.role == SavedRole::kActivation;
    // What counts first, then what is unknown, then what is apart or shared.
    return std::pair<int, int64_t>(activation && row.counted             ? 2
                                   : activation && row.storage_bytes < 0 ? 1
                                                                         : 0,
                                   row.counted ? row.storage_bytes : 0);
  };
  const auto before = [&weight](size_t a, size_t b) {
    const auto left = weight(a);
    const auto right = weight(b);
    return left != right ? left > right : a < b;
  };
  const size_t shown = std::min(order.size(), kTableRows);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                    before);

  if (shown > 0) {
    out << table_line("Bytes", "Node", "Slot", "Shape", "Dtype", "Device", "Remarks");
  }
  for (size_t k = 0; k < shown; ++k) {
    const SavedTensorRow row = data.row(order[k]);
    const std::string size = !row.storage_bytes ? "?"
                             : row.counted      ? readable_size(data.rounded(*row.storage_bytes))
                                                : readable_size(0);
    out << table_line(size, table_name(row.node), table_name(row.slot), human_shape(row.shape),
                      dtype_name(row.dtype), row.device.str(), remarks_on(data, row));
  }
  if (shown < order.size()) {
    int64_t rest = 0;
    for (size_t k = shown; k < order.size(); ++k) {
      const CompactRow& row = data.rows[order[k]];
      if (row.counted && row.role == SavedRole::kActivation) {
        rest += data.rounded(row.storage_bytes);
      }
    }
    out << "… and " << order.size() - shown << " more, " << readable_size(rest) << '\n';
  }

  size_t unread_shown = 0;
  for (const UnreadNode& node : data.unread) {
    if (unread_shown++ == kTableRows) {
      out << "… and " << data.unread.size() - kTableRows << " more nodes not read\n";
      break;
    }
    out << "Not read: " << node << '\n';
  }
  return out;
}

}  // namespace memledger
