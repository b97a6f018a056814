#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reporter/report.h"

namespace memledger {

// A page like Report::to_html(), of several moments, with a text and curves above them.
struct PageSection {
  std::string name;  // cuda:0 at its peak
  const Report* report;
  const DeviceReport* device;
  std::vector<std::string_view> uses;  // what the rows are for; empty: their roles
};

struct PageCurve {
  std::string name;  // cuda:0
  struct Point {
    int64_t step, bytes, peak_bytes;
  };
  std::vector<Point> points;
};

std::string report_page(std::string_view title, std::string_view introduction,
                        const std::vector<PageCurve>& curves,
                        const std::vector<PageSection>& sections);

}  // namespace memledger
