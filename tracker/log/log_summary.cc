// A log in short: summary, plot, SVG, and comparison of two.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "text/html.h"
#include "text/names.h"
#include "tracker/log/log_digest.h"
#include "tracker/log/log_text.h"
#include "tracker/log_reader.h"

namespace memledger {
namespace {

constexpr size_t kMostLines = 10;
constexpr size_t kMostPointsOfPicture = size_t{1} << 16;
constexpr size_t kMostBytesOfTitle = 1024;
using log_text::kBytesPerMib;

std::string mib(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kBytesPerMib);
}
std::string signed_mib(int64_t bytes) {
  return fmt::format("{:+.1f} MiB", static_cast<double>(bytes) / kBytesPerMib);
}
std::string known(std::optional<double> value) {
  return value ? fmt::format("{:.1f}", *value) : "?";
}
std::string several(size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

template <typename Value, typename Bytes>
std::vector<Value> largest_first(std::vector<Value> values, const Bytes& bytes) {
  std::stable_sort(values.begin(), values.end(),
                   [&](const Value& a, const Value& b) { return bytes(a) > bytes(b); });
  return values;
}

void add_rest(std::string& text, size_t all, const char* what) {
  if (all > kMostLines) text += fmt::format("  … and {} more {}\n", all - kMostLines, what);
}

std::string biggest_step(const LogRunDigest& run) {
  if (!run.biggest || run.biggest->all_rows == 0) return "Biggest step: none, no block has rows\n";
  const LogRunDigest::Step& step = *run.biggest;
  std::string text = fmt::format("Biggest step: {}, of {} born and {} gone, at {}\n",
                                 signed_mib(step.born - step.died), mib(step.born), mib(step.died),
                                 printable(run.place_name(step.place)));
  for (size_t i = 0; i < step.rows.size() && i < kMostLines; ++i) {
    const LogRow& row = step.rows[i];
    text += fmt::format("  {} {} * {}, {}{}\n", row.sign, row.count, printable(row.group()),
                        mib(row.bytes), row.last.empty() ? "" : ": " + printable(row.last));
  }
  add_rest(text, step.all_rows, "rows");
  return text;
}

std::string what_grew(const LogRunDigest& run) {
  std::vector<LogPlace> places;
  for (const LogPlace& place : run.places) {
    if (place.bytes > 0) places.push_back(place);
  }
  if (places.empty()) return "What grew: nothing\n";
  std::string text = "What grew, by the line of the program that logged it:\n";
  places = largest_first(std::move(places), [](const LogPlace& place) { return place.bytes; });
  for (size_t i = 0; i < places.size() && i < kMostLines; ++i) {
    text += fmt::format("  {} in {}, {} of which grew: {}\n", signed_mib(places[i].bytes),
                        several(static_cast<size_t>(places[i].visits), "block"),
                        places[i].visits_that_grew, printable(*places[i].name));
  }
  add_rest(text, places.size(), "lines");
  return text;
}

std::string never_came_back(const LogRunDigest& run) {
  using Named = std::pair<const std::string*, const LogKind*>;
  std::vector<Named> left;
  int64_t all = 0;
  for (const auto& [name, kind] : run.kinds) {
    if (kind.alive.count() == 0) continue;
    left.emplace_back(&name, &kind.alive);
    if (__builtin_add_overflow(all, kind.alive.bytes(), &all))
      all = std::numeric_limits<int64_t>::max();
  }
  if (left.empty()) return "What never came back: nothing\n";
  std::string text =
      fmt::format("What never came back: {} born in this log and alive at its end\n", mib(all));
  left = largest_first(std::move(left), [](const Named& kind) { return kind.second->bytes(); });
  for (size_t i = 0; i < left.size() && i < kMostLines; ++i) {
    const LogKind& kind = *left[i].second;
    const size_t places = kind.places();
    text += fmt::format(
        "  {}, {} * {}, born {}{}{}\n", mib(kind.bytes()), kind.count(), printable(*left[i].first),
        places == 1 ? "before " : fmt::format("before {} lines, the last of them ", places),
        printable(run.place_name(kind.place())),
        kind.last().empty() ? "" : ": " + printable(kind.last()));
  }
  add_rest(text, left.size(), "kinds");
  return text;
}

std::string run_summary(const LogRunDigest& run) {
  std::string text = fmt::format("{}{}\n", run.date.empty() ? "" : printable(run.date) + ": ",
                                 several(static_cast<size_t>(run.blocks), "block"));
  for (const auto& [note, place] : run.missing) {
    text += "  " + printable(note) + ": before " + printable(run.place_name(place)) + "\n";
  }
  if (run.more_missing > 0)
    text += fmt::format("  … and {} more notes of missing blocks\n", run.more_missing);
  if (run.blocks > 0) {
    text += fmt::format("Total Tensor Used Memory: from {} to {} MiB{}\n",
                        known(run.tensor_mib ? run.tensor_mib : run.first_mib), known(run.last_mib),
                        run.highest ? fmt::format(", highest {:.1f} at {}", run.highest->first,
                                                  printable(run.place_name(run.highest->second)))
                                    : "");
    text += biggest_step(run) + what_grew(run) + never_came_back(run);
  }
  if (run.cut_rows > 0) {
    text += fmt::format("The log ends within a block: {} without an At line\n",
                        several(static_cast<size_t>(run.cut_rows), "row"));
  }
  return text;
}

struct Series {
  std::vector<double> tensor, allocated;  // NaN where unknown
  double highest = 0;
};

Series series_of(const LogRunDigest& run, const std::vector<LogPoint>& points) {
  Series series;
  const auto add = [&](double tensor, double allocated) {
    series.tensor.push_back(tensor);
    series.allocated.push_back(allocated);
    series.highest = std::fmax(std::fmax(series.highest, tensor), allocated);
  };
  if (run.tensor_mib || run.allocated_mib)
    add(run.tensor_mib.value_or(std::nan("")), run.allocated_mib.value_or(std::nan("")));
  for (const LogPoint& point : points) add(point.tensor_mib, point.allocated_mib);
  return series;
}

std::string title_of(const std::string& name) {
  if (name.size() <= kMostBytesOfTitle) return html_text(name);
  return html_text(name.substr(0, kMostBytesOfTitle)) + "…";
}

constexpr double kSvgWidth = 960, kSvgHeight = 360, kLeft = 80, kRight = 20, kTop = 40,
                 kBottom = 40;

// Returns 1, 2 or 5 times a power of ten, for about five lines.
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
      svg +=
          fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n",
                      colour, points);
    }
    points.clear();
  };
  const double step =
      (kSvgWidth - kLeft - kRight) / std::max<double>(1, static_cast<double>(values.size()) - 1);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      flush();
      continue;
    }
    const double height = kSvgHeight - kTop - kBottom;
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ",
                          kLeft + step * static_cast<double>(i),
                          kSvgHeight - kBottom - (highest > 0 ? values[i] / highest * height : 0));
  }
  flush();
  return svg;
}

