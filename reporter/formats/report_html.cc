#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reporter/formats/html_template.h"
#include "reporter/formats/report_format.h"
#include "reporter/report.h"
#include "text/html.h"
#include "text/json.h"
#include "text/names.h"

namespace memledger {
namespace {

// Texts that many rows share, each once.
class Texts {
 public:
  Texts() { place_of(""); }

  size_t place_of(const std::string& text) {
    const auto [found, is_new] = places_.try_emplace(text, places_.size());
    if (is_new) json_ += (json_.empty() ? "" : ",") + json_string(text);
    return found->second;
  }
  const std::string& json() const { return json_; }

 private:
  std::unordered_map<std::string, size_t> places_;
  std::string json_;
};

std::string size_or_unknown(std::optional<int64_t> bytes) {
  return bytes.has_value() ? readable_size(*bytes) : "?";
}

std::string note(const ReportRow& row) {
  switch (row.kind) {
    case RowKind::kExternal:
      return fmt::format("external{}{}, {}", row.mapped_from.empty() ? "" : " ", row.mapped_from,
                         readable_size(row.external_bytes));
    case RowKind::kUnknown:
      return "cannot be looked into";
    case RowKind::kNotFollowed:
      return "not followed, its storage says " + size_or_unknown(row.claimed_bytes);
    case RowKind::kMeta:
      return "would be " + size_or_unknown(row.claimed_bytes);
    case RowKind::kLent:
      return "lent back (Courtesy): " + size_or_unknown(row.claimed_bytes);
    default:
      break;
  }
  if (row.visible_bytes.has_value() && row.nbytes.has_value() && *row.visible_bytes < *row.nbytes)
    return "a view of " + readable_size(*row.visible_bytes) + ";";
  return "";
}

std::string tiles_json(const Report& report, const DeviceReport& device) {
  std::vector<std::pair<std::string, std::string>> tiles;
  tiles.emplace_back("tensors", size_or_unknown(device.used_bytes()));
  tiles.emplace_back(report.of_peak ? "peak of requested bytes" : "allocated",
                     size_or_unknown(device.allocator_bytes));
  for (const ReportItem& item : device.items)
    tiles.emplace_back(item.name.empty() ? std::string(to_string(item.kind)) : item.name,
                       readable_size(item.bytes));
  tiles.emplace_back("named", readable_size(device.named_bytes));
  tiles.emplace_back("anonymous", readable_size(device.anonymous_bytes));
  if (device.reserved_bytes.has_value()) {
    tiles.emplace_back("cached, free", size_or_unknown(device.cached_free_bytes));
    tiles.emplace_back("reserved", readable_size(*device.reserved_bytes));
    tiles.emplace_back("context, libraries, others",
                       size_or_unknown(device.outside_allocator_bytes));
    tiles.emplace_back("used on the device", size_or_unknown(device.device_used_bytes));
  }
  if (device.external_bytes > 0)
    tiles.emplace_back("external", readable_size(device.external_bytes));
  if (device.device.is_cpu() && report.process.has_value())
    tiles.emplace_back("resident in the process", readable_size(report.process->resident_bytes));
  if (device.device.is_cpu() && report.unseen_before_tracking)
    tiles.emplace_back("before tracking", "?");
  if (device.device.is_cpu() && report.tracking_was_off)
    tiles.emplace_back("while tracking was off", "?");
  std::string json = fmt::format("[{},{},{}]", json_string("unexplained"),
                                 json_string(size_or_unknown(device.unexplained_bytes)),
                                 device.unexplained_bytes.value_or(0) != 0);
  for (const auto& [title, value] : tiles)
    json += fmt::format(",[{},{}]", json_string(title), json_string(value));
  return json;
}

// Not of what made it, by which the map is divided.
std::string note(const ReportRow& row, bool with_thread) {
  std::string text = note(row);
  if (row.kind != RowKind::kStorage) return text;
  std::string place = place_text(row);
  if (with_thread && row.thread != 0)
    place += fmt::format("{}thread {}", place.empty() ? "" : ", ", row.thread);
  if (!place.empty()) text += (text.empty() ? "" : " ") + place + ";";
  return text;
}

void add_row(std::string& json, const ReportRow& row, bool with_thread, Texts& texts) {
  // The order of ROW in the page.
  fmt::format_to(std::back_inserter(json), "[{},{},{},{},{},{},{},{},{},{},{},{},{}]",
                 static_cast<int>(row.kind), json_string(row.name), static_cast<int>(row.role),
                 row.nbytes.has_value() ? std::to_string(*row.nbytes) : "null",
                 texts.place_of(table_shape(row.shape)), texts.place_of(dtype_text(row.dtype)),
                 texts.place_of(row.module), row.is_output ? 1 : 0, texts.place_of(producer(row)),
                 row.owner.empty() ? "null" : json_string(row.owner), row.storage_offset_bytes,
                 row.extent_bytes, texts.place_of(note(row, with_thread)));
}

}  // namespace

std::string Report::to_html() const {
  Texts texts;
  std::string json = "{\"roles\":[";
  for (size_t role = 0; role <= static_cast<size_t>(Role::kTensor); ++role)
    json += (role == 0 ? "" : ",") + json_string(to_string(static_cast<Role>(role)));
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  json += "],\"title\":" +
          json_string(fmt::format("{}{:%Y-%m-%d %H:%M:%S} UTC", of_peak ? "at the peak, read " : "",
                                  fmt::gmtime(seconds)));
  json += ",\"devices\":[";
  for (size_t d = 0; d < devices.size(); ++d) {
    const DeviceReport& device = devices[d];
    json += fmt::format("{}{{\"device\":{},\"tiles\":[{}],\"rows\":[", d == 0 ? "" : ",",
                        json_string(device.device.str()), tiles_json(*this, device));
    const bool with_threads = has_several_threads(device);
    for (size_t r = 0; r < device.rows.size(); ++r) {
      if (r > 0) json += ",\n";
      add_row(json, device.rows[r], with_threads, texts);
    }
    json += "]}";
  }
  json += "],\"texts\":[" + texts.json() + "]}";
  return kPageHead + json_for_script(json) + kPageTail;
}

}  // namespace memledger
