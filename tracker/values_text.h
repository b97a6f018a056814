#pragma once

// What std::cout << value prints of the tracker's values: a line each, without the line's end,
// bytes exact, `?` for what is not known. A line profile and an iteration's figures print as their
// reports do. For fmt see memledger_fmt.h.

#include <cstdint>
#include <iosfwd>

namespace memledger {

struct StorageGroup;
struct CourtesyProgress;
struct ExpectationFailure;
struct Growth;
enum class GrowthLevel : uint8_t;
struct GrowthRow;
struct IterationStats;
struct LayerSize;
struct LineColumn;
struct LineFigures;
struct LineProfile;
struct LineRow;
struct LineTable;
struct LogBlock;
struct LogRow;
struct LogRun;
struct MemoryLog;
struct NamedBytes;
class SourceLocation;
struct TimelineData;
struct TimelineMark;
struct TimelineName;
struct Unmoved;

std::ostream& operator<<(std::ostream& out, const StorageGroup& place);
std::ostream& operator<<(std::ostream& out, const CourtesyProgress& progress);
std::ostream& operator<<(std::ostream& out, const ExpectationFailure& failure);
std::ostream& operator<<(std::ostream& out, const Growth& growth);
std::ostream& operator<<(std::ostream& out, GrowthLevel level);
std::ostream& operator<<(std::ostream& out, const GrowthRow& row);
std::ostream& operator<<(std::ostream& out, const IterationStats& stats);
std::ostream& operator<<(std::ostream& out, const LayerSize& layer);
std::ostream& operator<<(std::ostream& out, const LineColumn& column);
std::ostream& operator<<(std::ostream& out, const LineFigures& figures);
std::ostream& operator<<(std::ostream& out, const LineProfile& profile);
std::ostream& operator<<(std::ostream& out, const LineRow& row);
std::ostream& operator<<(std::ostream& out, const LineTable& table);
std::ostream& operator<<(std::ostream& out, const LogBlock& block);
std::ostream& operator<<(std::ostream& out, const LogRow& row);
std::ostream& operator<<(std::ostream& out, const LogRun& run);
std::ostream& operator<<(std::ostream& out, const MemoryLog& log);
std::ostream& operator<<(std::ostream& out, const NamedBytes& one);
std::ostream& operator<<(std::ostream& out, const SourceLocation& where);
std::ostream& operator<<(std::ostream& out, const TimelineData& data);
std::ostream& operator<<(std::ostream& out, const TimelineMark& mark);
std::ostream& operator<<(std::ostream& out, const TimelineName& name);
std::ostream& operator<<(std::ostream& out, const Unmoved& unmoved);

}  // namespace memledger
