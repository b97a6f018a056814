#include "reporter/formats/row_json.h"

#include "reporter/formats/report_format.h"
#include "text/dtype.h"

namespace memledger {

void add_row_members(JsonRow& json, const ReportRow& row) {
  json.add("kind", to_string(row.kind))
      .add("name", row.name)
      .add("role", machine_name(row.role))
      .add("storage_kind", machine_name(row.storage_kind))
      .add("anonymous", row.anonymous)
      .add("storage_id", or_null(known_storage_id(row)))
      .add("bytes", or_null(row.nbytes));
  if (!row.owner.empty()) json.add("owner", row.owner);
  if (!row.held_by.empty()) json.add("held_by", row.held_by);
  if (row.kind == RowKind::kExternal) {
    json.add("external_bytes", row.external_bytes).add("external", machine_name(row.external));
    if (!row.mapped_from.empty()) json.add("mapped_from", row.mapped_from);
  }
  if (row.kind == RowKind::kNotFollowed || row.kind == RowKind::kMeta || row.kind == RowKind::kLent)
    json.add("claimed_bytes", or_null(row.claimed_bytes));
  json.add("shape", shape_json(row.shape))
      .add("dtype", or_null(known_dtype(row.dtype)))
      .add("offset_bytes", or_null(row.storage_offset_bytes))
      .add("extent_bytes", or_null(row.extent_bytes))
      .add("more_references", or_null(row.more_references))
      .add("visible_bytes", or_null(row.visible_bytes))
      .add("module", row.module)
      .add("is_output", row.is_output)
      .add("op", row.op)
      .add("autograd_node", row.autograd_node)
      .add("recomputed", row.recomputed)
      .add("checkpointed", row.checkpointed)
      .add("forward_op", row.forward_op)
      .add("forward_label", row.forward_label)
      .add("label", row.label)
      .add("phase", or_null(known_phase(row)))
      .add("phase_inferred", row.phase_inferred)
      .add("adopted", row.adopted)
      .add("where", row.where.empty() ? Json(nullptr) : Json(row.where))
      .add("called_from", row.called_from.empty() ? Json(nullptr) : Json(row.called_from))
      .add("used_as_parameter", row.used_as_parameter)
      .add("requires_grad", or_null(row.requires_grad))
      .add("thread", row.thread == 0 ? Json(nullptr) : Json(row.thread))
      .add("stream", or_null(row.stream))
      .add("pool",
           row.stream.has_value() ? Json::array({row.pool.first, row.pool.second}) : Json(nullptr));
}

}  // namespace memledger
