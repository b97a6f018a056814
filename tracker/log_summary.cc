// What a log says in short, as text and as a picture.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_replace.h"
#include "tracker/log_reader.h"

namespace memledger {
namespace {

constexpr size_t kMostLines = 10;
constexpr double kBytesPerMib = 1048576.0;

std::string mib(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kBytesPerMib); }
std::string signed_mib(int64_t bytes) { return fmt::format("{:+.1f} MiB", static_cast<double>(bytes) / kBytesPerMib); }
std::string known(std::optional<double> value) { return value ? fmt::format("{:.1f}", *value) : "?"; }
std::string several(size_t count, const char* one) { return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s"); }

// What was born in a run and is alive at its end.
struct Remains {
  int64_t count = 0;
  int64_t bytes = 0;
  std::vector<std::pair<std::string, LogRow>> births;  // where, and what of it is left; the oldest first
};
using RemainsByGroup = std::map<std::string, Remains>;

// Takes up to `count` of what is left, and gives back how many are missing. The log does not say which: the oldest first.
int64_t take(Remains& group, int64_t count) {
  for (auto& [where, birth] : group.births) {
    const int64_t gone = std::min(count, birth.count);
    if (gone <= 0) continue;
    const int64_t bytes = gone == birth.count ? birth.bytes : birth.bytes / birth.count * gone;
    birth.count -= gone;
    birth.bytes -= bytes;
    group.count -= gone;
    group.bytes -= bytes;
    count -= gone;
  }
  return count;
}

RemainsByGroup remains_of(const LogRun& run) {
  RemainsByGroup groups;
  std::map<std::string, std::vector<Remains*>> by_looks;  // size and dtype
  const auto looks_of = [](const LogRow& row) { return row.size + " " + row.dtype; };
  for (const LogBlock& block : run.blocks) {
    // A block's own births come before its deaths: what died in it was born earlier.
    for (const LogRow& row : block.rows) {
      if (row.sign != '-') continue;
      int64_t count = row.count;
      if (const auto found = groups.find(row.group()); found != groups.end()) count = take(found->second, count);
      // Its role may have changed since it was born: a tensor that became a parameter.
      if (const auto found = by_looks.find(looks_of(row)); found != by_looks.end()) {
        for (Remains* const group : found->second) count = take(*group, count);
      }
      // The rest was there before the log began.
    }
    for (const LogRow& row : block.rows) {
      if (row.sign != '+') continue;
      const auto [place, is_new] = groups.try_emplace(row.group());
      Remains& group = place->second;
      if (is_new) by_looks[looks_of(row)].push_back(&group);
      group.count += row.count;
      group.bytes += row.bytes;
      group.births.emplace_back(block.where, row);
    }
  }
  return groups;
}

template <typename Value, typename Bytes>
std::vector<Value> largest_first(std::vector<Value> values, const Bytes& bytes) {
  std::stable_sort(values.begin(), values.end(), [&](const Value& a, const Value& b) { return bytes(a) > bytes(b); });
  return values;
}

void add_rest(std::string& text, size_t all, const char* what) {
  if (all > kMostLines) text += fmt::format("  … and {} more {}\n", all - kMostLines, what);
}

std::string biggest_step(const LogRun& run) {
  const LogBlock* biggest = nullptr;
  int64_t change = 0;
  for (const LogBlock& block : run.blocks) {
    const int64_t this_change = block.born_bytes() - block.died_bytes();
    if (biggest == nullptr || std::abs(this_change) > std::abs(change)) {
      biggest = &block;
      change = this_change;
    }
  }
  if (biggest == nullptr || biggest->rows.empty()) return "Biggest step: none, no block has rows\n";
  std::string text = fmt::format("Biggest step: {}, of {} born and {} gone, at {}\n", signed_mib(change),
                                 mib(biggest->born_bytes()), mib(biggest->died_bytes()), biggest->where);
  const std::vector<LogRow> rows = largest_first(biggest->rows, [](const LogRow& row) { return row.bytes; });
  for (size_t i = 0; i < rows.size() && i < kMostLines; ++i) {
    text += fmt::format("  {} {} * {}, {}{}\n", rows[i].sign, rows[i].count, rows[i].group(), mib(rows[i].bytes),
                        rows[i].last.empty() ? "" : ": " + rows[i].last);
  }
  add_rest(text, rows.size(), "rows");
  return text;
}

std::string what_grew(const LogRun& run) {
  struct Place {
    std::string where;
    int64_t visits = 0, bytes = 0, visits_that_grew = 0;
  };
  std::vector<Place> places;
  std::map<std::string, size_t> index;
  for (const LogBlock& block : run.blocks) {
    const auto [place, is_new] = index.try_emplace(block.where, places.size());
    if (is_new) places.push_back({block.where});
    Place& one = places[place->second];
    const int64_t change = block.born_bytes() - block.died_bytes();
    ++one.visits;
    one.bytes += change;
    one.visits_that_grew += change > 0;
  }
  places.erase(std::remove_if(places.begin(), places.end(), [](const Place& place) { return place.bytes <= 0; }), places.end());
  if (places.empty()) return "What grew: nothing\n";
  std::string text = "What grew, by the line where it was told:\n";
  places = largest_first(std::move(places), [](const Place& place) { return place.bytes; });
  for (size_t i = 0; i < places.size() && i < kMostLines; ++i) {
    text += fmt::format("  {} in {}, {} of which grew: {}\n", signed_mib(places[i].bytes),
                        several(static_cast<size_t>(places[i].visits), "block"), places[i].visits_that_grew, places[i].where);
  }
  add_rest(text, places.size(), "lines");
  return text;
}

std::string never_came_back(const LogRun& run) {
  const RemainsByGroup groups = remains_of(run);
  std::vector<std::pair<std::string, const Remains*>> left;
  int64_t all = 0;
  for (const auto& [name, group] : groups) {
    if (group.count <= 0) continue;
    left.emplace_back(name, &group);
    all += group.bytes;
  }
  if (left.empty()) return "What never came back: nothing\n";
  std::string text = fmt::format("What never came back: {} born in this log and alive at its end\n", mib(all));
  left = largest_first(std::move(left), [](const auto& one) { return one.second->bytes; });
  for (size_t i = 0; i < left.size() && i < kMostLines; ++i) {
    std::string where, names;
    std::set<std::string> places;
    for (const auto& [place, birth] : left[i].second->births) {
      if (birth.count == 0) continue;
      places.insert(place);
      where = place;
      names = birth.last;
    }
    text += fmt::format("  {}, {} * {}, born {}{}{}\n", mib(left[i].second->bytes), left[i].second->count, left[i].first,
                        places.size() == 1 ? "before " : fmt::format("before {} lines, the last of them ", places.size()), where,
                        names.empty() ? "" : ": " + names);
  }
  add_rest(text, left.size(), "kinds");
  return text;
}

std::string run_summary(const LogRun& run) {
  std::string text = fmt::format("{}{}\n", run.date.empty() ? "" : run.date + ": ", several(run.blocks.size(), "block"));
  const LogBlock* highest = nullptr;
  for (const LogBlock& block : run.blocks) {
    if (block.tensor_mib && (highest == nullptr || *block.tensor_mib > *highest->tensor_mib)) highest = &block;
    for (const std::string& note : block.notes) {
      if (note.find("missing here") != std::string::npos) text += "  " + note + ": before " + block.where + "\n";
    }
  }
  if (!run.blocks.empty()) {
    text +=
        fmt::format("Total Tensor Used Memory: from {} to {} MiB{}\n",
                    known(run.tensor_mib ? run.tensor_mib : run.blocks.front().tensor_mib), known(run.blocks.back().tensor_mib),
                    highest == nullptr ? "" : fmt::format(", highest {:.1f} at {}", *highest->tensor_mib, highest->where));
    text += biggest_step(run) + what_grew(run) + never_came_back(run);
  }
  if (run.cut_rows > 0) {
    text += fmt::format("The log ends within a block: {} without the line that tells where they belong\n",
                        several(static_cast<size_t>(run.cut_rows), "row"));
  }
  return text;
}

struct Series {
  std::vector<double> tensor, allocated;  // NaN where unknown
  double highest = 0;
};

Series series_of(const LogRun& run) {
  Series series;
  const auto add = [&](std::optional<double> tensor, std::optional<double> allocated) {
    series.tensor.push_back(tensor.value_or(std::nan("")));
    series.allocated.push_back(allocated.value_or(std::nan("")));
    series.highest = std::max({series.highest, tensor.value_or(0), allocated.value_or(0)});
  };
  if (run.tensor_mib || run.allocated_mib) add(run.tensor_mib, run.allocated_mib);
  for (const LogBlock& block : run.blocks) add(block.tensor_mib, block.allocated_mib);
  return series;
}

std::string escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

constexpr double kSvgWidth = 960, kSvgHeight = 360, kLeft = 80, kRight = 20, kTop = 40, kBottom = 40;

// 1, 2 or 5 times a power of ten, so that five or so lines fit.
double grid_step(double highest) {
  if (!(highest > 0)) return 1;
  const double rough = highest / 5;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string svg_line(const std::vector<double>& values, double highest, const char* colour) {
  std::string points;
  std::string svg;
  const auto flush = [&] {
    if (!points.empty()) {
      svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n", colour, points);
    }
    points.clear();
  };
  const double step = (kSvgWidth - kLeft - kRight) / std::max<double>(1, static_cast<double>(values.size()) - 1);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      flush();
      continue;
    }
    const double height = kSvgHeight - kTop - kBottom;
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", kLeft + step * static_cast<double>(i),
                          kSvgHeight - kBottom - (highest > 0 ? values[i] / highest * height : 0));
  }
  flush();
  return svg;
}

