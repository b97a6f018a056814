#include "reporter/report_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "registry/dtype_name.h"

namespace memledger {

std::string readable_size(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "K", "M", "G", "T", "P"};
  double size = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(size) >= 1024 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f}{}", size, kUnits[unit]);
}

std::string shape_text(const std::optional<std::vector<int64_t>>& shape) {
  if (!shape.has_value()) return "(?)";
  if (shape->empty()) return "(1,)";
  if (shape->size() == 1) return fmt::format("({},)", shape->front());
  return fmt::format("({})", fmt::join(*shape, ", "));
}

std::string dtype_text(const std::optional<c10::ScalarType>& dtype) {
  if (!dtype.has_value() || *dtype == c10::ScalarType::Undefined) return "?";
  return "torch." + dtype_name(*dtype);
}

std::string producer(const ReportRow& row) {
  if (row.adopted) return "before tracking";
  std::string where = row.label;
  const auto add = [&where](const std::string& part) {
    if (!part.empty()) where += (where.empty() ? "" : ", ") + part;
  };
  const std::string forward_label = row.forward_label.empty() || row.forward_label == row.label ? "" : " in " + row.forward_label;
  add(row.autograd_node.empty() || row.forward_op.empty() ? row.autograd_node
                                                          : row.autograd_node + " of " + row.forward_op + forward_label);
  if (row.phase != Phase::kOther) add(std::string(to_string(row.phase)) + (row.phase_inferred ? " (inferred)" : ""));
  std::string text = row.op;
  if (!where.empty()) text += (text.empty() ? "[" : " [") + where + "]";
  if (!row.where.empty()) text += (text.empty() ? "at " : " at ") + row.where;
  return text;
}

}  // namespace memledger
