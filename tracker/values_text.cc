#include "tracker/values_text.h"

#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <string>

#include "text/names.h"
#include "text/shape.h"
#include "tracker/courtesy.h"
#include "tracker/growth_finder.h"
#include "tracker/line_table.h"
#include "tracker/log_reader.h"
#include "tracker/memory_expectations.h"
#include "tracker/memory_profiler.h"
#include "tracker/model_size.h"
#include "tracker/snapshot_diff.h"
#include "tracker/source_location.h"
#include "tracker/storage_group.h"
#include "tracker/timeline.h"

namespace memledger {
namespace {

std::string name_or_unknown(const std::string& name) {
  return name.empty() ? "?" : printable(name);
}

std::string mib(const std::optional<double>& value) {
  return value ? fmt::format("{} MiB", *value) : "? MiB";
}

std::string figure(int64_t value) {
  return value == LineFigures::kUnknown ? "?" : std::to_string(value);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const StorageGroup& place) {
  return out << to_string(place);
}

std::ostream& operator<<(std::ostream& out, const CourtesyProgress& progress) {
  return out << fmt::format("{} {} of {} bytes, {:.0f} bytes per second",
                            progress.restoring ? "restored" : "yielded", progress.done_bytes,
                            progress.total_bytes, progress.bytes_per_second);
}

std::ostream& operator<<(std::ostream& out, const ExpectationFailure& failure) {
  return out << failure.where << ": " << failure.message;
}

std::ostream& operator<<(std::ostream& out, const Growth& growth) {
  return out << verdict_text(growth);
}

std::ostream& operator<<(std::ostream& out, GrowthLevel level) {
  switch (level) {
    case GrowthLevel::kStack:
      return out << "stack";
    case GrowthLevel::kGroup:
      return out << "group";
    case GrowthLevel::kOperator:
      return out << "operator";
    case GrowthLevel::kDevice:
      break;
  }
  return out << "device";
}

std::ostream& operator<<(std::ostream& out, const GrowthRow& row) {
  return out << row.growth << ": " << row.where()
             << fmt::format(", {} bytes in {} storages", row.bytes, row.count);
}

std::ostream& operator<<(std::ostream& out, const IterationStats& stats) {
  return out << to_string(stats);
}

std::ostream& operator<<(std::ostream& out, const LayerSize& layer) {
  out << name_or_unknown(layer.name);
  if (!layer.type.empty()) out << " (" << printable(layer.type) << ")";
  return out << fmt::format(
             ", {} calls, output {}, {} parameters, activations {} bytes, saved {} bytes",
             layer.calls, shape_text(layer.output_shape), layer.parameters, layer.activation_bytes,
             layer.saved_bytes);
}

std::ostream& operator<<(std::ostream& out, const LineColumn& column) {
  return out << column.name();
}

std::ostream& operator<<(std::ostream& out, const LineFigures& figures) {
  return out << fmt::format("active peak {}, allocated {}, freed {}, left {} bytes, {} events",
                            figure(figures.peak[kActiveBytes]), figures.line_allocated,
                            figures.line_freed, figures.line_left, figures.events);
}

std::ostream& operator<<(std::ostream& out, const LineProfile& profile) {
  write_text(out, profile, default_line_columns());
  return out;
}

std::ostream& operator<<(std::ostream& out, const LineRow& row) {
  out << (row.line == 0 ? "?" : std::to_string(row.line)) << ": " << printable(row.code);
  return row.figures ? out << "; " << *row.figures : out;
}

std::ostream& operator<<(std::ostream& out, const LineTable& table) {
  write_text(out, table, default_line_columns());
  return out;
}

std::ostream& operator<<(std::ostream& out, const LogBlock& block) {
  return out << fmt::format("{}: {} in tensors, {} allocated; born {} bytes, died {} bytes",
                            name_or_unknown(block.where), mib(block.tensor_mib),
                            mib(block.allocated_mib), block.born_bytes(), block.died_bytes());
}

std::ostream& operator<<(std::ostream& out, const LogRow& row) {
  return out << fmt::format("{} {} * {}, {}{} bytes{}", row.sign, row.count, printable(row.group()),
                            row.exact ? "" : "about ", row.bytes,
                            row.last.empty() ? "" : ": " + printable(row.last));
}

std::ostream& operator<<(std::ostream& out, const LogRun& run) {
  return out << fmt::format("{}: {} blocks, from {} to {} in tensors", name_or_unknown(run.date),
                            run.blocks.size(), mib(run.tensor_mib),
                            mib(run.blocks.empty() ? std::nullopt : run.blocks.back().tensor_mib));
}

std::ostream& operator<<(std::ostream& out, const MemoryLog& log) {
  size_t blocks = 0;
  for (const LogRun& run : log.runs) blocks += run.blocks.size();
  return out << fmt::format("{}: {} runs, {} blocks, {} unread lines", name_or_unknown(log.name),
                            log.runs.size(), blocks, log.unread_lines);
}

std::ostream& operator<<(std::ostream& out, const NamedBytes& one) {
  return out << name_or_unknown(one.name) << ": " << one.bytes << " bytes";
}

std::ostream& operator<<(std::ostream& out, const SourceLocation& where) {
  if (where.line() == 0) return out << "?";
  return out << printable(where.file()) << ":" << where.line() << " "
             << printable(where.function());
}

std::ostream& operator<<(std::ostream& out, const TimelineData& data) {
  return out << fmt::format(
             "{} storages in {} ns, {} marks, {} names; dropped: {} events, {} marks",
             data.recording.lifetimes.size(), data.recording.end_ns - data.recording.begin_ns,
             data.marks.size(), data.names.size(), data.recording.dropped_events,
             data.dropped_marks);
}

std::ostream& operator<<(std::ostream& out, const TimelineMark& mark) {
  return out << "at " << mark.time_ns << " ns: " << printable(mark.label);
}

std::ostream& operator<<(std::ostream& out, const TimelineName& name) {
  return out << name_or_unknown(name.name) << ", " << to_string(name.role);
}

std::ostream& operator<<(std::ostream& out, const Unmoved& unmoved) {
  return out << (unmoved.id == 0 ? "storage ?" : "storage " + std::to_string(unmoved.id)) << " on "
             << unmoved.device.str() << ": " << unmoved.nbytes << " bytes, "
             << printable(unmoved.reason);
}

}  // namespace memledger
