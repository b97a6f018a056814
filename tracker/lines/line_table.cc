#include "tracker/line_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>

#include "text/bytes.h"
#include "text/html.h"
#include "text/json.h"
#include "text/names.h"

namespace memledger {
namespace {

using Figure = LineColumn::Figure;

struct FigureName {
  Figure figure;
  std::string_view name;
};
constexpr size_t kLongestCode = 1000;

constexpr std::array<FigureName, 4> kFigureNames = {{{Figure::kCurrent, "current"},
                                                     {Figure::kPeak, "peak"},
                                                     {Figure::kAllocated, "allocated"},
                                                     {Figure::kFreed, "freed"}}};
constexpr std::array<FigureName, 3> kLineFigureNames = {{{Figure::kLineAllocated, "line.allocated"},
                                                         {Figure::kLineFreed, "line.freed"},
                                                         {Figure::kLineLeft, "line.left"}}};

std::string text_of(const LineFigures& figures, LineColumn column) {
  const int64_t value = figures.value(column);
  if (value == LineFigures::kUnknown) return "?";
  return column.is_bytes() ? readable_size(value) : std::to_string(value);
}

std::vector<std::string> heads_of(LineColumn column) {
  std::vector<std::string> heads;
  const std::string name = column.name();
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    heads.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  heads.resize(3);
  return heads;
}

// Returns a source line with spaces for tabs, so that columns stay aligned.
std::string code_text(std::string_view code) {
  std::string result;
  for (const char c : code) result += c == '\t' ? std::string("    ") : std::string(1, c);
  while (!result.empty() && result.back() == '\r') result.pop_back();
  return table_name(result, kLongestCode);
}

// Adds the figures; nulls where nothing was seen.
void add_figures(Json& json, const LineFigures* figures, const std::vector<LineColumn>& columns) {
  const auto add = [&](const std::string& key, int64_t LineFigures::*figure) {
    json[key] = figures == nullptr ? Json(nullptr) : Json(figures->*figure);
  };
  add("allocated_bytes", &LineFigures::line_allocated);
  add("freed_bytes", &LineFigures::line_freed);
  add("left_bytes", &LineFigures::line_left);
  for (const LineColumn column : columns) {
    if (column.is_of_line()) continue;  // one of the three above
    const int64_t value = figures == nullptr ? LineFigures::kUnknown : figures->value(column);
    json[column.name()] = value == LineFigures::kUnknown ? Json(nullptr) : Json(value);
  }
}

Json total_json(const LineFigures& total, const std::vector<LineColumn>& columns) {
  if (total.events == 0) return nullptr;
  Json json = Json::object();
  add_figures(json, &total, columns);
  return json;
}

Json line_json(const LineRow& row, const std::vector<LineColumn>& columns) {
  Json json = {{"line", row.line > 0 ? Json(row.line) : Json(nullptr)}, {"code", row.code}};
  add_figures(json, row.figures ? &*row.figures : nullptr, columns);
  return json;
}

// Returns sums that add up: what was allocated is freed, here or elsewhere, or left.
std::string sums_text(const LineFigures& total) {
  const int64_t elsewhere = total.line_allocated - total.line_freed - total.line_left;
  return fmt::format(
      "allocated {}, freed {}{}{}, left behind {}", readable_size(total.line_allocated),
      readable_size(total.line_freed),
      elsewhere < 0 ? fmt::format(" ({} of it allocated elsewhere)", readable_size(-elsewhere))
                    : "",
      elsewhere > 0 ? fmt::format(", freed elsewhere or later {}", readable_size(elsewhere)) : "",
      readable_size(total.line_left));
}

}  // namespace

std::optional<LineColumn> LineColumn::parse(std::string_view name) {
  for (const FigureName& own : kLineFigureNames) {
    if (own.name == name) return LineColumn{0, own.figure};
  }
  for (size_t stat = 0; stat < kDeviceStats; ++stat) {
    for (const FigureName& libtorchs : kFigureNames) {
      const LineColumn column{stat, libtorchs.figure};
      if (column.name() == name) return column;
    }
  }
  return std::nullopt;
}

std::string LineColumn::name() const {
  for (const FigureName& own : kLineFigureNames) {
    if (own.figure == figure) return std::string(own.name);
  }
  const auto libtorchs = std::find_if(kFigureNames.begin(), kFigureNames.end(),
                                      [&](const FigureName& f) { return f.figure == figure; });
  return fmt::format("{}.{}.{}", kDeviceStatNames[stat / kPoolNames.size()],
                     kPoolNames[stat % kPoolNames.size()], libtorchs->name);
}

bool LineColumn::is_bytes() const {
  if (is_of_line()) return true;
  const std::string_view stat_name = kDeviceStatNames[stat / kPoolNames.size()];
  return stat_name.size() > 6 && stat_name.substr(stat_name.size() - 6) == "_bytes";
}

std::string all_column_names() {
  std::string result;
  for (const std::string_view name : kDeviceStatNames)
    result += fmt::format("{}{}", result.empty() ? "" : ", ", name);
  return fmt::format(
      "({}).(all, small_pool, large_pool).(current, peak, allocated, freed), line.allocated, "
      "line.freed, line.left",
      result);
}

std::vector<LineColumn> default_line_columns() {
  return {*LineColumn::parse("active_bytes.all.peak"),
          *LineColumn::parse("reserved_bytes.all.peak")};
}

void LineFigures::fold(const LineFigures& other) {
  for (size_t i = 0; i < kDeviceStats; ++i) {
    if (i == kActiveBytes && other.peak[i] > peak[i]) {
      peak_time_ns = other.peak_time_ns;
      peak_gpu = other.peak_gpu;
    }
    current[i] = std::max(current[i], other.current[i]);
    peak[i] = std::max(peak[i], other.peak[i]);
    allocated[i] += other.allocated[i];
    freed[i] += other.freed[i];
  }
  if (events == 0) {
    current = other.current;
    peak = other.peak;
    peak_time_ns = other.peak_time_ns;
    peak_gpu = other.peak_gpu;
  }
  line_allocated += other.line_allocated;
  line_freed += other.line_freed;
  line_left += other.line_left;
  events += other.events;
}

int64_t LineFigures::value(LineColumn column) const {
  switch (column.figure) {
    case Figure::kLineAllocated:
      return line_allocated;
    case Figure::kLineFreed:
      return line_freed;
    case Figure::kLineLeft:
      return line_left;
    default:
      break;
  }
  if (current[column.stat] == kUnknown) return kUnknown;
  switch (column.figure) {
    case Figure::kCurrent:
      return current[column.stat];
    case Figure::kPeak:
      return peak[column.stat];
    case Figure::kAllocated:
      return allocated[column.stat];
    default:
      return freed[column.stat];
  }
}

void write_text(std::ostream& out, const LineTable& table, const std::vector<LineColumn>& columns) {
  out << "## " << table_name(table.function) << "\n\n";
  std::vector<std::vector<std::string>> heads;
  std::vector<size_t> widths;
  for (const LineColumn column : columns) {
    heads.push_back(heads_of(column));
    size_t width = 0;
    for (const std::string& head : heads.back()) width = std::max(width, head.size());
    for (const LineRow& row : table.rows) {
      if (row.figures) width = std::max(width, text_of(*row.figures, column).size());
    }
    widths.push_back(width);
  }
  for (size_t level = 0; level < 3; ++level) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i)
      line += fmt::format("{:>{}} ", heads[i][level], widths[i]);
    if (level == 0) line += fmt::format("{:>4}  {}", "line", "code");
    line.resize(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
  for (const LineRow& row : table.rows) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i) {
      line +=
          fmt::format("{:>{}} ", row.figures ? text_of(*row.figures, columns[i]) : "", widths[i]);
    }
    line += fmt::format("{:>4}  {}", row.line > 0 ? std::to_string(row.line) : "?",
                        code_text(row.code));
    line.resize(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
  out << sums_text(table.total) << '\n';
  for (const std::string& note : table.notes) out << table_name(note, kLongestCode) << '\n';
}

void write_text(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns) {
  bool first = true;
  for (const LineTable& table : profile.tables) {
    if (!first) out << "\n\n";
    first = false;
    write_text(out, table, columns);
  }
  for (const std::string& note : profile.notes) out << table_name(note, kLongestCode) << '\n';
}

void write_json(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns) {
  out << "{\"schema\":\"memledger.line_profile/2\",\"device\":" << json_string(profile.device)
      << ",\"functions\":[";
  const char* table_end = "\n";
  for (const LineTable& table : profile.tables) {
    out << std::exchange(table_end, ",\n") << "{\"function\":" << json_string(table.function)
        << ",\"file\":" << (table.file.empty() ? "null" : json_string(table.file))
        << ",\"total\":" << to_text(total_json(table.total, columns)) << ",\"lines\":[";
    const char* row_end = "\n  ";
    for (const LineRow& row : table.rows)
      out << std::exchange(row_end, ",\n  ") << to_text(line_json(row, columns));
    out << "],\"notes\":" << to_text(table.notes) << '}';
  }
  out << "],\"notes\":" << to_text(profile.notes) << "}\n";
}

void write_html(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns) {
  out << "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>memledger: "
         "memory of each line</title>\n"
         "<style>\n"
         "body{font:14px/1.4 sans-serif;margin:2em;color:#222;background:#fff}\n"
         "table{border-collapse:collapse;font:13px/1.35 monospace}\n"
         "th,td{padding:1px 8px;text-align:right;white-space:pre}\n"
         "td.code,th.code{text-align:left}\n"
         "td.bar{min-width:11em;background-repeat:no-repeat}\n"
         "tr:nth-child(even) td{background-color:#f6f6f6}\n"
         "thead th{border-bottom:1px solid #888}\n"
         ".note{color:#666}\n"
         "</style></head><body>\n<h1>Memory of each line, on "
      << html_text(profile.device) << "</h1>\n";
  for (const LineTable& table : profile.tables) {
    out << "<h2>" << html_text(table.function) << "</h2>\n<p class=\"note\">"
        << html_text(table.file) << "</p>\n<table><thead><tr>";
    std::vector<int64_t> highest;
    for (const LineColumn column : columns) {
      out << "<th>" << html_text(column.name()) << "</th>";
      int64_t most = 1;
      for (const LineRow& row : table.rows) {
        if (row.figures) most = std::max(most, row.figures->value(column));
      }
      highest.push_back(most);
    }
    out << "<th>line</th><th class=\"code\">code</th></tr></thead><tbody>\n";
    for (const LineRow& row : table.rows) {
      out << "<tr>";
      for (size_t i = 0; i < columns.size(); ++i) {
        if (!row.figures) {
          out << "<td></td>";
          continue;
        }
        const int64_t value = std::max<int64_t>(row.figures->value(columns[i]), 0);
        out << fmt::format(
            "<td class=\"bar\" "
            "style=\"background-image:linear-gradient(#8ecae6,#8ecae6);background-size:{:.1f}% "
            "100%\">{}</td>",
            100.0 * static_cast<double>(value) / static_cast<double>(highest[i]),
            text_of(*row.figures, columns[i]));
      }
      out << "<td>" << (row.line > 0 ? std::to_string(row.line) : "?") << "</td><td class=\"code\">"
          << html_text(code_text(row.code)) << "</td></tr>\n";
    }
    out << "</tbody></table>\n<p>" << sums_text(table.total) << "</p>\n";
    for (const std::string& note : table.notes)
      out << "<p class=\"note\">" << html_text(note) << "</p>\n";
  }
  for (const std::string& note : profile.notes)
    out << "<p class=\"note\">" << html_text(note) << "</p>\n";
  out << "</body></html>\n";
}

}  // namespace memledger