std::string svg_of(const LogRun& run, const std::string& title) {
  const Series series = series_of(run);
  const double step = grid_step(series.highest);
  const double top = std::max(step, std::ceil(series.highest / step) * step);
  const double height = kSvgHeight - kTop - kBottom;
  std::string svg = fmt::format("<text x=\"{}\" y=\"24\" font-weight=\"bold\">{}</text>\n", kLeft, escaped(title));
  for (double value = 0; value <= top * 1.0001; value += step) {
    const double y = kSvgHeight - kBottom - value / top * height;
    svg +=
        fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", kLeft, kSvgWidth - kRight, y, y);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g} MiB</text>\n", kLeft - 8, y + 4, value);
  }
  svg += svg_line(series.allocated, top, "#d95f02") + svg_line(series.tensor, top, "#1b6ca8");
  const size_t first = series.tensor.size() - run.blocks.size();
  const double between = (kSvgWidth - kLeft - kRight) / std::max<double>(1, static_cast<double>(series.tensor.size()) - 1);
  for (size_t i = 0; i < run.blocks.size(); ++i) {
    const LogBlock& block = run.blocks[i];
    if (!block.tensor_mib) continue;
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#1b6ca8\"><title>{}: {:.1f} MiB</title></circle>\n",
                       kLeft + between * static_cast<double>(first + i), kSvgHeight - kBottom - *block.tensor_mib / top * height,
                       escaped(block.where), *block.tensor_mib);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#1b6ca8\">Total Tensor Used Memory</text>\n", kLeft, kSvgHeight - 12);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#d95f02\">Total Allocated Memory</text>\n", kLeft + 220, kSvgHeight - 12);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kSvgWidth - kRight, kSvgHeight - 12,
                     several(run.blocks.size(), "block"));
  return svg;
}

