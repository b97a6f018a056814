#pragma once

// Formatters of memledger's values for fmt. No other public header needs fmt.
//
//   memledger::MemReporter reporter(model);
//   fmt::print("{}", reporter.collect());
//   fmt::print("{:>14}\n", memledger::Phase::kForward);

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <string_view>

#include "memledger.h"

namespace memledger {

// Formats values that have a to_string() as text, which `{:>12}` can pad.
template <typename Value>
struct TextFormatter : fmt::formatter<fmt::string_view> {
  template <typename Context>
  auto format(const Value& value, Context& context) const {
    const std::string_view text = to_string(value);
    return fmt::formatter<fmt::string_view>::format(fmt::string_view(text.data(), text.size()),
                                                    context);
  }
};

}  // namespace memledger

template <>
struct fmt::formatter<memledger::Role> : memledger::TextFormatter<memledger::Role> {};
template <>
struct fmt::formatter<memledger::Phase> : memledger::TextFormatter<memledger::Phase> {};
template <>
struct fmt::formatter<memledger::StorageKind> : memledger::TextFormatter<memledger::StorageKind> {};
template <>
struct fmt::formatter<memledger::RowKind> : memledger::TextFormatter<memledger::RowKind> {};
template <>
struct fmt::formatter<memledger::ReportItemKind>
    : memledger::TextFormatter<memledger::ReportItemKind> {};
template <>
struct fmt::formatter<memledger::SavedRole> : memledger::TextFormatter<memledger::SavedRole> {};
template <>
struct fmt::formatter<memledger::UnreadReason> : memledger::TextFormatter<memledger::UnreadReason> {
};
template <>
struct fmt::formatter<memledger::Report> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::ReportRow> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::ReportItem> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::WhyAlive> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::ProcessMemory> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Counters> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::HookHealth> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::StorageInfo> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DeviceInfo> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Snapshot> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Changes> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::SavedTensors> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DiffRow> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::SnapshotDiff> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::GrowthReport> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DeviceReport> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::NamedReference> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::SavedReference> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::SavedTensorRow> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::UnreadNode> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::SavedGroups> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::CheckpointEstimate> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::ModelSize> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::TestVerdict> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Verdict> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Interval> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DevicePrediction> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Prediction> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Statistic> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DeviceStatistics> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DeviceMemory> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LibraryWorkspace> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::ModelledWorkspace> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::PinnedStatistics> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::BlockState> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DeviceBlock> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DeviceSegment> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::DeviceBlocks> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::AllocationFailure> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LabelChange> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Lifetime> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Recording> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::StackFrame> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::ExternalMemory> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::SavedGroup> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Birthplace> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::StorageGroup> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::CourtesyProgress> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::ExpectationFailure> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Growth> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::GrowthLevel> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::GrowthRow> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::IterationStats> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LayerSize> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LineColumn> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LineFigures> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LineProfile> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LineRow> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LineTable> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LogBlock> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LogRow> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::LogRun> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::MemoryLog> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::NamedBytes> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::SourceLocation> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::TimelineData> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::TimelineMark> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::TimelineName> : fmt::ostream_formatter {};
template <>
struct fmt::formatter<memledger::Unmoved> : fmt::ostream_formatter {};