// Merges points until there are no more than `most`.
std::vector<LogPoint> thinned(const std::vector<LogPoint>& points, size_t most) {
  const size_t step = std::max<size_t>(1, (points.size() + most - 1) / most);
  std::vector<LogPoint> result;
  for (size_t i = 0; i < points.size(); ++i) {
    if (i % step == 0) {
      result.push_back(points[i]);
    } else {
      result.back() = higher(result.back(), points[i]);
    }
  }
  return result;
}

std::string svg_of(const LogRunDigest& run, const std::string& title) {
  const std::vector<LogPoint> points = thinned(run.points, kMostPointsOfPicture);
  const Series series = series_of(run, points);
  const double step = grid_step(series.highest);
  const double top = std::max(step, std::ceil(series.highest / step) * step);
  const double height = kSvgHeight - kTop - kBottom;
  std::string svg = fmt::format("<text x=\"{}\" y=\"24\" font-weight=\"bold\">{}</text>\n", kLeft,
                                title_of(title));
  for (double value = 0; value <= top * 1.0001; value += step) {
    const double y = kSvgHeight - kBottom - value / top * height;
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n",
                       kLeft, kSvgWidth - kRight, y, y);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g} MiB</text>\n",
                       kLeft - 8, y + 4, value);
  }
  svg += svg_line(series.allocated, top, "#d95f02") + svg_line(series.tensor, top, "#1b6ca8");
  const size_t first = series.tensor.size() - points.size();
  const double between = (kSvgWidth - kLeft - kRight) /
                         std::max<double>(1, static_cast<double>(series.tensor.size()) - 1);
  for (size_t i = 0; i < points.size(); ++i) {
    const double tensor_mib = points[i].tensor_mib;
    if (std::isnan(tensor_mib)) continue;
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#1b6ca8\"><title>{}: {:.1f} "
        "MiB</title></circle>\n",
        kLeft + between * static_cast<double>(first + i),
        kSvgHeight - kBottom - tensor_mib / top * height, title_of(run.place_name(points[i].place)),
        tensor_mib);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#1b6ca8\">Total Tensor Used Memory</text>\n",
                     kLeft, kSvgHeight - 12);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#d95f02\">Total Allocated Memory</text>\n",
                     kLeft + 220, kSvgHeight - 12);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kSvgWidth - kRight,
                     kSvgHeight - 12, several(static_cast<size_t>(run.blocks), "block"));
  return svg;
}