// The line's number is left out where `by_function`: it changes when the program is edited.
std::vector<std::string> keys_of(const LogRun& run, bool by_function) {
  std::map<std::string, int> visits;
  std::vector<std::string> keys;
  for (const LogBlock& block : run.blocks) {
    std::string place = block.where;
    const size_t line = place.find(" line ");
    const size_t colon = line == std::string::npos ? line : place.find(": ", line);
    if (by_function && colon != std::string::npos) place.erase(line, colon - line);
    keys.push_back(place + "\n" + std::to_string(++visits[place]));
  }
  return keys;
}

}  // namespace

std::string log_summary(const MemoryLog& log) {
  std::string text = log.name + "\n";
  for (const LogRun& run : log.runs) text += run_summary(run);
  if (log.unread_lines > 0) {
    text += fmt::format("{} of it could not be read\n", several(static_cast<size_t>(log.unread_lines), "line"));
  }
  return text;
}

std::string log_plot(const LogRun& run, size_t width, size_t height) {
  const Series series = series_of(run);
  if (series.tensor.empty() || height < 2) return "";
  const size_t label = 12;
  const size_t columns = std::max<size_t>(8, width > label ? width - label : 8);
  // Of several blocks in one column the highest shows; few blocks get several columns each.
  const size_t count = series.tensor.size();
  const auto at_column = [&](const std::vector<double>& values, size_t column) {
    const size_t begin = column * count / columns;
    const size_t end = std::max(begin + 1, (column + 1) * count / columns);
    double value = std::nan("");
    for (size_t i = begin; i < end; ++i) {
      if (!std::isnan(values[i]) && !(value >= values[i])) value = values[i];
    }
    return value;
  };
  const double highest = series.highest > 0 ? series.highest : 1;
  std::string text;
  for (size_t line = height; line-- > 0;) {
    // A cell is filled if the value reaches its middle.
    const double level = highest * (static_cast<double>(line) + 0.5) / static_cast<double>(height);
    const bool labelled = line + 1 == height || line == height / 2 || line == 0;
    const double value = line + 1 == height ? highest
                         : line == 0        ? 0
                                            : highest * static_cast<double>(line) / static_cast<double>(height);
    text += labelled ? fmt::format("{:>10.1f} |", value) : fmt::format("{:>10} |", "");
    std::string cells;
    for (size_t column = 0; column < columns; ++column) {
      const double tensor = at_column(series.tensor, column);
      const double allocated = at_column(series.allocated, column);
      cells += tensor >= level ? '#' : allocated >= level ? '.' : ' ';
    }
    cells.erase(cells.find_last_not_of(' ') + 1);
    text += cells + "\n";
  }
  return text + fmt::format("{:>10} +{}\n{:>12}MiB, {}: # in tensors, . allocated beyond them\n", "", std::string(columns, '-'),
                            "", several(run.blocks.size(), "block"));
}

