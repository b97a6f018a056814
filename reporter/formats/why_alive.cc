#include "reporter/why_alive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ostream>
#include <string_view>

#include "reporter/formats/report_format.h"
#include "reporter/formats/row_json.h"
#include "text/dtype.h"
#include "text/json.h"
#include "text/names.h"
#include "text/shape.h"

namespace memledger {
namespace {

std::string count(std::optional<int64_t> value) {
  return value.has_value() ? std::to_string(*value) : "?";
}

std::string plural(int64_t value, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", value, value == 1 ? one : more);
}

// Leaves out the middle of a long path.
std::string path_text(const std::vector<std::string>& path) {
  constexpr size_t kEnds = 4, kLongestPath = 1000;
  if (path.size() <= 2 * kEnds + 1)
    return table_name(fmt::format("{}", fmt::join(path, " > ")), kLongestPath);
  const auto ends = static_cast<std::ptrdiff_t>(kEnds);
  return table_name(
      fmt::format("{} > … {} more … > {}", fmt::join(path.begin(), path.begin() + ends, " > "),
                  path.size() - 2 * kEnds, fmt::join(path.end() - ends, path.end(), " > ")),
      kLongestPath);
}

std::string bytes_text(const ReportRow& row) {
  switch (row.kind) {
    case RowKind::kExternal:
      return readable_size(row.external_bytes) + ", not LibTorch's memory";
    case RowKind::kMeta:
      return "0.00B, a meta tensor";
    case RowKind::kLent:
      return "0.00B, lent back (Courtesy)";
    default:
      return row.nbytes.has_value() ? readable_size(*row.nbytes) : "?";
  }
}

Json names_json(const std::vector<NamedReference>& names) {
  Json list = Json::array();
  for (const NamedReference& name : names) {
    list.push_back({{"name", name.name},
                    {"role", machine_name(name.role)},
                    {"same_tensor", name.same_tensor},
                    {"offset_bytes", or_null(name.offset_bytes)},
                    {"extent_bytes", or_null(name.extent_bytes)}});
  }
  return list;
}

Json saved_json(const std::vector<SavedReference>& saved) {
  Json list = Json::array();
  for (const SavedReference& reference : saved) {
    list.push_back({{"slot", reference.slot}, {"root", reference.root}, {"path", reference.path}});
  }
  return list;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const NamedReference& name) {
  out << fmt::format("{} [{}]", table_name(name.name), to_string(name.role));
  return name.same_tensor ? out : out << ", " << range_text(name.offset_bytes, name.extent_bytes);
}

std::ostream& operator<<(std::ostream& out, const SavedReference& saved) {
  return out << table_name(saved.slot) << ", from " << table_name(saved.root) << ": "
             << (saved.path.empty() ? "?" : path_text(saved.path));
}

std::ostream& operator<<(std::ostream& out, const WhyAlive& why) {
  const ReportRow& row = why.row;
  out << fmt::format("{}: {} {} on {}, {}, {}\n", table_name(row.name), shape_text(row.shape),
                     dtype_text(row.dtype), why.device.str(), bytes_text(row), to_string(row.role));
  const std::string made_by = producer(row);
  if (!made_by.empty()) out << "  made by: " << table_name(made_by) << '\n';
  for (const NamedReference& name : why.names) {
    out << (name.same_tensor ? "  name: " : "  also on its storage: ") << name << '\n';
  }
  constexpr size_t kMostSlots = 20;
  for (size_t i = 0; i < std::min(why.saved.size(), kMostSlots); ++i) {
    out << "  saved for backward: " << why.saved[i] << '\n';
  }
  if (why.saved.size() > kMostSlots)
    out << fmt::format("  and {} more saved slots\n", why.saved.size() - kMostSlots);
  if (why.tensor_references.has_value())
    out << fmt::format("  references to the tensor: {}\n", *why.tensor_references);
  out << fmt::format("  tensors on the storage: {}, of which {} known\n",
                     count(why.storage_references), why.known_tensors);
  out << "  held by you: ";
  if (!why.held_by_you.has_value()) {
    out << "?\n";
  } else if (*why.held_by_you == 0) {
    out << "nothing else\n";
  } else {
    out << plural(*why.held_by_you, "tensor", "tensors")
        << " (variables, containers, graphs that were not added)\n";
  }
  return out;
}

std::string WhyAlive::to_json() const {
  JsonRow json;
  json.add("schema", "memledger.why_alive/2").add("device", device.str());
  add_row_members(json, row);
  json.add("tensor_references", or_null(tensor_references))
      .add("storage_references", or_null(storage_references))
      .add("known_tensors", known_tensors)
      .add("held_by_you", or_null(held_by_you))
      .add("names", names_json(names))
      .add("saved", saved_json(saved));
  return to_text(json.end());
}

}  // namespace memledger
