// SnapshotDiff as the log shows it, and as JSON.

#include <ostream>
#include <string_view>

#include "text/dtype.h"
#include "text/json.h"
#include "text/names.h"
#include "text/shape.h"
#include "tracker/log/log_text.h"
#include "tracker/snapshot_diff.h"

namespace memledger {
namespace {

bool is_of_tensors(const DiffRow& row) {
  return row.kind == StorageKind::kTensor || row.kind == StorageKind::kScratch;
}

int64_t bytes_of_tensors(const std::vector<DiffRow>& rows, char sign) {
  int64_t bytes = 0;
  for (const DiffRow& row : rows) {
    if (row.sign == sign && is_of_tensors(row)) bytes += row.bytes;
  }
  return bytes;
}

std::string in_brackets(const std::string& label) {
  return label.empty() ? "" : " [" + printable(label) + "]";
}

std::string location_text(const SnapshotDiff& diff) {
  return printable(base_name(diff.where.file())) + " line " + std::to_string(diff.where.line()) +
         ": " + printable(diff.where.function()) + in_brackets(diff.label);
}

std::string last_column(const DiffRow& row) {
  if (row.names.empty()) {
    const std::string& maker = row.op.empty() ? row.autograd_node : row.op;
    return (row.adopted     ? "before tracking"
            : maker.empty() ? "?"
                            : printable(maker)) +
           in_brackets(row.label);
  }
  std::string text = printable(row.names.front());
  if (row.names.size() > 1) text += " …";
  if (row.sign == '+' && row.op.rfind("aten::resize", 0) == 0) text += " (resized)";
  return row.adopted ? text + " (before tracking)" : text;
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

Json row_json(const DiffRow& row) {
  return {{"sign", std::string(1, row.sign)},
          {"count", row.count},
          {"bytes", row.bytes},
          {"shape", shape_json(row.shape)},
          {"dtype", or_null(known_dtype(row.dtype))},
          {"role", machine_name(row.role)},
          {"storage_kind", machine_name(row.kind)},
          {"names", row.names},
          {"op", row.op},
          {"autograd_node", row.autograd_node},
          {"label", row.label},
          {"adopted", row.adopted}};
}

}  // namespace

int64_t SnapshotDiff::born_bytes() const { return bytes_of_tensors(rows, '+'); }

int64_t SnapshotDiff::died_bytes() const { return bytes_of_tensors(rows, '-'); }

std::string to_string(const DiffRow& row) {
  using namespace log_text;
  return row.sign + std::string(kColumnEnd) + std::to_string(row.count) + kSize +
         padded(shape_text(row.shape), kSizeWidth) + kColumnEnd + kMemory + memory(row.bytes) +
         kMemoryUnit + kColumnEnd + padded(std::string(role_text(row)), kRoleWidth) + kColumnEnd +
         dtype_text(row.dtype) + kColumnEnd + last_column(row);
}

std::string SnapshotDiff::at_line() const {
  return log_text::kAt + log_text::padded(location_text(*this), log_text::kLocationWidth) + ' ' +
         log_text::totals(tensor_bytes, allocated_bytes);
}

std::string SnapshotDiff::to_json() const {
  const auto time_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const bool somewhere = where.line() > 0;
  Json json = {{"schema", "memledger.snapshot_diff/2"},
               {"time_ms", time_ms},
               {"device", device.str()},
               {"file", somewhere ? Json(where.file()) : Json(nullptr)},
               {"line", somewhere ? Json(where.line()) : Json(nullptr)},
               {"function", somewhere ? Json(where.function()) : Json(nullptr)},
               {"label", label},
               {"tensor_bytes", or_null(tensor_bytes)},
               {"allocated_bytes", or_null(allocated_bytes)},
               {"born_bytes", born_bytes()},
               {"died_bytes", died_bytes()},
               {"from_snapshot", from_snapshot},
               {"unseen_before_tracking", unseen_before_tracking},
               {"tracking_was_off", tracking_was_off},
               {"hooks",
                {{"unknown_frees", health.unknown_frees},
                 {"dropped_records", health.dropped_records},
                 {"swallowed_exceptions", health.swallowed_exceptions}}},
               {"unread", unread}};
  if (!unread_gradients.empty()) json["unread_gradients"] = unread_gradients;
  std::string text = to_text(json);
  text.back() = ',';  // the rows may be many: they are added as text
  text += "\"rows\":[";
  for (const DiffRow& row : rows) {
    if (&row != &rows.front()) text += ',';
    text += to_text(row_json(row));
  }
  return text + "]}";
}

std::ostream& operator<<(std::ostream& out, const DiffRow& row) { return out << to_string(row); }

std::ostream& operator<<(std::ostream& out, const SnapshotDiff& diff) {
  for (const DiffRow& row : diff.rows) out << row << '\n';
  if (!diff.rows.empty()) out << '\n';
  return out << diff.at_line() << '\n';
}

}  // namespace memledger