// Returns a place, `by_function` without the line number, which changes with edits of the program.
std::string place_key(const std::string& where, bool by_function) {
  std::string place = where;
  const size_t line = place.find(" line ");
  const size_t colon = line == std::string::npos ? line : place.find(": ", line);
  if (by_function && colon != std::string::npos) place.erase(line, colon - line);
  return place;
}

// A key for each block of two runs: its place, and how often the program had been there.
struct BlockKeys {
  std::vector<uint64_t> a, b;
};

BlockKeys keys_of(const LogRunDigest& a, const LogRunDigest& b, bool by_function) {
  std::unordered_map<std::string, uint32_t> numbers;
  const auto keys = [&](const LogRunDigest& run) {
    std::vector<uint32_t> number_of_place;
    for (const LogPlace& place : run.places) {
      number_of_place.push_back(numbers
                                    .try_emplace(place_key(*place.name, by_function),
                                                 static_cast<uint32_t>(numbers.size()))
                                    .first->second);
    }
    std::vector<uint32_t> visits(numbers.size());
    std::vector<uint64_t> result;
    for (const LogPoint& point : run.points) {
      const uint32_t number = number_of_place[point.place];
      result.push_back(uint64_t{number} << 32 | ++visits[number]);
    }
    return result;
  };
  BlockKeys result;
  result.a = keys(a);
  result.b = keys(b);
  return result;
}

size_t matches(const BlockKeys& keys) {
  const std::unordered_set<uint64_t> known(keys.a.begin(), keys.a.end());
  return static_cast<size_t>(std::count_if(keys.b.begin(), keys.b.end(),
                                           [&](uint64_t key) { return known.count(key) > 0; }));
}

std::optional<double> known_or_not(double value) {
  return std::isnan(value) ? std::nullopt : std::optional<double>(value);
}

std::string comparison_line(const LogPoint* a, const LogPoint* b, const std::string& where) {
  const auto left = a == nullptr ? std::nullopt : known_or_not(a->tensor_mib);
  const auto right = b == nullptr ? std::nullopt : known_or_not(b->tensor_mib);
  return fmt::format("{:>12}{:>12}{:>12}  {}\n", left ? known(left) : "-",
                     right ? known(right) : "-",
                     left && right ? fmt::format("{:+.1f}", *right - *left) : "", printable(where));
}

std::string compared_blocks(const LogRunDigest& a, const LogRunDigest& b) {
  BlockKeys keys = keys_of(a, b, false);
  const bool by_function = matches(keys) * 2 < std::min(a.points.size(), b.points.size());
  if (by_function) keys = keys_of(a, b, true);
  const std::unordered_set<uint64_t> in_a(keys.a.begin(), keys.a.end());
  std::unordered_map<uint64_t, size_t> b_index;
  for (size_t i = 0; i < keys.b.size(); ++i) b_index.emplace(keys.b[i], i);

  std::string text =
      fmt::format("{:>12}{:>12}{:>12}  Total Tensor Used Memory (MiB) at\n", "A", "B", "B - A");
  std::vector<bool> told(keys.b.size());
  const auto tell_b = [&](size_t i) {
    told[i] = true;
    text += comparison_line(nullptr, &b.points[i], b.place_name(b.points[i].place));
  };
  size_t next_b = 0;
  for (size_t i = 0; i < keys.a.size(); ++i) {
    const std::string& where = a.place_name(a.points[i].place);
    const auto same = b_index.find(keys.a[i]);
    if (same == b_index.end()) {
      text += comparison_line(&a.points[i], nullptr, where);
      continue;
    }
    // Blocks of B before it that A lacks.
    for (; next_b < same->second; ++next_b) {
      if (in_a.count(keys.b[next_b]) == 0 && !told[next_b]) tell_b(next_b);
    }
    const LogPoint& point = b.points[same->second];
    const std::string& other = b.place_name(point.place);
    told[same->second] = true;
    text += comparison_line(&a.points[i], &point, where == other ? where : where + " | " + other);
  }
  for (size_t i = 0; i < keys.b.size(); ++i) {
    if (!told[i]) tell_b(i);
  }
  return text;
}

struct Alive {
  int64_t count = 0, bytes = 0;
};

