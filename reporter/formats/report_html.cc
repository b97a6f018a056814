#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "reporter/formats/html_template.h"
#include "reporter/formats/report_format.h"
#include "reporter/formats/report_page.h"
#include "reporter/report.h"
#include "text/html.h"
#include "text/json.h"
#include "text/shape.h"

namespace memledger {
namespace {

// Texts that many rows share, each once.
class Texts {
 public:
  Texts() { index_of(""); }

  size_t index_of(const std::string& text) {
    const auto [entry, is_new] = indices_.try_emplace(text, indices_.size());
    if (is_new) json_.push_back(text);
    return entry->second;
  }
  const Json& json() const { return json_; }

 private:
  std::unordered_map<std::string, size_t> indices_;
  Json json_ = Json::array();
};

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
    case RowKind::kUnread:
      return "not read beside other threads (training_paused); its bytes are in an anonymous row";
    default:
      break;
  }
  if (row.visible_bytes.has_value() && row.nbytes.has_value() && *row.visible_bytes < *row.nbytes)
    return "a view of " + readable_size(*row.visible_bytes) + ";";
  return row.held_by.empty() ? "" : "held by " + row.held_by + ";";
}

Json tiles_json(const Report& report, const DeviceReport& device) {
  Json tiles = Json::array();
  const auto add = [&tiles](std::string_view title, std::string value) {
    tiles.push_back({title, std::move(value)});
  };
  tiles.push_back({"unexplained", size_or_unknown(device.unexplained_bytes),
                   device.unexplained_bytes.value_or(0) != 0});
  add("tensors", size_or_unknown(device.used_bytes()));
  add(report.of_peak ? "peak of requested bytes" : "allocated",
      size_or_unknown(device.allocator_bytes));
  for (const ReportItem& item : device.items)
    add(item.name.empty() ? to_string(item.kind) : item.name, readable_size(item.bytes));
  add("named", readable_size(device.named_bytes));
  add("anonymous", readable_size(device.anonymous_bytes));
  if (device.reserved_bytes.has_value()) {
    add("cached, free", size_or_unknown(device.cached_free_bytes));
    add("reserved", readable_size(*device.reserved_bytes));
    add("context, libraries, others", size_or_unknown(device.outside_allocator_bytes));
    add("used on the device", size_or_unknown(device.device_used_bytes));
  }
  if (device.external_bytes > 0) add("external", readable_size(device.external_bytes));
  if (device.device.is_cpu() && report.process.has_value())
    add("resident in the process", readable_size(report.process->resident_bytes));
  if (device.device.is_cpu() && report.unseen_before_tracking) add("before tracking", "?");
  if (device.device.is_cpu() && report.tracking_was_off) add("while tracking was off", "?");
  if (report.names_only) add("shapes and layers (detail=names)", "?");
  return tiles;
}

// Returns everything but the producer, which has a column of its own.
std::string note(const ReportRow& row, bool with_thread) {
  std::string text = note(row);
  if (row.kind != RowKind::kStorage) return text;
  std::string stream_and_thread = place_text(row);
  if (with_thread && row.thread != 0)
    stream_and_thread +=
        fmt::format("{}thread {}", stream_and_thread.empty() ? "" : ", ", row.thread);
  if (!stream_and_thread.empty()) text += (text.empty() ? "" : " ") + stream_and_thread + ";";
  return text;
}

// In the order of ROW in the page.
std::string row_text(const ReportRow& row, bool with_thread, std::string_view use, Texts& texts) {
  Json json = Json::array();
  json.get_ref<Json::array_t&>().reserve(16);
  json.push_back(static_cast<int>(row.kind));
  json.push_back(row.name);
  json.push_back(static_cast<int>(row.role));
  json.push_back(or_null(row.nbytes));
  json.push_back(texts.index_of(shape_text(row.shape)));
  json.push_back(texts.index_of(dtype_text(row.dtype)));
  json.push_back(texts.index_of(row.module));
  json.push_back(row.is_output ? 1 : 0);
  json.push_back(texts.index_of(producer(row)));
  json.push_back(row.owner.empty() ? Json(nullptr) : Json(row.owner));
  json.push_back(or_null(row.storage_offset_bytes));
  json.push_back(or_null(row.extent_bytes));
  json.push_back(texts.index_of(note(row, with_thread)));
  json.push_back(texts.index_of(std::string(use)));
  return to_text(json);
}

std::string section_text(const PageSection& section, Texts& texts) {
  const DeviceReport& device = *section.device;
  std::string text = "{\"device\":" + json_string(section.name) +
                     ",\"tiles\":" + to_text(tiles_json(*section.report, device)) + ",\"rows\":[";
  const bool with_threads = has_several_threads(device);
  std::string_view separator;
  for (size_t i = 0; i < device.rows.size(); ++i) {
    const std::string_view use = section.uses.empty() ? "" : section.uses[i];
    text.append(separator).append(row_text(device.rows[i], with_threads, use, texts));
    separator = ",\n";
  }
  return text + "]}";
}

std::string title(const Report& report) {
  return fmt::format("{}{:%Y-%m-%d %H:%M:%S} UTC", report.of_peak ? "at the peak, read " : "",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(report.time)));
}

Json role_names() {
  Json names = Json::array();
  for (size_t role = 0; role <= static_cast<size_t>(Role::kTensor); ++role)
    names.push_back(to_string(static_cast<Role>(role)));
  return names;
}

Json curves_json(const std::vector<PageCurve>& curves) {
  Json list = Json::array();
  for (const PageCurve& curve : curves) {
    Json points = Json::array();
    for (const PageCurve::Point& point : curve.points)
      points.push_back({point.step, point.bytes, point.peak_bytes});
    list.push_back({{"name", curve.name}, {"points", std::move(points)}});
  }
  return list;
}

}  // namespace

std::string report_page(std::string_view title, std::string_view introduction,
                        const std::vector<PageCurve>& curves,
                        const std::vector<PageSection>& sections) {
  Texts texts;
  std::string json = "{\"roles\":" + to_text(role_names()) + ",\"title\":" + json_string(title) +
                     ",\"introduction\":" + json_string(introduction) +
                     ",\"curves\":" + to_text(curves_json(curves)) + ",\"devices\":[";
  std::string_view separator;
  for (const PageSection& section : sections) {
    json.append(separator).append(section_text(section, texts));
    separator = ",";
  }
  json += "],\"texts\":" + to_text(texts.json()) + "}";
  return kPageHead + json_for_script(json) + kPageTail;
}

std::string Report::to_html() const {
  std::vector<PageSection> sections;
  for (const DeviceReport& device : devices)
    sections.push_back({device.device.str(), this, &device, {}});
  return report_page(title(*this), "", {}, sections);
}

}  // namespace memledger
