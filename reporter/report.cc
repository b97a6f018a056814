#include "reporter/report.h"

#include <algorithm>

namespace memledger {
namespace {

std::optional<int64_t> sum(const std::vector<DeviceReport>& devices, std::optional<int64_t> DeviceReport::*member) {
  int64_t total = 0;
  for (const DeviceReport& device : devices) {
    if (device.device.is_meta()) continue;
    if (!(device.*member).has_value()) return std::nullopt;
    total += *(device.*member);
  }
  return total;
}

}  // namespace

std::optional<int64_t> DeviceReport::used_bytes() const {
  const bool known =
      std::none_of(rows.begin(), rows.end(), [](const ReportRow& row) { return row.kind == RowKind::kNotFollowed; });
  return known ? std::optional<int64_t>(total_bytes) : std::nullopt;
}

int64_t Report::total_bytes() const {
  int64_t total = 0;
  for (const DeviceReport& device : devices) total += device.total_bytes;
  return total;
}

std::optional<int64_t> Report::allocator_bytes() const { return sum(devices, &DeviceReport::allocator_bytes); }
std::optional<int64_t> Report::unexplained_bytes() const { return sum(devices, &DeviceReport::unexplained_bytes); }

}  // namespace memledger
