#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "reporter/formats/report_format.h"
#include "reporter/report.h"
#include "text/names.h"

namespace memledger {
namespace {

constexpr size_t kWidth = 79;

// The buffers at the program's start: it may put another one behind std::cout later.
const std::streambuf* const terminal_out = std::cout.rdbuf();
const std::streambuf* const terminal_error = std::cerr.rdbuf();

bool is_terminal(const std::ostream& out) {
  if (out.rdbuf() == terminal_out) return isatty(STDOUT_FILENO) != 0;
  if (out.rdbuf() == terminal_error) return isatty(STDERR_FILENO) != 0;
  return false;
}

bool wants_colour(const std::ostream& out, Colour colour) {
  if (colour != Colour::kAuto) return colour == Colour::kAlways;
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb" && is_terminal(out);
}

enum class Style : uint8_t {
  kPlain,
  kHeader,
  kFaint,
  kParameter,
  kGradient,
  kState,
  kSaved,
  kAnonymous,
  kGood,
  kBad
};

// Colours texts by escape sequences, or leaves them alone.
class Palette {
 public:
  explicit Palette(bool on) : on_(on) {}

  std::string operator()(Style style, std::string text) const {
    if (!on_ || style == Style::kPlain || text.empty()) return text;
    return fmt::format("\x1b[{}m{}\x1b[0m", code(style), text);
  }

 private:
  static std::string_view code(Style style) {
    switch (style) {
      case Style::kHeader:
        return "1";
      case Style::kFaint:
        return "2";
      case Style::kParameter:
        return "34";
      case Style::kGradient:
        return "35";
      case Style::kState:
        return "36";
      case Style::kSaved:
      case Style::kGood:
        return "32";
      case Style::kAnonymous:
        return "33";
      case Style::kBad:
        return "1;31";
      case Style::kPlain:
        break;
    }
    return "0";
  }