Alive alive_at_end(const LogRunDigest& run, const std::string& name) {
  const auto kind = run.kinds.find(name);
  if (kind == run.kinds.end()) return {};
  return {kind->second.alive.count(), kind->second.alive.bytes()};
}

std::string compared_ends(const LogRunDigest& a, const LogRunDigest& b) {
  std::set<std::string> names;
  for (const LogRunDigest* run : {&a, &b}) {
    for (const auto& [name, kind] : run->kinds) names.insert(name);
  }
  struct Difference {
    std::string name;
    int64_t count, bytes;
  };
  std::vector<Difference> differences;
  for (const std::string& name : names) {
    const Alive in_a = alive_at_end(a, name), in_b = alive_at_end(b, name);
    if (in_a.count != in_b.count || in_a.bytes != in_b.bytes)
      differences.push_back({name, in_b.count - in_a.count, in_b.bytes - in_a.bytes});
  }
  if (differences.empty()) return "Alive at the end: the same in both\n";
  std::string text = "Alive at the end, B - A:\n";
  differences = largest_first(std::move(differences), [](const Difference& difference) {
    return std::abs(difference.bytes);
  });
  for (size_t i = 0; i < differences.size() && i < kMostLines; ++i) {
    text += fmt::format("  {}, {:+} * {}\n", signed_mib(differences[i].bytes), differences[i].count,
                        printable(differences[i].name));
  }
  add_rest(text, differences.size(), "kinds");
  return text;
}

}  // namespace

std::string log_summary(const LogDigest& log) {
  std::string text = printable(log.name) + "\n";
  for (const LogRunDigest& run : log.runs) text += run_summary(run);
  if (log.unread_lines > 0) {
    text += fmt::format("{} of it could not be read\n",
                        several(static_cast<size_t>(log.unread_lines), "line"));
  }
  return text;
}

std::string log_plot(const LogRunDigest& run, size_t width, size_t height) {
  const Series series = series_of(run, run.points);
  if (series.tensor.empty() || height < 2) return "";
  const size_t label = 12;
  const size_t columns = std::max<size_t>(8, width > label ? width - label : 8);
  // A column shows the highest of its blocks; a block may take several columns.
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
                         : line == 0
                             ? 0
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
  return text + fmt::format("{:>10} +{}\n{:>12}MiB, {}: # in tensors, . allocated beyond them\n",
                            "", std::string(columns, '-'), "",
                            several(static_cast<size_t>(run.blocks), "block"));
}

std::string log_svg(const LogDigest& log) {
  const double height = kSvgHeight * static_cast<double>(std::max<size_t>(1, log.runs.size()));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 "
      "{0:g} {1:g}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kSvgWidth, height);
  for (size_t i = 0; i < log.runs.size(); ++i) {
    svg +=
        fmt::format("<g transform=\"translate(0,{:g})\">\n", kSvgHeight * static_cast<double>(i));
    svg += svg_of(log.runs[i],
                  log.runs[i].date.empty() ? log.name : log.name + ", " + log.runs[i].date) +
           "</g>\n";
  }
  return svg + "</svg>\n";
}

absl::StatusOr<std::string> log_comparison(const LogDigest& before, const LogDigest& after) {
  const LogRunDigest none{LogRun()};
  const LogRunDigest& a = before.runs.empty() ? none : before.runs.back();
  const LogRunDigest& b = after.runs.empty() ? none : after.runs.back();
  for (const auto& [log, run] : {std::pair(&before, &a), std::pair(&after, &b)}) {
    if (run->blocks_per_point == 1) continue;
    return absl::InvalidArgumentError(fmt::format("{}: {} blocks; expected at most {} to compare",
                                                  log->name, run->blocks, run->points.size()));
  }
  return fmt::format("A: {}{}\nB: {}{}\n", printable(before.name),
                     a.date.empty() ? "" : ", " + printable(a.date), printable(after.name),
                     b.date.empty() ? "" : ", " + printable(b.date)) +
         compared_blocks(a, b) + compared_ends(a, b);
}

std::string log_summary(const MemoryLog& log) { return log_summary(digest_of(log)); }

std::string log_plot(const LogRun& run, size_t width, size_t height) {
  return log_plot(digest_of(run), width, height);
}

std::string log_svg(const MemoryLog& log) { return log_svg(digest_of(log)); }

std::string log_comparison(const MemoryLog& before, const MemoryLog& after) {
  const absl::StatusOr<std::string> text = log_comparison(digest_of(before), digest_of(after));
  return text.ok() ? *text : std::string(text.status().message()) + "\n";
}

}  // namespace memledger
