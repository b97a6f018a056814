#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>

#include "reporter/formats/report_format.h"
#include "reporter/report.h"
#include "text/json.h"

namespace memledger {
namespace {

constexpr int kSchemaVersion = 2;

std::string_view external_text(ExternalMemory external) {
  switch (external) {
    case ExternalMemory::kMappedFile:
      return "mapped_file";
    case ExternalMemory::kSharedMemory:
      return "shared_memory";
    case ExternalMemory::kPinned:
      return "pinned";
    case ExternalMemory::kProgram:
      break;
  }
  return "program";
}

std::string number(std::optional<int64_t> value) {
  return value.has_value() ? std::to_string(*value) : "null";
}

std::string row_json(const ReportRow& row) {
  std::string json =
      fmt::format("{{\"kind\":{},\"name\":{},\"role\":{},\"anonymous\":{},\"storage_id\":{}",
                  json_string(to_string(row.kind)), json_string(row.name),
                  json_string(to_string(row.role)), row.anonymous, row.storage_id);
  json += ",\"bytes\":" + number(row.nbytes);
  if (!row.owner.empty()) json += ",\"owner\":" + json_string(row.owner);
  if (row.kind == RowKind::kExternal) {
    json += fmt::format(",\"external_bytes\":{},\"external\":{}", row.external_bytes,
                        json_string(external_text(row.external)));
    if (!row.mapped_from.empty()) json += ",\"mapped_from\":" + json_string(row.mapped_from);
  }
  if (row.kind == RowKind::kNotFollowed || row.kind == RowKind::kMeta || row.kind == RowKind::kLent)
    json += ",\"claimed_bytes\":" + number(row.claimed_bytes);
  json += row.shape.has_value() ? fmt::format(",\"shape\":[{}]", fmt::join(*row.shape, ","))
                                : ",\"shape\":null";
  json += row.dtype.has_value() ? ",\"dtype\":" + json_string(dtype_text(row.dtype))
                                : ",\"dtype\":null";
  json += fmt::format(",\"offset_bytes\":{},\"extent_bytes\":{}", row.storage_offset_bytes,
                      row.extent_bytes);
  json += ",\"more_references\":" + number(row.more_references);
  json += ",\"visible_bytes\":" + number(row.visible_bytes);
  json += fmt::format(",\"module\":{},\"is_output\":{}", json_string(row.module), row.is_output);
  json += fmt::format(
      ",\"op\":{},\"autograd_node\":{},\"forward_op\":{},\"forward_label\":{},\"label\":{},"
      "\"phase\":{},\"phase_inferred\":{},"
      "\"adopted\":{},\"where\":{}",
      json_string(row.op), json_string(row.autograd_node), json_string(row.forward_op),
      json_string(row.forward_label), json_string(row.label), json_string(to_string(row.phase)),
      row.phase_inferred, row.adopted, json_string(row.where));
  json += fmt::format(",\"used_as_parameter\":{},\"thread\":{}", row.used_as_parameter,
                      row.thread == 0 ? "null" : std::to_string(row.thread));
  json += row.stream.has_value() ? fmt::format(",\"stream\":{},\"pool\":[{},{}]}}", *row.stream,
                                               row.pool.first, row.pool.second)
                                 : ",\"stream\":null,\"pool\":null}";
  return json;
}

}  // namespace

std::string Report::to_json() const {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  std::string json = fmt::format("{{\"schema\":\"memledger.report\",\"version\":{},\"time_ms\":{},",
                                 kSchemaVersion, seconds);
  json += fmt::format(
      "\"of_peak\":{},\"complete\":{},\"unseen_before_tracking\":{},\"tracking_was_off\":{},",
      of_peak, complete, unseen_before_tracking, tracking_was_off);
  json += fmt::format("\"pinned_in_use_bytes\":{},\"pinned_reserved_bytes\":{},",
                      number(pinned_in_use_bytes), number(pinned_reserved_bytes));
  if (process.has_value()) {
    json += fmt::format(
        "\"process\":{{\"resident_bytes\":{},\"anonymous_bytes\":{},\"file_bytes\":{},\"shared_"
        "bytes\":{}}},",
        process->resident_bytes, process->anonymous_bytes, process->file_bytes,
        process->shared_bytes);
  } else {
    json += "\"process\":null,";
  }
  json += "\"modelled_workspaces\":[";
  for (size_t i = 0; i < modelled_workspaces.size(); ++i) {
    const ModelledWorkspace& workspace = modelled_workspaces[i];
    json += fmt::format("{}{{\"name\":{},\"largest_bytes\":{},\"requests\":{}}}", i == 0 ? "" : ",",
                        json_string(workspace.name), workspace.largest_bytes, workspace.requests);
  }
  json += "],";
  json += fmt::format(
      "\"hooks\":{{\"unknown_frees\":{},\"dropped_records\":{},\"swallowed_exceptions\":{}}},"
      "\"devices\":[",
      health.unknown_frees, health.dropped_records, health.swallowed_exceptions);
  for (size_t d = 0; d < devices.size(); ++d) {
    const DeviceReport& device = devices[d];
    json += fmt::format(
        "{}{{\"device\":{},\"followed\":{},\"total_bytes\":{},\"allocator_bytes\":{},\"unexplained_"
        "bytes\":{},\"adopted_bytes\":{"
        "},"
        "\"external_bytes\":{},\"would_be_bytes\":{},\"elements\":{},\"bytes_by_role\":{{",
        d == 0 ? "" : ",", json_string(device.device.str()), device.followed,
        number(device.used_bytes()), number(device.allocator_bytes),
        number(device.unexplained_bytes), device.adopted_bytes, device.external_bytes,
        device.would_be_bytes, device.elements);
    for (size_t role = 0; role < device.bytes_by_role.size(); ++role) {
      json +=
          fmt::format("{}{}:{}", role == 0 ? "" : ",",
                      json_string(to_string(static_cast<Role>(role))), device.bytes_by_role[role]);
    }
    json += fmt::format(
        "}},\"allocator_moved\":{},\"requested_bytes\":{},\"unexplained_requested_bytes\":{},"
        "\"awaited_bytes\":{},\"reserved_"
        "bytes\":{},",
        device.allocator_moved, number(device.requested_bytes),
        number(device.unexplained_requested_bytes), device.awaited_bytes,
        number(device.reserved_bytes));
    json +=
        fmt::format("\"cached_free_bytes\":{},\"largest_free_block\":{},\"fragmented_bytes\":{},",
                    number(device.cached_free_bytes), number(device.largest_free_block),
                    number(device.fragmented_bytes));
    json += fmt::format(
        "\"outside_allocator_bytes\":{},\"device_used_bytes\":{},\"device_total_bytes\":{},",
        number(device.outside_allocator_bytes), number(device.device_used_bytes),
        number(device.device_total_bytes));
    json += fmt::format(
        "\"named_bytes\":{},\"anonymous_bytes\":{},\"mapped_bytes\":{},\"shared_bytes\":{},"
        "\"items\":[",
        device.named_bytes, device.anonymous_bytes, device.mapped_bytes, device.shared_bytes);
    for (size_t i = 0; i < device.items.size(); ++i) {
      const ReportItem& item = device.items[i];
      json += fmt::format("{}{{\"kind\":{},\"name\":{},\"bytes\":{},\"count\":{}}}",
                          i == 0 ? "" : ",", json_string(to_string(item.kind)),
                          json_string(item.name), item.bytes, item.count);
    }
    json += "],\"rows\":[";
    for (size_t r = 0; r < device.rows.size(); ++r)
      json += (r == 0 ? "" : ",") + row_json(device.rows[r]);
    json += "]}";
  }
  return json + "]}";
}

}  // namespace memledger