  bool on_;
};

Style style_of(const ReportRow& row) {
  if (row.kind == RowKind::kShared) return Style::kFaint;
  if (row.anonymous) return Style::kAnonymous;
  switch (row.role) {
    case Role::kParameter:
    case Role::kBuffer:
      return Style::kParameter;
    case Role::kGradient:
      return Style::kGradient;
    case Role::kOptimizerState:
      return Style::kState;
    case Role::kSaved:
      return Style::kSaved;
    default:
      return Style::kPlain;
  }
}

// A line of the table: one row, or a group of rows.
struct ShownRow {
  const ReportRow* row;
  std::string group;         // GroupBy::kRole, kModule, kOperator: what the rows have in common
  std::string first_member;  // the name of the first of several anonymous rows that are alike
  size_t count = 1;
  size_t unknown = 0;  // how many of them have unknown bytes
  int64_t nbytes = 0;  // as shown: see DeviceReport::shown_bytes
};

std::string key_of(const ReportRow& row, GroupBy group) {
  switch (group) {
    case GroupBy::kRole:
      return std::string(to_string(row.role));
    case GroupBy::kModule:
      return row.module.empty() ? "(of no module)" : row.module;
    default:
      return row.adopted      ? "(before tracking)"
             : row.op.empty() ? "(outside operators)"
                              : std::string(row.op);
  }
}

void add_to(ShownRow& shown, const ReportRow& row, const DeviceReport& device) {
  shown.nbytes += device.shown_bytes(row.nbytes.value_or(0));
  shown.unknown += row.nbytes.has_value() ? 0 : 1;
}

std::vector<ShownRow> lines_of(const DeviceReport& device, const ReportOptions& options) {
  using Likeness =
      std::tuple<Role, std::string, std::string_view, std::optional<c10::DimVector>,
                 std::optional<c10::ScalarType>, uint64_t, std::pair<uint64_t, uint64_t>>;
  std::vector<ShownRow> shown;
  std::map<Likeness, size_t> index_of_likeness;
  std::map<std::string, size_t> index_of_key;
  const bool by_key = options.group != GroupBy::kAlike && options.group != GroupBy::kNothing;
  for (const ReportRow& row : device.rows) {
    if (row.kind == RowKind::kShared && (!options.verbose || by_key)) continue;
    size_t index = shown.size();
    bool is_new = true;
    if (by_key) {
      const auto [entry, inserted] = index_of_key.try_emplace(key_of(row, options.group), index);
      index = entry->second;
      is_new = inserted;
      if (is_new) shown.push_back({&row, entry->first, "", 0});
    } else if (row.anonymous && row.kind == RowKind::kStorage && options.group == GroupBy::kAlike) {
      const auto [entry, inserted] =
          index_of_likeness.try_emplace({row.role, producer(row), row.label, row.shape, row.dtype,
                                         row.stream.value_or(0), row.pool},
                                        index);
      index = entry->second;
      is_new = inserted;
      if (is_new) shown.push_back({&row, "", row.name, 0});
    } else {
      shown.push_back({&row, "", "", 0});
    }
    ++shown[index].count;
    add_to(shown[index], row, device);
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
  } else if (by_key && options.sort == SortBy::kName) {
    std::sort(shown.begin(), shown.end(),
              [](const ShownRow& a, const ShownRow& b) { return a.group < b.group; });
  }
  return shown;
}

std::string first_column(const ReportRow& row) {
  return row.kind == RowKind::kShared ? table_name(row.name) + "(->" + table_name(row.owner) + ")"
                                      : table_name(row.name);
}

std::string first_column(const ShownRow& shown) {
  if (!shown.group.empty()) return table_name(shown.group);
  if (shown.count > 1) return fmt::format("{} x {} …", shown.count, shown.first_member);
  return first_column(*shown.row);
}

std::string external_note(const ReportRow& row) {
  const std::string size = readable_size(row.external_bytes);
  switch (row.external) {
    case ExternalMemory::kMappedFile:
      return fmt::format("  external, mapped from {}: {}", table_name(row.mapped_from), size);
    case ExternalMemory::kSharedMemory:
      return fmt::format("  external, shared memory {}: {}", table_name(row.mapped_from), size);
    case ExternalMemory::kPinned:
      return fmt::format("  external, pinned host memory: {}", size);
    case ExternalMemory::kProgram:
      break;
  }
  return fmt::format("  external, not LibTorch's memory: {}", size);
}

std::string note(const ReportRow& row, bool verbose) {
  switch (row.kind) {
    case RowKind::kExternal: {
      const std::string made_by = row.anonymous ? producer(row) : "";
      return external_note(row) + (made_by.empty() ? "" : ", " + table_name(made_by));
    }
    case RowKind::kUnknown:
      return "  cannot be looked into";
    case RowKind::kNotFollowed:
      return row.claimed_bytes.has_value() ? fmt::format("  not followed; its storage says {}",
                                                         readable_size(*row.claimed_bytes))
                                           : "  not followed";
    case RowKind::kMeta:
      return "  would be " + size_or_unknown(row.claimed_bytes);
    case RowKind::kLent:
      return "  lent back (Courtesy), comes back with restore(): " +
             size_or_unknown(row.claimed_bytes);
    case RowKind::kUnread:
      return "  not read beside other threads: see training_paused; its bytes are anonymous";
    case RowKind::kShared:
      return verbose ? "  " + range_text(row.storage_offset_bytes, row.extent_bytes) : "";
    case RowKind::kStorage:
      break;
  }
  if (row.anonymous || row.role == Role::kSaved) {
    const std::string made_by = producer(row);
    const std::string text = made_by.empty() ? "" : "  " + table_name(made_by);
    return row.held_by.empty() ? text : text + "  held by " + table_name(row.held_by);
  }
  return "";
}

// Returns whether to say that the tensors show only a part of the storage: always if verbose, else
// if more than half of it is out of their reach.
bool pins_what_it_does_not_show(const ReportRow& row, bool verbose) {
  if (row.kind != RowKind::kStorage || !row.visible_bytes.has_value() || !row.nbytes.has_value())
    return false;
  return verbose ? *row.visible_bytes < *row.nbytes : *row.visible_bytes < *row.nbytes / 2;
}

// Returns bytes by the thread that made them. No thread made storages from before tracking.
std::map<uint32_t, int64_t> bytes_by_thread(const DeviceReport& device) {
  std::map<uint32_t, int64_t> threads;
  for (const ReportRow& row : device.rows) {
    if (row.kind == RowKind::kStorage && row.thread != 0)
      threads[row.thread] += row.nbytes.value_or(0);
  }
  return threads;
}

// Returns the threads with most bytes, the largest first.
std::string threads_text(const std::map<uint32_t, int64_t>& threads) {
  constexpr size_t kShown = 8;
  std::vector<std::pair<uint32_t, int64_t>> sorted(threads.begin(), threads.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  int64_t rest = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i >= kShown) {
      rest += sorted[i].second;
    } else {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", sorted[i].first,
                          readable_size(sorted[i].second));
    }
  }
  if (sorted.size() > kShown)
    text += fmt::format(", … {} more: {}", sorted.size() - kShown, readable_size(rest));
  return text;
}

