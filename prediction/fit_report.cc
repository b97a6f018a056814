#include "prediction/fit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_replace.h"
#include "text/bytes.h"
#include "text/json.h"
#include "text/names.h"

namespace memledger::prediction {
namespace {

constexpr size_t kLeastWidth = 60;
// The capacity is at this share of a bar's room; what is beyond its end is cut.
constexpr double kCapacityAt = 0.7;
constexpr size_t kLayersEstimated = 3;
constexpr size_t kLongestArgument = 40;

std::string words(int64_t bytes) { return size_in_words(static_cast<double>(bytes)); }

std::string_view name_of(FitEnd end) {
  switch (end) {
    case FitEnd::kFound:
      return "found";
    case FitEnd::kAllFit:
      return "all fit";
    case FitEnd::kNoneFits:
      return "none fits";
    case FitEnd::kProgramFailed:
      return "failed";
    case FitEnd::kValueUnused:
      return "value unused";
    case FitEnd::kGaveUp:
      break;
  }
  return "gave up";
}

const FitPoint* point_of(const FitReport& report, std::optional<int64_t> value) {
  const auto point =
      std::find_if(report.tried.begin(), report.tried.end(),
                   [&](const FitPoint& candidate) { return candidate.value == value; });
  return point == report.tried.end() ? nullptr : &*point;
}

std::vector<const FitPoint*> by_value(const FitReport& report) {
  std::vector<const FitPoint*> points;
  for (const FitPoint& point : report.tried) points.push_back(&point);
  std::sort(points.begin(), points.end(),
            [](const FitPoint* a, const FitPoint* b) { return a->value < b->value; });
  return points;
}

// `--batch=172 does not fit: 24.0 MiB short at …`, with names that no terminal obeys.
std::string told(const FitReport& report, const FitPoint* point) {
  if (point == nullptr) return "?";
  return fmt::format("{}{}{}", printable(report.argument(point->value)),
                     point->verdict == Verdict::kNotKnown ? " is " : " ", point->sentence);
}

// Whether all values take the same.
bool is_value_unused(const std::vector<FitPoint>& tried) {
  const auto differs = [&tried](const FitPoint& point) {
    return !point.peaks || !tried.front().peaks ||
           point.peaks->allocated.high != tried.front().peaks->allocated.high;
  };
  return tried.size() > 1 && std::none_of(tried.begin(), tried.end(), differs);
}

// Where the program failed: what is known all the same.
std::string largest_below(const FitReport& report) {
  std::optional<int64_t> largest;
  for (const FitPoint& point : report.tried) {
    if (point.verdict == Verdict::kFits) largest = std::max(largest.value_or(0), point.value);
  }
  return largest ? fmt::format("; {} fits; is there a largest value it takes? Give it by --to",
                               printable(report.argument(*largest)))
                 : "; is there a smallest value it takes? Give it by --from";
}

// Returns the difference of process peaks at the high end; negative: it takes more. Nothing where
// one of them may end at the capacity.
std::optional<int64_t> freed_bytes(const FitReport& report, const MeasuredRemedy& remedy) {
  if (!remedy.peaks || !report.remedied || !report.remedied->peaks || report.remedied->may_be_cut())
    return std::nullopt;
  FitPoint with_remedy;
  with_remedy.verdict = remedy.verdict;
  with_remedy.peaks = remedy.peaks;
  if (with_remedy.may_be_cut()) return std::nullopt;
  return report.remedied->peaks->process.high - remedy.peaks->process.high;
}

// `, through step 20; no evaluation was seen`: what is not known of a value that fits.
std::string extent_of(const FitPoint* point) {
  constexpr std::string_view kFits = "fits ";
  if (point == nullptr || point->sentence.substr(0, kFits.size()) != kFits) return "";
  return ", " + point->sentence.substr(kFits.size());
}

Json json(const Interval& interval) { return {{"low", interval.low}, {"high", interval.high}}; }

Json json(const FitPoint& point) {
  Json row = {
      {"value", point.value}, {"verdict", to_string(point.verdict)}, {"sentence", point.sentence}};
  if (!point.peaks) return row;
  row["capacity_bytes"] = point.peaks->capacity;
  row["allocated_peak"] = json(point.peaks->allocated);
  row["reserved_peak"] = json(point.peaks->reserved);
  row["process_peak"] = json(point.peaks->process);
  row["ends_at_capacity"] = point.may_be_cut();
  return row;
}

Json remedies_json(const FitReport& report) {
  Json rows = Json::array();
  for (const MeasuredRemedy& remedy : report.measured) {
    if (!helps(report, remedy)) continue;
    rows.push_back({{"source", "measured"},
                    {"change", remedy.setting},
                    {"value", report.remedied->value},
                    {"verdict", to_string(remedy.verdict)},
                    {"freed_bytes", or_null(freed_bytes(report, remedy))}});
  }
  for (const EstimatedRemedy& remedy : report.estimated) {
    rows.push_back({{"source", "estimated"},
                    {"change", remedy.change},
                    {"value", report.remedied->value},
                    {"assumes", remedy.assumption},
                    {"at_most", remedy.is_upper_bound},
                    {"freed_bytes", remedy.bytes}});
  }
  return rows;
}

// A bar of `#` to the low end of the peak and `+` to its high end, and `|` at the capacity.
std::string bar(const FitPoint& point, size_t width) {
  const auto capacity_at = static_cast<size_t>(static_cast<double>(width) * kCapacityAt);
  std::string cells(width, ' ');
  if (const std::optional<ShownPeak> peak = shown_peak(point)) {
    const auto column = [&, capacity = point.peaks->capacity](int64_t bytes) {
      const double share = static_cast<double>(bytes) / static_cast<double>(capacity);
      const auto cell = static_cast<size_t>(share * static_cast<double>(capacity_at));
      // The smallest excess can be seen, too.
      return std::min(width, bytes > capacity ? std::max(cell, capacity_at + 2) : cell);
    };
    const size_t low = column(peak->process.low), high = column(peak->process.high);
    std::fill_n(cells.begin(), low, '#');
    std::fill(cells.begin() + static_cast<std::ptrdiff_t>(low),
              cells.begin() + static_cast<std::ptrdiff_t>(std::max(low, high)), '+');
    if (peak->is_more) {
      cells[capacity_at + 1] = '>';
    } else if (high >= width) {
      cells.back() = '>';
    }
  }
  cells[capacity_at] = '|';
  return cells;
}

std::string peak_words(const std::optional<ShownPeak>& peak, int64_t Interval::*end,
                       int64_t capacity) {
  if (!peak) return "?";
  const int64_t bytes = peak->process.*end;
  return peak->is_more && bytes >= capacity ? ">" + words(capacity) : words(bytes);
}

std::string picture(const FitReport& report, size_t width) {
  const std::vector<const FitPoint*> points = by_value(report);
  const auto measured = std::find_if(
      points.begin(), points.end(), [](const FitPoint* point) { return point->peaks.has_value(); });
  if (measured == points.end()) return "";
  const size_t value_width = std::max<size_t>(5, std::to_string(points.back()->value).size());
  const size_t bar_width = std::max(width, kLeastWidth) - value_width - 2 * 11 - 1 - 13;
  std::string text =
      fmt::format("\n{:>{}} {:>10} {:>10} peak of the process; | is the capacity, {}\n", "value",
                  value_width, "low", "high", words((*measured)->peaks->capacity));
  for (const FitPoint* const point : points) {
    const std::optional<ShownPeak> peak = shown_peak(*point);
    const int64_t capacity = point->peaks ? point->peaks->capacity : 0;
    text += fmt::format("{:>{}} {:>10} {:>10} {} {}\n", point->value, value_width,
                        peak_words(peak, &Interval::low, capacity),
                        peak_words(peak, &Interval::high, capacity), bar(*point, bar_width),
                        to_string(point->verdict));
  }
  return text;
}

// Where it fits and frees nothing, its cache falls into other pieces.
std::string remedy_line(const std::optional<int64_t>& freed, const std::string& how) {
  return fmt::format("  {:>10}  {}\n", freed && *freed > 0 ? words(*freed) : "", how);
}

std::string remedies_text(const FitReport& report) {
  if (!report.remedied) return "";
  const std::string argument = printable(report.argument(report.remedied->value));
  std::string text;
  const auto is_shown = [&](const MeasuredRemedy& remedy) { return helps(report, remedy); };
  if (std::any_of(report.measured.begin(), report.measured.end(), is_shown)) {
    text += fmt::format("\nWhat would free memory with {}, measured:\n", argument);
  } else if (!report.measured.empty()) {
    text += fmt::format("\nOther settings of LibTorch and cuBLAS do not help with {}.\n", argument);
  }
  for (const MeasuredRemedy& remedy : report.measured) {
    if (!is_shown(remedy)) continue;
    text += remedy_line(freed_bytes(report, remedy),
                        fmt::format("{}: {}", remedy.setting, to_string(remedy.verdict)));
  }
  if (report.estimated.empty()) {
    return report.remedied->peaks
               ? text +
                     "Estimates of other changes need to know which bytes are parameters, "
                     "gradients and\noptimizer state; of this program that is not known.\n"
               : text;
  }
  text += "Estimated from what is alive at its peak, not measured:\n";
  for (const EstimatedRemedy& remedy : report.estimated) {
    text +=
        remedy_line(remedy.bytes, fmt::format("{}{} ({})", remedy.is_upper_bound ? "at most: " : "",
                                              printable(remedy.change), remedy.assumption));
  }
  return text;
}

std::string falling_text(const FitReport& report) {
  if (!report.outcome.falling) return "";
  const auto [first, second] = *report.outcome.falling;
  const FitPoint *a = point_of(report, first), *b = point_of(report, second);
  return fmt::format(
      "\nThe peak does not always grow with the value: {} takes {}, {} takes {}.\n"
      "So a larger value than this may fit, too.\n",
      first, words(a->peaks->allocated.high), second, words(b->peaks->allocated.high));
}

std::string fragments_text(const FitReport& report) {
  if (!report.do_fragments_decide()) return "";
  return fmt::format(
      "\nThe tensors of {} alone would fit: fragments of LibTorch's cache decide.\n"
      "So a few larger values may fit, too.\n",
      printable(report.argument(*report.outcome.next)));
}

int64_t bytes_of(const MeasuredPeak& peak, const char* role) {
  const auto bytes = peak.by_role.find(role);
  return bytes == peak.by_role.end() ? 0 : bytes->second;
}

}  // namespace

std::optional<ShownPeak> shown_peak(const FitPoint& point) {
  if (!point.peaks) return std::nullopt;
  ShownPeak peak{point.peaks->process, false};
  const int64_t capacity = point.peaks->capacity;
  if (point.verdict == Verdict::kFits) {
    peak.process = {std::min(peak.process.low, capacity), std::min(peak.process.high, capacity)};
  } else if (point.may_be_cut()) {
    peak.is_more = true;
    peak.process.high = capacity;
    if (point.verdict == Verdict::kDoesNotFit) peak.process.low = capacity;
  }
  return peak;
}

std::string with_value(const std::string& text, int64_t value) {
  return absl::StrReplaceAll(text, {{"{}", std::to_string(value)}});
}

bool helps(const FitReport& report, const MeasuredRemedy& remedy) {
  return remedy.verdict == Verdict::kFits || freed_bytes(report, remedy).value_or(0) > 0;
}

std::vector<EstimatedRemedy> estimated_remedies(const MeasuredPeak& peak) {
  const int64_t weights = bytes_of(peak, "parameter"), gradients = bytes_of(peak, "gradient"),
                state = bytes_of(peak, "optimizer_state");
  if (weights == 0) return {};
  int64_t all = 0;
  for (const auto& [role, bytes] : peak.by_role) all += bytes;
  const int64_t others =
      all - weights - gradients - state - bytes_of(peak, "buffer") - bytes_of(peak, "input");
  std::vector<EstimatedRemedy> remedies = {
      {"checkpoints around all layers", "their inputs stay", others, true},
      {"weights and gradients in bfloat16", "they are float32", (weights + gradients) / 2, false},
  };
  if (state > 0) {
    remedies.push_back(
        {"an optimizer whose state has 8 bits", "the state is float32", state * 3 / 4, true});
  }
  std::vector<std::pair<std::string, int64_t>> layers(peak.activations_by_layer.begin(),
                                                      peak.activations_by_layer.end());
  std::stable_sort(layers.begin(), layers.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  layers.resize(std::min(layers.size(), kLayersEstimated));
  for (const auto& [layer, bytes] : layers) {
    remedies.push_back(
        {"a checkpoint around " + layer, "all that it holds is kept for backward", bytes, true});
  }
  remedies.erase(std::remove_if(remedies.begin(), remedies.end(),
                                [](const EstimatedRemedy& remedy) { return remedy.bytes <= 0; }),
                 remedies.end());
  std::stable_sort(remedies.begin(), remedies.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return remedies;
}

std::string FitReport::argument(int64_t value) const {
  // A shell's script would hide the value.
  const bool is_short = !arguments.empty() && arguments.front().size() <= kLongestArgument;
  return with_value(is_short ? arguments.front() : "{}", value);
}

bool FitReport::do_fragments_decide() const {
  const FitPoint* const next = point_of(*this, outcome.next);
  if (outcome.end != FitEnd::kFound || next == nullptr || !next->peaks || next->may_be_cut())
    return false;
  const FitPeaks& peaks = *next->peaks;
  return peaks.process.high - peaks.reserved.high + peaks.allocated.high <= peaks.capacity;
}

std::string FitReport::sentence() const {
  const FitPoint* const next = point_of(*this, outcome.next);
  const std::string largest = outcome.largest ? "the largest that fits is " +
                                                    printable(argument(*outcome.largest)) +
                                                    extent_of(point_of(*this, outcome.largest))
                                              : "";
  switch (outcome.end) {
    case FitEnd::kFound:
      return largest + "; " + told(*this, next);
    case FitEnd::kAllFit:
      return largest +
             (bounds.to ? ", and no larger value was asked for"
                        : ", and larger values are not tried") +
             (is_value_unused(tried) ? "; the value does not change the peak" : "");
    case FitEnd::kNoneFits:
      return "none fits: " + told(*this, next);
    case FitEnd::kProgramFailed:
      return "no answer: " + told(*this, &tried.back()) + largest_below(*this);
    case FitEnd::kValueUnused:
      return fmt::format("no answer: the value does not change the peak, {} with {} as with {}",
                         words(tried.front().peaks->allocated.high),
                         printable(argument(tried.front().value)),
                         printable(argument(tried.back().value)));
    case FitEnd::kGaveUp:
      break;
  }
  return largest +
         (next == nullptr
              ? fmt::format("; after {} s none was found that does not", seconds)
              : fmt::format(" of {} that were tried in {} s; {}; what lies between is not known; "
                            "--within=SECONDS gives it more",
                            tried.size(), seconds, told(*this, next)));
}

std::string FitReport::to_json() const {
  Json rows = Json::array();
  for (const FitPoint& point : tried) rows.push_back(json(point));
  const auto& falling = outcome.falling;
  const Json result = {
      {"schema", "memledger.fit/1"},
      {"gpu", gpu},
      {"largest", or_null(outcome.largest)},
      {"next", or_null(outcome.next)},
      {"end", name_of(outcome.end)},
      {"sentence", sentence()},
      {"arguments", arguments},
      {"from", bounds.from},
      {"to", or_null(bounds.to)},
      {"tried", std::move(rows)},
      {"falling", falling ? Json::array({falling->first, falling->second}) : Json(nullptr)},
      {"remedies", remedies_json(*this)},
      {"note", note.empty() ? Json(nullptr) : Json(note)},
      {"runs", runs}};
  return memledger::to_text(result);
}

std::string FitReport::to_text(size_t width) const {
  return fmt::format("{}: {}\n", printable(gpu), sentence()) + picture(*this, width) +
         falling_text(*this) + fragments_text(*this) + remedies_text(*this) +
         (note.empty() ? "" : "\n" + note + "\n") +
         fmt::format("\n{} value{}, {} runs of the program\n", tried.size(),
                     tried.size() == 1 ? "" : "s", runs);
}

int exit_status(const FitReport& report) {
  constexpr int kFound = 0, kUsageError = 2, kNoneFits = 10, kProgramFailed = 12;
  switch (report.outcome.end) {
    case FitEnd::kNoneFits:
      return kNoneFits;
    case FitEnd::kProgramFailed:
      return kProgramFailed;
    case FitEnd::kValueUnused:
      return kUsageError;
    case FitEnd::kFound:
    case FitEnd::kAllFit:
    case FitEnd::kGaveUp:
      break;
  }
  return kFound;
}

}  // namespace memledger::prediction
