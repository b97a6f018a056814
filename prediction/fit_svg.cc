// The picture of peak against value.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "prediction/fit_report.h"
#include "text/bytes.h"
#include "text/html.h"

namespace memledger::prediction {
namespace {

constexpr double kWidth = 800, kHeight = 450, kLeft = 90, kRight = 60, kTop = 66, kBottom = 84;
// Points above this multiple of the capacity are left out, so that the rest can be read.
constexpr double kMostCapacities = 2;
// Where a value is marked that takes more, but it is not known how much: a little above.
constexpr double kMore = 1.02;
constexpr char kBand[] = "#8fb8de", kText[] = "#444";
constexpr size_t kLongestName = 40;

std::string words(int64_t bytes) { return size_in_words(static_cast<double>(bytes)); }

std::vector<const FitPoint*> shown_points(const FitReport& report) {
  std::vector<const FitPoint*> points;
  for (const FitPoint& point : report.tried) {
    if (point.peaks && static_cast<double>(point.peaks->process.low) <=
                           kMostCapacities * static_cast<double>(point.peaks->capacity))
      points.push_back(&point);
  }
  std::sort(points.begin(), points.end(),
            [](const FitPoint* a, const FitPoint* b) { return a->value < b->value; });
  return points;
}

// The largest of 1, 2, 5, 10, 20 … that divides `top` into four parts or more.
double grid_step(double top) {
  const double power = std::pow(10, std::floor(std::log10(std::max(top, 1.0) / 4)));
  for (const double factor : {5.0, 2.0}) {
    if (factor * power * 4 <= top) return factor * power;
  }
  return power;
}

class Axes {
 public:
  Axes(double top_value, double top_bytes) : top_value_(top_value), top_bytes_(top_bytes) {}

  double x(double value) const { return kLeft + value / top_value_ * (kWidth - kLeft - kRight); }
  double y(double bytes) const {
    return kHeight - kBottom - bytes / top_bytes_ * (kHeight - kTop - kBottom);
  }

  std::string grid() const {
    constexpr double kGiB = 1 << 30;
    std::string svg;
    const double bytes_step = grid_step(top_bytes_ / kGiB * 1000) / 1000 * kGiB;
    for (int i = 0; i * bytes_step <= top_bytes_; ++i) {
      const double bytes = i * bytes_step;
      svg += fmt::format(
          "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n"
          "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g} GiB</text>\n",
          kLeft, kWidth - kRight, y(bytes), y(bytes), kLeft - 8, y(bytes) + 4, bytes / kGiB);
    }
    // Values are whole.
    const double value_step = std::max(1.0, grid_step(top_value_));
    for (int i = 0; i * value_step <= top_value_; ++i) {
      const double value = i * value_step;
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n",
                         x(value), kHeight - kBottom + 18, value);
    }
    return svg;
  }

 private:
  double top_value_, top_bytes_;
};

const char* color_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits:
      return "#1a7f37";
    case Verdict::kDoesNotFit:
      return "#cf222e";
    case Verdict::kNotKnown:
    case Verdict::kFailed:
      break;
  }
  return "#9a6700";
}

Verdict verdict_at(const FitReport& report, int64_t value) {
  for (const FitPoint& point : report.tried) {
    if (point.value == value) return point.verdict;
  }
  return Verdict::kNotKnown;
}

// `--batch` of `--batch={}`, for the axis.
std::string with_value_named(const FitReport& report) {
  std::string name = report.arguments.front();
  if (name.size() > kLongestName) return "value";
  const size_t place = name.find("{}");
  if (place != std::string::npos) name.erase(place);
  while (!name.empty() && (name.back() == '=' || name.back() == ' ')) name.pop_back();
  return name.empty() ? "value" : name;
}

// From the low ends of the peaks to their high ends. Both are often too near for two lines.
std::string band(const Axes& axes, const std::vector<const FitPoint*>& points) {
  std::string there, back;
  for (const FitPoint* const point : points) {
    const ShownPeak peak = *shown_peak(*point);
    if (peak.is_more) continue;
    const double x = axes.x(static_cast<double>(point->value));
    there += fmt::format("{:.1f},{:.1f} ", x, axes.y(static_cast<double>(peak.process.low)));
    back.insert(0,
                fmt::format("{:.1f},{:.1f} ", x, axes.y(static_cast<double>(peak.process.high))));
  }
  return fmt::format(
      "<polygon points=\"{}{}\" fill=\"{}\" stroke=\"{}\" stroke-width=\"1.5\" "
      "stroke-linejoin=\"round\"/>\n",
      there, back, kBand, kBand);
}