void write_rows(std::ostream& out, const DeviceReport& device, const ReportOptions& options,
                const Palette& paint) {
  const std::vector<ShownRow> shown = lines_of(device, options);
  const bool with_threads = options.verbose && has_several_threads(device);
  const size_t count = options.verbose ? shown.size() : std::min(shown.size(), options.max_rows);
  size_t owner = 0;
  for (size_t i = 0; i < count; ++i) {
    const ReportRow& row = *shown[i].row;
    const bool is_group = !shown[i].group.empty();
    const std::string size =
        shown[i].unknown == shown[i].count ? "?" : readable_size(shown[i].nbytes);
    const std::string what = !is_group             ? table_shape(row.shape)
                             : shown[i].count == 1 ? "1 storage"
                                                   : fmt::format("{} storages", shown[i].count);
    out << paint(is_group ? Style::kPlain : style_of(row),
                 fmt::format("{:<40s}", first_column(shown[i])))
        << fmt::format("{:>20s}{:>10s}", what, size);
    if (is_group) {
      if (shown[i].unknown > 0 && shown[i].unknown < shown[i].count)
        out << fmt::format("  and {} of unknown size", shown[i].unknown);
      out << '\n';
      continue;
    }
    std::string behind = note(row, options.verbose);
    if (row.kind == RowKind::kStorage) {
      if (const std::string place = place_text(row); !place.empty()) behind += "  " + place;
      if (with_threads && shown[i].count == 1 && row.thread != 0) {
        behind += fmt::format("  thread {}", row.thread);
      }
    }
    out << paint(Style::kFaint, behind) << '\n';
    if (row.kind != RowKind::kShared) owner = i;
    // What concerns the whole storage comes after its last row.
    if (i + 1 < count && shown[i + 1].row->kind == RowKind::kShared) continue;
    const ReportRow& counted = *shown[owner].row;
    if (pins_what_it_does_not_show(counted, options.verbose)) {
      out << fmt::format("  a view of {} keeps {} alive\n", readable_size(*counted.visible_bytes),
                         readable_size(*counted.nbytes));
    }
    if (options.verbose && counted.more_references.value_or(0) > 0)
      out << fmt::format("  and {} more references\n", *counted.more_references);
  }
  if (count < shown.size()) {
    int64_t bytes = 0;
    for (size_t i = count; i < shown.size(); ++i) bytes += shown[i].nbytes;
    out << fmt::format("… and {} more, {}\n", shown.size() - count, readable_size(bytes));
  }
}

