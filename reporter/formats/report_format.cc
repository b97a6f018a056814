#include "reporter/formats/report_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cstdlib>

#include "text/dtype.h"
#include "text/shape.h"

namespace memledger {

std::string table_shape(const std::optional<c10::DimVector>& shape) {
  return shape.has_value() && shape->empty() ? "(1,)" : shape_text(shape);
}

std::string range_text(int64_t offset_bytes, int64_t extent_bytes) {
  return fmt::format("offset {}, extent {}", offset_bytes, extent_bytes);
}

std::string place_text(const ReportRow& row) {
  std::string text;
  if (row.stream.value_or(0) != 0) text = fmt::format("stream {:#x}", *row.stream);
  if (row.pool != std::pair<uint64_t, uint64_t>{0, 0}) {
    text += fmt::format("{}private pool ({}, {})", text.empty() ? "" : ", ", row.pool.first,
                        row.pool.second);
  }
  return text;
}

bool has_several_threads(const DeviceReport& device) {
  uint32_t first = 0;
  for (const ReportRow& row : device.rows) {
    if (row.kind != RowKind::kStorage || row.thread == 0 || row.phase == Phase::kBackward) continue;
    if (first == 0) first = row.thread;
    if (row.thread != first) return true;
  }
  return false;
}

std::string producer(const ReportRow& row) {
  if (row.adopted) return "before tracking";
  std::string where(row.label);
  const auto add = [&where](std::string_view part) {
    if (!part.empty()) where.append(where.empty() ? "" : ", ").append(part);
  };
  if (row.is_output) add("output of " + row.module);
  if (row.autograd_node.empty() || row.forward_op.empty()) {
    add(row.autograd_node);
  } else {
    std::string node(row.autograd_node);
    node.append(" of ").append(row.forward_op);
    if (!row.forward_label.empty() && row.forward_label != row.label)
      node.append(" in ").append(row.forward_label);
    add(node);
  }
  if (row.phase != Phase::kOther)
    add(std::string(to_string(row.phase)) + (row.phase_inferred ? " (inferred)" : ""));
  std::string text(row.op);
  if (!where.empty()) text += (text.empty() ? "[" : " [") + where + "]";
  if (!row.where.empty()) text += (text.empty() ? "at " : " at ") + row.where;
  return text;
}

}  // namespace memledger
