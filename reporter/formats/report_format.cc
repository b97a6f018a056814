#include "reporter/formats/report_format.h"

#include <fmt/format.h>

#include <utility>

#include "text/places.h"
#include "text/shape.h"

namespace memledger {

std::string table_shape(const std::optional<c10::DimVector>& shape) {
  return shape.has_value() && shape->empty() ? "(1,)" : shape_text(shape);
}

std::string size_or_unknown(const std::optional<int64_t>& bytes) {
  return bytes.has_value() ? readable_size(*bytes) : "?";
}

std::string range_text(const std::optional<int64_t>& offset_bytes,
                       const std::optional<int64_t>& extent_bytes) {
  const auto number = [](const std::optional<int64_t>& bytes) {
    return bytes.has_value() ? std::to_string(*bytes) : "?";
  };
  return fmt::format("offset {}, extent {}", number(offset_bytes), number(extent_bytes));
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

namespace {

// Empty texts: none.
std::string producer(const Birthplace& birthplace, std::string_view module, std::string_view line) {
  if (birthplace.adopted) return "before tracking";
  std::string where(birthplace.label);
  const auto add = [&where](std::string_view part) {
    if (!part.empty()) where.append(where.empty() ? "" : ", ").append(part);
  };
  add(module);
  if (birthplace.autograd_node.empty() || birthplace.forward_op.empty()) {
    add(birthplace.autograd_node);
  } else {
    std::string node(birthplace.autograd_node);
    node.append(" of ").append(birthplace.forward_op);
    if (!birthplace.forward_label.empty() && birthplace.forward_label != birthplace.label)
      node.append(" in ").append(birthplace.forward_label);
    add(node);
  }
  if (birthplace.phase != Phase::kOther)
    add(std::string(birthplace.recomputed ? "recomputed" : to_string(birthplace.phase)) +
        (birthplace.phase_inferred ? " (inferred)" : ""));
  std::string text(birthplace.op);
  if (!where.empty()) text += (text.empty() ? "[" : " [") + where + "]";
  if (!line.empty()) text.append(text.empty() ? "at " : " at ").append(line);
  return text;
}

// What a row without a name is to its module.
std::string relation_to_module(const ReportRow& row) {
  if (row.module.empty() || row.module == row.label) return "";
  if (row.is_output) return "output of " + row.module;
  if (!row.anonymous) return "";
  return (row.role == Role::kInput ? "input of " : "layer ") + row.module;
}

}  // namespace

std::string producer(const Birthplace& birthplace) { return producer(birthplace, "", ""); }

std::string producer(const ReportRow& row) {
  return producer(row, relation_to_module(row), line_text(row));
}

std::string compiled_graph(const ReportRow& row) {
  constexpr std::string_view kCompiled = "compiled ";
  if (row.module.rfind("compiled graph ", 0) == 0) return row.module.substr(kCompiled.size());
  const bool is_compiled = row.autograd_node.find("CompiledFunction") != std::string_view::npos;
  return is_compiled ? "a graph" : "";
}

std::string line_text(const ReportRow& row) {
  return row.called_from.empty() ? row.where : row.where + ", from " + row.called_from;
}

std::string short_line_text(const ReportRow& row) {
  const std::string from = row.called_from.empty() ? "" : ", from " + short_place(row.called_from);
  return short_place(row.where) + from;
}

std::optional<uint64_t> known_storage_id(const ReportRow& row) {
  if (row.storage_id == 0) return std::nullopt;
  return row.storage_id;
}

std::optional<std::string_view> known_phase(const ReportRow& row) {
  if (row.adopted || row.storage_id == 0) return std::nullopt;
  return to_string(row.phase);
}

std::string_view machine_name(ExternalMemory external) {
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

}  // namespace memledger