void write_item(std::ostream& out, std::string_view what, const std::vector<ReportItem>& items,
                ReportItemKind kind) {
  int64_t bytes = 0;
  size_t count = 0;
  std::string named;
  for (const ReportItem& item : items) {
    if (item.kind != kind) continue;
    bytes += item.bytes;
    count += item.count;
    if (!item.name.empty())
      named += fmt::format("{}{} {}", named.empty() ? "" : ", ", table_name(item.name),
                           readable_size(item.bytes));
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

// Writes the chain from the rows to what was taken from the driver.
void write_reconciliation(std::ostream& out, const DeviceReport& device) {
  if (device.total_bytes > 0) {
    out << fmt::format("  named: {}; anonymous: {}\n", readable_size(device.named_bytes),
                       readable_size(device.anonymous_bytes));
    std::string roles;
    for (size_t role = 0; role < device.bytes_by_role.size(); ++role) {
      if (device.bytes_by_role[role] == 0) continue;
      roles += fmt::format("{}{} {}", roles.empty() ? "" : ", ", to_string(static_cast<Role>(role)),
                           readable_size(device.bytes_by_role[role]));
    }
    out << "  by role: " << roles << '\n';
    if (has_several_threads(device))
      out << "  by thread: " << threads_text(bytes_by_thread(device)) << '\n';
  }
  if (!device.items.empty())
    out << fmt::format("  tensors, as requested: {}\n", readable_size(device.total_bytes));
  write_item(out, "library workspaces", device.items, ReportItemKind::kLibraryWorkspace);
  write_item(out, "raw blocks (not storages)", device.items, ReportItemKind::kRawBlocks);
  write_item(out, "before tracking", device.items, ReportItemKind::kBeforeTracking);
  write_item(out, "rounding", device.items, ReportItemKind::kRounding);
  write_item(out, "unsplit remainder of blocks", device.items, ReportItemKind::kUnsplitRemainder);
  if (device.requested_bytes.has_value()) {
    out << fmt::format("Requested: {} ({} unexplained)\n", readable_size(*device.requested_bytes),
                       size_or_unknown(device.unexplained_requested_bytes));
  }
  if (device.awaited_bytes.value_or(0) > 0)
    out << fmt::format("freed, awaited by other streams: {}\n",
                       readable_size(*device.awaited_bytes));
  if (device.reserved_bytes.has_value()) {
    out << fmt::format("cached, free: {}", size_or_unknown(device.cached_free_bytes));
    if (device.largest_free_block.value_or(0) > 0) {
      out << fmt::format(" (largest block {}, fragments of segments in use {})",
                         readable_size(*device.largest_free_block),
                         size_or_unknown(device.fragmented_bytes));
    }
    out << fmt::format("; reserved: {}\n", readable_size(*device.reserved_bytes));
    out << fmt::format("context, libraries, other processes: {}; used on the device: {} of {}\n",
                       size_or_unknown(device.outside_allocator_bytes),
                       size_or_unknown(device.device_used_bytes),
                       size_or_unknown(device.device_total_bytes));
  }
}

std::string process_text(const ProcessMemory& memory) {
  return fmt::format("{} (heap, stacks and tensors {}, files {}, shared {})",
                     readable_size(memory.resident_bytes), readable_size(memory.anonymous_bytes),
                     readable_size(memory.file_bytes), readable_size(memory.shared_bytes));
}

// Writes the process's memory next to the tensors'. There is no remainder to be exact about, as
// pages that were never written to are not resident.
void write_process(std::ostream& out, const Report& report, const DeviceReport& device) {
  out << fmt::format("resident memory of the process: {}; tensors: {}\n",
                     process_text(*report.process), size_or_unknown(device.allocator_bytes));
}

// Returns the memory that operators or libraries took for themselves: no tensor was seen on it.
int64_t bytes_without_tensor(const DeviceReport& device, bool of_compiled_code) {
  int64_t bytes = 0;
  for (const ReportRow& row : device.rows) {
    if (row.anonymous && !row.shape.has_value() && !row.adopted &&
        compiled_graph(row).empty() != of_compiled_code)
      bytes += row.nbytes.value_or(0);
  }
  return bytes;
}

void write_footer(std::ostream& out, const Report& report, const DeviceReport& device,
                  const Palette& paint) {
  out << fmt::format("Total Tensors: {} \tUsed Memory: {}\n", device.elements,
                     size_or_unknown(device.shown_used_bytes()));
  out << fmt::format("{} on {}: {}\n",
                     report.of_peak ? "The peak of requested bytes" : "The allocated memory",
                     device.device.str(), size_or_unknown(device.allocator_bytes));
  if (device.allocator_bytes.has_value() && device.unexplained_bytes.has_value()) {
    const std::string explained = fmt::format(
        "Explained: {} of {} ({} unexplained)",
        readable_size(*device.allocator_bytes - *device.unexplained_bytes),
        readable_size(*device.allocator_bytes), readable_size(*device.unexplained_bytes));
    out << paint(*device.unexplained_bytes == 0 ? Style::kGood : Style::kBad, explained) << '\n';
    write_reconciliation(out, device);
  } else if (device.device.is_meta()) {
    out << fmt::format("Explained: ? of ? (no memory; would be {})\n",
                       readable_size(device.would_be_bytes));
  } else {
    out << "Explained: ? of ? (not followed)\n";
  }
  if (device.allocator_moved)
    out << "LibTorch's figures: ? (other threads allocated each time they were read)\n";
  if (device.adopted_bytes > 0)
    out << fmt::format("  of it made before tracking: {}\n", readable_size(device.adopted_bytes));
  if (device.external_bytes > 0) {
    out << fmt::format("external: {}", readable_size(device.external_bytes));
    if (device.mapped_bytes > 0)
      out << fmt::format(", of it mapped files {}", readable_size(device.mapped_bytes));
    if (device.shared_bytes > 0)
      out << fmt::format(", of it shared memory {}", readable_size(device.shared_bytes));
    out << '\n';
  }
  if (report.options.process_memory && device.device.is_cpu() && report.process.has_value())
    write_process(out, report, device);
  if (!report.labels_known) out << "made under paths of labels for which there was no room: ?\n";
  if (!report.deaths_known) out << "freed while peaks were not kept: ?\n";
  if (report.of_peak) {
    const int64_t workspaces = bytes_without_tensor(device, /*of_compiled_code=*/false);
    if (workspaces > 0)
      out << fmt::format("  of it workspaces, not of a tensor: {}\n", readable_size(workspaces));
    const int64_t compiled = bytes_without_tensor(device, /*of_compiled_code=*/true);
    if (compiled > 0)
      out << fmt::format("  of it buffers of compiled code: {}\n", readable_size(compiled));
  }
  if (report.unseen_before_tracking && device.device.is_cpu()) out << "before tracking: ?\n";
  if (report.tracking_was_off && device.device.is_cpu()) out << "tracking was off: ?\n";
  if (report.names_only) out << "shapes and layers, not noted with detail=names: ?\n";
}

std::ostream& write_row(std::ostream& out, const ReportRow& row) {
  return out << fmt::format("{:<40s}{:>20s}{:>10s}{}", first_column(row), table_shape(row.shape),
                            size_or_unknown(row.nbytes), note(row, true));
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const DeviceReport& device) {
  return out << fmt::format("{}: {} rows, {}; allocated {} ({} unexplained)", device.device.str(),
                            device.rows.size(), size_or_unknown(device.used_bytes()),
                            size_or_unknown(device.allocator_bytes),
                            size_or_unknown(device.unexplained_bytes));
}

std::ostream& operator<<(std::ostream& out, const ReportRow& row) { return write_row(out, row); }

std::ostream& operator<<(std::ostream& out, const ReportItem& item) {
  out << to_string(item.kind);
  if (!item.name.empty()) out << ' ' << table_name(item.name);
  return out << ' ' << readable_size(item.bytes);
}

std::ostream& operator<<(std::ostream& out, Role role) { return out << to_string(role); }
std::ostream& operator<<(std::ostream& out, RowKind kind) { return out << to_string(kind); }
std::ostream& operator<<(std::ostream& out, ReportItemKind kind) { return out << to_string(kind); }

std::ostream& operator<<(std::ostream& out, const ProcessMemory& memory) {
  return out << process_text(memory);
}

std::ostream& operator<<(std::ostream& out, const Report& report) {
  const Palette paint(wants_colour(out, report.options.colour));
  const std::string rule(kWidth, '-');
  out << paint(Style::kHeader,
               fmt::format("{:<40s}{:>20s}{:>10s}", "Element type", "Size", "Used MEM"))
      << '\n';
  for (const DeviceReport& device : report.devices) {
    out << rule << (report.of_peak ? "\nAt the peak on " : "\nStorage on ") << device.device.str()
        << '\n';
    write_rows(out, device, report.options, paint);
    out << rule << '\n';
    write_footer(out, report, device, paint);
    out << rule << '\n';
  }
  if (report.devices.empty()) out << rule << "\nNo tensor is alive.\n" << rule << '\n';
  if (report.pinned_in_use_bytes.has_value() && report.pinned_reserved_bytes.value_or(0) > 0) {
    out << fmt::format("pinned host memory: {} reserved, at most {} in use\n",
                       readable_size(*report.pinned_reserved_bytes),
                       readable_size(*report.pinned_in_use_bytes));
  }
  if (!report.modelled_workspaces.empty()) {
    out << "library workspaces while operators ran (a model; part of peaks only), largest of each "
           "kind:\n";
    for (const ModelledWorkspace& workspace : report.modelled_workspaces) {
      out << fmt::format("  {}: {} ({} requests)\n", table_name(workspace.name),
                         readable_size(workspace.largest_bytes), workspace.requests);
    }
  }
  const HookHealth& health = report.health;
  if (health.unknown_frees + health.dropped_records + health.swallowed_exceptions > 0) {
    out << fmt::format("hooks: {} unknown frees, {} dropped records, {} swallowed exceptions\n",
                       health.unknown_frees, health.dropped_records, health.swallowed_exceptions);
  }
  return out;
}

}  // namespace memledger
