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

constexpr double kWidth = 800, kHeight = 420, kLeft = 90, kRight = 30, kTop = 56, kBottom = 64;
// What takes more than so many times the capacity is left out, so that the rest can be read.
constexpr double kMostCapacities = 2;
// Where a value is marked that takes more, but it is not known how much: a little above.
constexpr double kMore = 1.02;
constexpr char kLow[] = "#1b6ca8", kHigh[] = "#d95f02", kCapacity[] = "#444";

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
    const double value_step = grid_step(top_value_);
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

template <typename BytesOf>
std::string line(const Axes& axes, const std::vector<const FitPoint*>& points, const char* color,
                 const BytesOf& bytes_of) {
  std::string coordinates;
  for (const FitPoint* const point : points) {
    const ShownPeak peak = *shown_peak(*point);
    if (peak.is_more) continue;
    coordinates += fmt::format("{}{:.1f},{:.1f}", coordinates.empty() ? "" : " ",
                               axes.x(static_cast<double>(point->value)),
                               axes.y(static_cast<double>(bytes_of(peak.process))));
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                     coordinates, color);
}

// A filled circle fits; an empty one does not.
std::string marks(const Axes& axes, const FitReport& report,
                  const std::vector<const FitPoint*>& points) {
  std::string svg;
  for (const FitPoint* const point : points) {
    const ShownPeak peak = *shown_peak(*point);
    const double y = static_cast<double>(peak.process.high) * (peak.is_more ? kMore : 1);
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\" stroke=\"{}\">"
        "<title>{}: {}, peak {} to {}{}</title></circle>\n",
        axes.x(static_cast<double>(point->value)), axes.y(y),
        point->verdict == Verdict::kFits ? kHigh : "white", kHigh,
        html_text(report.argument(point->value)), to_string(point->verdict),
        words(peak.process.low), words(peak.process.high), peak.is_more ? " or more" : "");
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
      kLeft, kWidth - kRight, capacity_y, capacity_y, kCapacity);
  svg += label(kLeft + 6, capacity_y - 6, kCapacity, "capacity, " + words(capacity));
  svg += line(axes, points, kLow, [](const Interval& process) { return process.low; });
  svg += line(axes, points, kHigh, [](const Interval& process) { return process.high; });
  svg += marks(axes, *this, points);
  svg += label(kLeft, kHeight - 14, kLow, "peak of the process, at the least");
  svg += label(kLeft + 220, kHeight - 14, kHigh, "at the most (filled: fits)");
  return svg + "</svg>\n";
}

}  // namespace memledger::prediction
