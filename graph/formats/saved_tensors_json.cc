// SavedTensors as JSON.

#include <string>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "text/dtype.h"
#include "text/json.h"

namespace memledger {
namespace {

Json unless_zero(uint64_t value) { return value == 0 ? Json(nullptr) : Json(value); }

Json row_json(const SavedTensorRow& row) {
  return JsonRow()
      .add("node", row.node)
      .add("sequence_number", row.sequence_number)
      .add("forward_thread", row.forward_thread)
      .add("slot", row.slot)
      .add("shape", shape_json(row.shape))
      .add("dtype", or_null(known_dtype(row.dtype)))
      .add("device", row.device.has_value() ? Json(row.device->str()) : Json(nullptr))
      .add("storage_address", unless_zero(row.storage_address))
      .add("storage_id", unless_zero(row.storage_id))
      .add("storage_bytes", or_null(row.storage_bytes))
      .add("extent_bytes", or_null(row.extent_bytes))
      .add("offset_bytes", or_null(row.storage_offset_bytes))
      .add("view", row.view)
      .add("lent", row.lent)
      .add("counted", row.counted)
      .add("shares_with", or_null(row.shares_with))
      .add("in_place_modified", row.in_place_modified)
      .add("inferred", row.inferred)
      .add("role", to_string(row.role))
      .end();
}

Json unread_json(const UnreadNode& node) {
  return {{"node", node.node},
          {"sequence_number", node.sequence_number},
          {"forward_thread", node.forward_thread},
          {"reason", machine_name(node.reason)},
          {"detail", node.detail}};
}

}  // namespace

std::string SavedTensors::to_json() const {
  Json bytes_by_role = Json::object();
  for (const SavedRole role : graph_internal::kRoles) bytes_by_role[to_string(role)] = bytes(role);
  Json totals = {
      {"schema", "memledger.saved_tensors/2"},
      {"total_bytes", total_bytes()},
      {"rounding", data_->rounding == Rounding::kRequested ? "requested" : "cuda_blocks"},
      {"bytes", bytes_by_role},
      {"nodes", node_count()},
      {"inferred_bytes", inferred_bytes()},
      {"unknown_rows", unknown_rows()},
      {"complete", complete()}};

  std::string text = to_text(totals);
  text.back() = ',';
  text += "\"rows\":[";
  for (size_t i = 0; i < data_->rows.size(); ++i) {
    if (i > 0) text += ',';
    text += to_text(row_json(data_->row(i)));
  }
  text += "],\"unread_nodes\":[";
  for (size_t i = 0; i < data_->unread.size(); ++i) {
    if (i > 0) text += ',';
    text += to_text(unread_json(data_->unread[i]));
  }
  return text + "]}";
}

}  // namespace memledger