// The largest value that fits, next to the smallest that does not.
std::string boundary(const Axes& axes, const FitReport& report) {
  if (!report.outcome.largest || !report.outcome.next) return "";
  const double x = axes.x(
      (static_cast<double>(*report.outcome.largest) + static_cast<double>(*report.outcome.next)) /
      2);
  return fmt::format(
      "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:g}\" y2=\"{2:g}\" stroke=\"{3}\" "
      "stroke-dasharray=\"2 3\"/>\n"
      "<text x=\"{4:.1f}\" y=\"{5:g}\" text-anchor=\"end\" fill=\"{6}\">{7} fits</text>\n"
      "<text x=\"{8:.1f}\" y=\"{5:g}\" fill=\"{9}\">{10}</text>\n",
      x, kTop - 14, kHeight - kBottom, kText, x - 6, kTop - 4, color_of(Verdict::kFits),
      *report.outcome.largest, x + 6, color_of(verdict_at(report, *report.outcome.next)),
      *report.outcome.next);
}

// A disk fits, a cross does not, a triangle is not known: colours alone do not say it to everyone.
std::string mark(Verdict verdict, double x, double y) {
  const char* const color = color_of(verdict);
  switch (verdict) {
    case Verdict::kFits:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\"/>", x, y,
                         color);
    case Verdict::kDoesNotFit:
      return fmt::format(
          "<path d=\"M{:.1f} {:.1f}l9 9m0 -9l-9 9\" stroke=\"{}\" stroke-width=\"2.5\"/>", x - 4.5,
          y - 4.5, color);
    case Verdict::kNotKnown:
    case Verdict::kFailed:
      break;
  }
  return fmt::format("<path d=\"M{:.1f} {:.1f}l5 9h-10z\" fill=\"{}\"/>", x, y - 5.5, color);
}

std::string marks(const Axes& axes, const FitReport& report,
                  const std::vector<const FitPoint*>& points) {
  std::string svg;
  for (const FitPoint* const point : points) {
    const ShownPeak peak = *shown_peak(*point);
    const double y = static_cast<double>(peak.process.high) * (peak.is_more ? kMore : 1);
    svg += fmt::format("<g class=\"value\">{}<title>{}: {}, peak {} to {}{}</title></g>\n",
                       mark(point->verdict, axes.x(static_cast<double>(point->value)), axes.y(y)),
                       html_text(report.argument(point->value)), to_string(point->verdict),
                       words(peak.process.low), words(peak.process.high),
                       peak.is_more ? " or more" : "");
  }
  return svg;
}

// What each mark means, of those that are there.
std::string legend(const std::vector<const FitPoint*>& points) {
  std::string svg;
  constexpr double kLetter = 6.5, kBetween = 24;
  double x = kWidth - kRight - 270;
  for (const Verdict verdict : {Verdict::kFits, Verdict::kDoesNotFit, Verdict::kNotKnown}) {
    const bool is_there = std::any_of(points.begin(), points.end(), [&](const FitPoint* point) {
      return point->verdict == verdict;
    });
    if (!is_there) continue;
    svg += mark(verdict, x, kHeight - 18) + fmt::format("<text x=\"{:g}\" y=\"{:g}\">{}</text>\n",
                                                        x + 9, kHeight - 14, to_string(verdict));
    x += 9 + static_cast<double>(to_string(verdict).size()) * kLetter + kBetween;
  }
  return svg;
}

std::string label(double x, double y, const char* color, const std::string& text) {
  return fmt::format("<text x=\"{:g}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n", x, y, color, text);
}

}  // namespace

std::string FitReport::to_svg() const {
  const std::vector<const FitPoint*> points = shown_points(*this);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" "
      "viewBox=\"0 0 {0:g} {1:g}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2:g}\" y=\"24\" font-weight=\"bold\">{3}: {4}</text>\n",
      kWidth, kHeight, kLeft, html_text(gpu),
      outcome.largest ? html_text(argument(*outcome.largest)) + " is the largest that fits"
                      : "no largest value");
  if (points.empty()) return svg + "</svg>\n";
  const int64_t capacity = points.front()->peaks->capacity;
  int64_t top = capacity;
  for (const FitPoint* const point : points) top = std::max(top, shown_peak(*point)->process.high);
  const Axes axes(std::max(1.0, static_cast<double>(points.back()->value)),
                  static_cast<double>(top) * 1.05);
  const double capacity_y = axes.y(static_cast<double>(capacity));
  svg += axes.grid();
  svg += fmt::format(
      "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
      "stroke-dasharray=\"6 4\"/>\n",
      kLeft, kWidth - kRight, capacity_y, capacity_y, kText);
  svg += label(kLeft + 6, capacity_y - 6, kText, "capacity, " + words(capacity));
  svg += band(axes, points);
  svg += boundary(axes, *this);
  svg += marks(axes, *this, points);
  svg += fmt::format("<text x=\"{:g}\" y=\"{:g}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - kBottom + 36,
                     arguments.empty() ? "value" : html_text(with_value_named(*this)));
  svg += fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"18\" height=\"8\" fill=\"{}\"/>\n", kLeft,
                     kHeight - 22, kBand);
  svg += label(kLeft + 24, kHeight - 14, kText, "peak of the process, from its least to its most");
  svg += legend(points);
  return svg + "</svg>\n";
}

}  // namespace memledger::prediction
