#include "reporter/report.h"

#include <algorithm>

namespace memledger {
namespace {

std::optional<int64_t> sum(const std::vector<DeviceReport>& devices,
                           std::optional<int64_t> DeviceReport::*member) {
  int64_t total = 0;
  for (const DeviceReport& device : devices) {
    if (device.device.is_meta()) continue;
    if (!(device.*member).has_value()) return std::nullopt;
    total += *(device.*member);
  }
  return total;
}

}  // namespace

std::string_view to_string(RowKind kind) {
  switch (kind) {
    case RowKind::kShared:
      return "shared";
    case RowKind::kExternal:
      return "external";
    case RowKind::kUnknown:
      return "unknown";
    case RowKind::kNotFollowed:
      return "not_followed";
    case RowKind::kMeta:
      return "meta";
    case RowKind::kLent:
      return "lent";
    case RowKind::kUnread:
      return "unread";
    case RowKind::kStorage:
      break;
  }
  return "storage";
}

int64_t ReportRow::elements() const {
  if (!shape.has_value()) return 0;
  int64_t product = 1;
  for (const int64_t size : *shape) product *= std::max<int64_t>(size, 0);
  return product;
}

std::string_view to_string(ReportItemKind kind) {
  switch (kind) {
    case ReportItemKind::kLibraryWorkspace:
      return "library_workspace";
    case ReportItemKind::kRawBlocks:
      return "raw_blocks";
    case ReportItemKind::kBeforeTracking:
      return "before_tracking";
    case ReportItemKind::kRounding:
      return "rounding";
    case ReportItemKind::kUnsplitRemainder:
      return "unsplit_remainder";
  }
  return "?";
}

int64_t DeviceReport::shown_bytes(int64_t requested) const {
  constexpr int64_t kBlock = 512;
  return device.is_cuda() ? (requested + kBlock - 1) / kBlock * kBlock : requested;
}

std::optional<int64_t> DeviceReport::shown_used_bytes() const {
  if (!used_bytes().has_value()) return std::nullopt;
  int64_t total = 0;
  for (const ReportRow& row : rows) total += shown_bytes(row.nbytes.value_or(0));
  return total;
}

std::optional<int64_t> DeviceReport::used_bytes() const {
  const bool known = std::none_of(rows.begin(), rows.end(), [](const ReportRow& row) {
    return row.kind == RowKind::kNotFollowed;
  });
  return known ? std::optional<int64_t>(total_bytes) : std::nullopt;
}

const ReportRow* DeviceReport::row_that_made_peak() const {
  const auto row = std::find_if(rows.begin(), rows.end(), [this](const ReportRow& one) {
    return one.storage_id != 0 && one.storage_id == peak_maker;
  });
  return row == rows.end() ? nullptr : &*row;
}

int64_t Report::total_bytes() const {
  int64_t total = 0;
  for (const DeviceReport& device : devices) total += device.total_bytes;
  return total;
}

std::optional<int64_t> Report::allocator_bytes() const {
  return sum(devices, &DeviceReport::allocator_bytes);
}
std::optional<int64_t> Report::unexplained_bytes() const {
  return sum(devices, &DeviceReport::unexplained_bytes);
}

}  // namespace memledger
