#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>

#include "reporter/report.h"
#include "reporter/report_format.h"

namespace memledger {
namespace {

constexpr size_t kWidth = 79;

// A row as it is shown: one storage's, or several anonymous ones alike.
struct ShownRow {
  const ReportRow* row;
  std::vector<std::string> members;
  int64_t nbytes = 0;  // as shown: see DeviceReport::shown_bytes
};

std::vector<ShownRow> group_rows(const DeviceReport& device, const ReportOptions& options) {
  using Likeness =
      std::tuple<Role, std::string, std::string, std::optional<std::vector<int64_t>>, std::optional<c10::ScalarType>>;
  std::vector<ShownRow> shown;
  std::map<Likeness, size_t> place_of;
  for (const ReportRow& row : device.rows) {
    if (row.kind == RowKind::kShared && !options.verbose) continue;
    if (!row.anonymous) {
      shown.push_back({&row, {}, device.shown_bytes(row.nbytes.value_or(0))});
      continue;
    }
    const auto [place, is_new] = place_of.try_emplace({row.role, producer(row), row.label, row.shape, row.dtype}, shown.size());
    if (is_new) shown.push_back({&row, {}, 0});
    shown[place->second].members.push_back(row.name);
    shown[place->second].nbytes += device.shown_bytes(row.nbytes.value_or(0));
  }
  if (options.sort == SortBy::kBytes) {
    // Groups have grown. Sharing rows (0 bytes) stay behind the row they point at.
    std::vector<std::pair<int64_t, size_t>> order(shown.size());
    int64_t last = 0;
    for (size_t i = 0; i < shown.size(); ++i) {
      if (shown[i].row->kind != RowKind::kShared) last = shown[i].nbytes;
      order[i] = {-last, i};
    }
    std::sort(order.begin(), order.end());
    std::vector<ShownRow> sorted;
    // Rows of equal bytes keep their places, and with them their sharing rows.
    for (const auto& [bytes, i] : order) sorted.push_back(std::move(shown[i]));
    shown = std::move(sorted);
  }
  return shown;
}

std::string first_column(const ShownRow& shown) {
  const ReportRow& row = *shown.row;
  if (row.kind == RowKind::kShared) return row.name + "(->" + row.owner + ")";
  if (shown.members.size() > 1) return fmt::format("{} x {} …", shown.members.size(), shown.members.front());
  return row.name;
}

std::string size_or_unknown(std::optional<int64_t> bytes) { return bytes.has_value() ? readable_size(*bytes) : "?"; }

std::string note(const ReportRow& row) {
  switch (row.kind) {
    case RowKind::kExternal:
      return fmt::format("  external, not LibTorch's memory: {}", readable_size(row.external_bytes));
    case RowKind::kUnknown:
      return "  cannot be looked into";
    case RowKind::kNotFollowed:
      return row.claimed_bytes.has_value() ? fmt::format("  not followed; its storage says {}", readable_size(*row.claimed_bytes))
                                           : "  not followed";
    case RowKind::kMeta:
      return "  would be " + size_or_unknown(row.claimed_bytes);
    case RowKind::kShared:
      return "";
    case RowKind::kStorage:
      break;
  }
  if (row.anonymous || row.role == Role::kSaved) {
    const std::string made_by = producer(row);
    return made_by.empty() ? "" : "  " + made_by;
  }
  return "";
}

void write_rows(std::ostream& out, const DeviceReport& device, const ReportOptions& options) {
  const std::vector<ShownRow> shown = group_rows(device, options);
  const size_t count = options.verbose ? shown.size() : std::min(shown.size(), options.max_rows);
  for (size_t i = 0; i < count; ++i) {
    const ReportRow& row = *shown[i].row;
    const std::string size = row.nbytes.has_value() ? readable_size(shown[i].nbytes) : "?";
    out << fmt::format("{:<40s}{:>20s}{:>10s}{}\n", first_column(shown[i]), shape_text(row.shape), size, note(row));
    const bool ends_storage = i + 1 == count || shown[i + 1].row->kind != RowKind::kShared;
    if (!options.verbose) continue;
    if (row.kind == RowKind::kStorage && row.extent_bytes > 0 && row.nbytes.has_value() && !row.anonymous &&
        row.extent_bytes < *row.nbytes && ends_storage) {
      out << fmt::format("  a view of {} keeps {} alive\n", readable_size(row.extent_bytes), readable_size(*row.nbytes));
    }
    // The count belongs to the storage, so it comes after its last row.
    if (ends_storage) {
      size_t owner = i;
      while (shown[owner].row->kind == RowKind::kShared && owner > 0) --owner;
      const auto more = shown[owner].row->more_references;
      if (more.value_or(0) > 0) out << fmt::format("  and {} more references\n", *more);
    }
  }
  if (count < shown.size()) {
    int64_t bytes = 0;
    for (size_t i = count; i < shown.size(); ++i) bytes += shown[i].nbytes;
    out << fmt::format("… and {} more, {}\n", shown.size() - count, readable_size(bytes));
  }
}

void write_item(std::ostream& out, std::string_view what, const std::vector<ReportItem>& items, ReportItemKind kind) {
  int64_t bytes = 0;
  size_t count = 0;
  std::string named;
  for (const ReportItem& item : items) {
    if (item.kind != kind) continue;
    bytes += item.bytes;
    count += item.count;
    if (!item.name.empty()) named += fmt::format("{}{} {}", named.empty() ? "" : ", ", item.name, readable_size(item.bytes));
  }
  if (count == 0) return;
  out << fmt::format("  {}: {}", what, readable_size(bytes));
  if (!named.empty()) {
    out << fmt::format(" ({})", named);
  } else if (count > 1) {
    out << fmt::format(" ({} blocks)", count);
  }
  out << '\n';
}

// The chain from the rows to what was taken from the driver.
void write_account(std::ostream& out, const DeviceReport& device) {
  if (!device.items.empty()) out << fmt::format("  tensors, as requested: {}\n", readable_size(device.total_bytes));
  write_item(out, "library workspaces", device.items, ReportItemKind::kLibraryWorkspace);
  write_item(out, "raw blocks (not storages)", device.items, ReportItemKind::kRawBlocks);
  write_item(out, "before tracking", device.items, ReportItemKind::kBeforeTracking);
  write_item(out, "rounding", device.items, ReportItemKind::kRounding);
  write_item(out, "unsplit remainder of blocks", device.items, ReportItemKind::kUnsplitRemainder);
  if (device.requested_bytes.has_value()) {
    out << fmt::format("Requested: {} ({} unexplained)\n", readable_size(*device.requested_bytes),
                       size_or_unknown(device.unexplained_requested_bytes));
  }
  if (device.awaited_bytes > 0) out << fmt::format("freed, awaited by other streams: {}\n", readable_size(device.awaited_bytes));
  if (device.reserved_bytes.has_value()) {
    out << fmt::format("cached, free: {}", size_or_unknown(device.cached_free_bytes));
    if (device.largest_free_block.value_or(0) > 0)
      out << fmt::format(" (largest block {})", readable_size(*device.largest_free_block));
    out << fmt::format("; reserved: {}\n", readable_size(*device.reserved_bytes));
  }
}

// Memory that operators or libraries took for themselves: no tensor was seen on it.
int64_t bytes_without_tensor(const DeviceReport& device) {
  int64_t bytes = 0;
  for (const ReportRow& row : device.rows)
    bytes += row.anonymous && !row.shape.has_value() && !row.adopted ? row.nbytes.value_or(0) : 0;
  return bytes;
}

void write_footer(std::ostream& out, const Report& report, const DeviceReport& device) {
  out << fmt::format("Total Tensors: {} \tUsed Memory: {}\n", device.elements, size_or_unknown(device.shown_used_bytes()));
  out << fmt::format("{} on {}: {}\n", report.of_peak ? "The peak of requested bytes" : "The allocated memory",
                     device.device.str(), size_or_unknown(device.allocator_bytes));
  if (device.allocator_bytes.has_value() && device.unexplained_bytes.has_value()) {
    out << fmt::format("Explained: {} of {} ({} unexplained)\n",
                       readable_size(*device.allocator_bytes - *device.unexplained_bytes), readable_size(*device.allocator_bytes),
                       readable_size(*device.unexplained_bytes));
    write_account(out, device);
  } else if (device.device.is_meta()) {
    out << fmt::format("Explained: ? of ? (no memory; would be {})\n", readable_size(device.would_be_bytes));
  } else {
    out << "Explained: ? of ? (not followed)\n";
  }
  if (device.adopted_bytes > 0) out << fmt::format("  of it made before tracking: {}\n", readable_size(device.adopted_bytes));
  if (device.external_bytes > 0) out << fmt::format("external: {}\n", readable_size(device.external_bytes));
  if (!report.complete) out << "freed while peaks were not kept: ?\n";
  if (report.of_peak) {
    const int64_t without_tensor = bytes_without_tensor(device);
    if (without_tensor > 0) out << fmt::format("  of it workspaces, not of a tensor: {}\n", readable_size(without_tensor));
  }
  if (report.unseen_before_tracking && device.device.is_cpu()) out << "before tracking: ?\n";
  if (report.tracking_was_off && device.device.is_cpu()) out << "tracking was off: ?\n";
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Report& report) {
  const std::string rule(kWidth, '-');
  out << fmt::format("{:<40s}{:>20s}{:>10s}\n", "Element type", "Size", "Used MEM");
  for (const DeviceReport& device : report.devices) {
    out << rule << (report.of_peak ? "\nAt the peak on " : "\nStorage on ") << device.device.str() << '\n';
    write_rows(out, device, report.options);
    out << rule << '\n';
    write_footer(out, report, device);
    out << rule << '\n';
  }
  if (report.devices.empty()) out << rule << "\nNo tensor is alive.\n" << rule << '\n';
  if (report.pinned_in_use_bytes.has_value() && report.pinned_reserved_bytes.value_or(0) > 0) {
    out << fmt::format("pinned host memory: {} reserved, at most {} in use\n", readable_size(*report.pinned_reserved_bytes),
                       readable_size(*report.pinned_in_use_bytes));
  }
  if (!report.modelled_workspaces.empty()) {
    out << "library workspaces while operators ran (a model; part of peaks only), largest of each kind:\n";
    for (const ModelledWorkspace& workspace : report.modelled_workspaces) {
      out << fmt::format("  {}: {} ({} requests)\n", workspace.name, readable_size(workspace.largest_bytes), workspace.requests);
    }
  }
  const HookHealth& health = report.health;
  if (health.unknown_frees + health.dropped_records + health.swallowed_exceptions > 0) {
    out << fmt::format("hooks: {} unknown frees, {} dropped records, {} swallowed exceptions\n", health.unknown_frees,
                       health.dropped_records, health.swallowed_exceptions);
  }
  return out;
}

}  // namespace memledger