std::string log_svg(const MemoryLog& log) {
  const double height = kSvgHeight * static_cast<double>(std::max<size_t>(1, log.runs.size()));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kSvgWidth, height);
  for (size_t i = 0; i < log.runs.size(); ++i) {
    svg += fmt::format("<g transform=\"translate(0,{:g})\">\n", kSvgHeight * static_cast<double>(i));
    svg += svg_of(log.runs[i], log.runs[i].date.empty() ? log.name : log.name + ", " + log.runs[i].date) + "</g>\n";
  }
  return svg + "</svg>\n";
}

std::string log_comparison(const MemoryLog& before, const MemoryLog& after) {
  const LogRun none;
  const LogRun& a = before.runs.empty() ? none : before.runs.back();
  const LogRun& b = after.runs.empty() ? none : after.runs.back();
  const auto matches = [&](bool by_function) {
    const std::vector<std::string> keys = keys_of(a, by_function);
    const std::set<std::string> known(keys.begin(), keys.end());
    size_t count = 0;
    for (const std::string& key : keys_of(b, by_function)) count += known.count(key);
    return count;
  };
  const bool by_function = matches(false) * 2 < std::min(a.blocks.size(), b.blocks.size());
  const std::vector<std::string> a_keys = keys_of(a, by_function), b_keys = keys_of(b, by_function);
  const std::set<std::string> in_a(a_keys.begin(), a_keys.end());
  std::map<std::string, size_t> b_index;
  for (size_t i = 0; i < b_keys.size(); ++i) b_index.emplace(b_keys[i], i);

  std::string text = fmt::format("A: {}{}\nB: {}{}\n", before.name, a.date.empty() ? "" : ", " + a.date, after.name,
                                 b.date.empty() ? "" : ", " + b.date);
  text += fmt::format("{:>12}{:>12}{:>12}  Total Tensor Used Memory (MiB) at\n", "A", "B", "B - A");
  const auto line = [&](std::optional<double> left, std::optional<double> right, const std::string& where) {
    text += fmt::format("{:>12}{:>12}{:>12}  {}\n", left ? known(left) : "-", right ? known(right) : "-",
                        left && right ? fmt::format("{:+.1f}", *right - *left) : "", where);
  };
  std::set<size_t> told;
  size_t next_b = 0;
  for (size_t i = 0; i < a_keys.size(); ++i) {
    const auto found = b_index.find(a_keys[i]);
    if (found == b_index.end()) {
      line(a.blocks[i].tensor_mib, std::nullopt, a.blocks[i].where);
      continue;
    }
    // What B has before it and A has not.
    for (; next_b < found->second; ++next_b) {
      if (in_a.count(b_keys[next_b]) == 0 && told.insert(next_b).second)
        line(std::nullopt, b.blocks[next_b].tensor_mib, b.blocks[next_b].where);
    }
    told.insert(found->second);
    const std::string& where = a.blocks[i].where;
    const std::string& other = b.blocks[found->second].where;
    line(a.blocks[i].tensor_mib, b.blocks[found->second].tensor_mib, where == other ? where : where + " | " + other);
  }
  for (size_t i = 0; i < b_keys.size(); ++i) {
    if (told.count(i) == 0) line(std::nullopt, b.blocks[i].tensor_mib, b.blocks[i].where);
  }

  const RemainsByGroup left = remains_of(a), right = remains_of(b);
  std::set<std::string> names;
  for (const auto& one : left) names.insert(one.first);
  for (const auto& one : right) names.insert(one.first);
  struct Difference {
    std::string name;
    int64_t count, bytes;
  };
  std::vector<Difference> differences;
  for (const std::string& name : names) {
    const auto of = [&](const RemainsByGroup& groups) {
      const auto found = groups.find(name);
      return found == groups.end() ? std::pair<int64_t, int64_t>(0, 0) : std::pair(found->second.count, found->second.bytes);
    };
    const auto [a_count, a_bytes] = of(left);
    const auto [b_count, b_bytes] = of(right);
    if (a_count != b_count || a_bytes != b_bytes) differences.push_back({name, b_count - a_count, b_bytes - a_bytes});
  }
  if (differences.empty()) return text + "Alive at the end: the same in both\n";
  text += "Alive at the end, B - A:\n";
  differences = largest_first(std::move(differences), [](const Difference& one) { return std::abs(one.bytes); });
  for (size_t i = 0; i < differences.size() && i < kMostLines; ++i) {
    text += fmt::format("  {}, {:+} * {}\n", signed_mib(differences[i].bytes), differences[i].count, differences[i].name);
  }
  add_rest(text, differences.size(), "kinds");
  return text;
}

}  // namespace memledger
