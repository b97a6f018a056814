#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reporter/formats/row_json.h"
#include "reporter/report.h"
#include "text/json.h"

namespace memledger {
namespace {

Json process_json(const std::optional<ProcessMemory>& process) {
  if (!process.has_value()) return nullptr;
  return {{"resident_bytes", process->resident_bytes},
          {"anonymous_bytes", process->anonymous_bytes},
          {"file_bytes", process->file_bytes},
          {"shared_bytes", process->shared_bytes}};
}

Json workspaces_json(const std::vector<ModelledWorkspace>& workspaces) {
  Json list = Json::array();
  for (const ModelledWorkspace& workspace : workspaces) {
    list.push_back({{"name", workspace.name},
                    {"largest_bytes", workspace.largest_bytes},
                    {"requests", workspace.requests}});
  }
  return list;
}

Json hooks_json(const HookHealth& health) {
  return {{"unknown_frees", health.unknown_frees},
          {"dropped_records", health.dropped_records},
          {"swallowed_exceptions", health.swallowed_exceptions}};
}

Json roles_json(const std::vector<int64_t>& bytes_by_role) {
  Json roles = Json::object();
  for (size_t role = 0; role < bytes_by_role.size(); ++role)
    roles[std::string(machine_name(static_cast<Role>(role)))] = bytes_by_role[role];
  return roles;
}

Json items_json(const std::vector<ReportItem>& items) {
  Json list = Json::array();
  for (const ReportItem& item : items) {
    list.push_back({{"kind", to_string(item.kind)},
                    {"name", item.name},
                    {"bytes", item.bytes},
                    {"count", item.count}});
  }
  return list;
}

// All members of a device but its rows.
Json device_json(const DeviceReport& device) {
  return {{"device", device.device.str()},
          {"followed", device.followed},
          {"total_bytes", device.total_bytes},
          {"used_bytes", or_null(device.used_bytes())},
          {"allocator_bytes", or_null(device.allocator_bytes)},
          {"unexplained_bytes", or_null(device.unexplained_bytes)},
          {"adopted_bytes", device.adopted_bytes},
          {"external_bytes", device.external_bytes},
          {"would_be_bytes", device.would_be_bytes},
          {"elements", device.elements},
          {"bytes_by_role", roles_json(device.bytes_by_role)},
          {"allocator_moved", device.allocator_moved},
          {"requested_bytes", or_null(device.requested_bytes)},
          {"unexplained_requested_bytes", or_null(device.unexplained_requested_bytes)},
          {"awaited_bytes", or_null(device.awaited_bytes)},
          {"reserved_bytes", or_null(device.reserved_bytes)},
          {"cached_free_bytes", or_null(device.cached_free_bytes)},
          {"largest_free_block_bytes", or_null(device.largest_free_block)},
          {"fragmented_bytes", or_null(device.fragmented_bytes)},
          {"outside_allocator_bytes", or_null(device.outside_allocator_bytes)},
          {"device_used_bytes", or_null(device.device_used_bytes)},
          {"device_total_bytes", or_null(device.device_total_bytes)},
          {"named_bytes", device.named_bytes},
          {"anonymous_bytes", device.anonymous_bytes},
          {"mapped_bytes", device.mapped_bytes},
          {"shared_bytes", device.shared_bytes},
          {"items", items_json(device.items)}};
}

// All members of a report but its devices.
Json head_json(const Report& report) {
  const auto time_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(report.time.time_since_epoch()).count();
  return {{"schema", "memledger.report/2"},
          {"time_ms", time_ms},
          {"of_peak", report.of_peak},
          {"complete", report.complete},
          {"unseen_before_tracking", report.unseen_before_tracking},
          {"tracking_was_off", report.tracking_was_off},
          {"names_only", report.names_only},
          {"pinned_in_use_bytes", or_null(report.pinned_in_use_bytes)},
          {"pinned_reserved_bytes", or_null(report.pinned_reserved_bytes)},
          {"process", process_json(report.process)},
          {"modelled_workspaces", workspaces_json(report.modelled_workspaces)},
          {"hooks", hooks_json(report.health)}};
}

// Returns the object's text up to where a list, its last member, begins: {…,"key":[
std::string with_open_list(const Json& object, std::string_view key) {
  std::string text = to_text(object);
  text.pop_back();
  return text.append(",\"").append(key).append("\":[");
}

void append_rows(std::string& text, const std::vector<ReportRow>& rows) {
  std::string_view separator;
  for (const ReportRow& row : rows) {
    JsonRow json;
    add_row_members(json, row);
    text.append(separator).append(to_text(json.end()));
    separator = ",";
  }
}

}  // namespace

std::string Report::to_json() const {
  std::string text = with_open_list(head_json(*this), "devices");
  std::string_view separator;
  for (const DeviceReport& device : devices) {
    text.append(separator).append(with_open_list(device_json(device), "rows"));
    append_rows(text, device.rows);
    text += "]}";
    separator = ",";
  }
  return text + "]}";
}

}  // namespace memledger
