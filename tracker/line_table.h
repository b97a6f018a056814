#pragma once

// A line profile as a value, and its writers. Needs no LibTorch.
//
//   const memledger::LineProfiler profiler({"train_step"});
//   const memledger::LineProfile profile = profiler.profile();
//   for (const memledger::LineTable& table : profile.tables)
//     std::cout << table.function << " left " << table.total.line_left << " bytes behind\n";
//   memledger::write_html(std::cout, profile, memledger::default_line_columns());

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace memledger {

// The statistics of LibTorch's DeviceStats. Each has the figures `current`, `peak`, `allocated` and
// `freed`, for each of the pools.
constexpr std::array<std::string_view, 9> kDeviceStatNames = {
    "allocation",      "segment",        "active",       "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
    "requested_bytes"};
constexpr std::array<std::string_view, 3> kPoolNames = {"all", "small_pool", "large_pool"};
constexpr size_t kDeviceStats = kDeviceStatNames.size() * kPoolNames.size();
constexpr size_t kActiveBytes = 6 * kPoolNames.size();  // active_bytes.all

// A column of a line profile: STATISTIC.POOL.FIGURE, as `active_bytes.all.peak`, or one of our own:
// `line.allocated`, `line.freed`, `line.left`.
struct LineColumn {
  enum class Figure : uint8_t {
    kCurrent,
    kPeak,
    kAllocated,
    kFreed,
    kLineAllocated,
    kLineFreed,
    kLineLeft
  };
  size_t stat = 0;  // position in LineFigures' arrays: statistic and pool; 0 for `line.…`
  Figure figure = Figure::kPeak;

  // Returns the column of that name, or nothing if there is none.
  static std::optional<LineColumn> parse(std::string_view name);
  // Returns the name that parse() reads.
  std::string name() const;
  // Returns whether its figures are bytes, not counts.
  bool is_bytes() const;
  // Returns whether it is one of our own, `line.…`.
  bool is_of_line() const { return figure >= Figure::kLineAllocated; }

  friend bool operator==(LineColumn a, LineColumn b) {
    return a.stat == b.stat && a.figure == b.figure;
  }
};
// Returns a pattern of all names, for error messages.
std::string all_column_names();
// Returns active_bytes.all.peak and reserved_bytes.all.peak.
std::vector<LineColumn> default_line_columns();

// What one line did, or one function.
struct LineFigures {
  static constexpr int64_t kUnknown = -1;
  // The device's statistics by LineColumn::stat, as LibTorch counts them. kUnknown in `current`:
  // the device has no such statistic.
  std::array<int64_t, kDeviceStats> current{};  // after the last event; the highest of all threads
  std::array<int64_t, kDeviceStats> peak{};     // highest while the line ran, in any run
  std::array<int64_t, kDeviceStats> allocated{};  // sums over all runs
  std::array<int64_t, kDeviceStats> freed{};
  // Requested bytes, sums over all runs.
  int64_t line_allocated = 0;
  int64_t line_freed = 0;
  int64_t line_left = 0;     // allocated by this line and alive now
  int64_t peak_time_ns = 0;  // when active_bytes.all peaked, by recording_clock_ns()
  int peak_gpu = -1;         // index of the CUDA device that peaked; -1: the CPU
  int64_t events = 0;  // births and deaths; 0: nothing was seen, all other figures are unknown

  // Adds another line, or thread: the higher peaks, the sums of what was allocated.
  void fold(const LineFigures& other);
  // Returns the figure of a column; kUnknown if the device has none.
  int64_t value(LineColumn column) const;
};

struct LineRow {
  int64_t line = 0;  // from 1; 0: unknown
  std::string code;
  std::optional<LineFigures> figures;  // nothing: no allocation or free was seen there
};

struct LineTable {
  std::string function;            // qualified, without parameters: Net::forward
  std::string file;                // as in the debug information; empty: unknown
  std::vector<LineRow> rows;       // all lines of the function, in order
  LineFigures total;               // of the function, counting each event once
  std::vector<std::string> notes;  // for people: no `-g`, lines that the compiler merged
};

struct LineProfile {
  std::string device;  // the target: cpu, cuda:0
  std::vector<LineTable> tables;
  std::vector<std::string> notes;  // for people: functions that do not exist, changes of the target
};

// Writes tables of text, as pytorch_memlab prints them.
void write_text(std::ostream& out, const LineTable& table, const std::vector<LineColumn>& columns);
void write_text(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns);
// Writes one object, schema memledger.line_profile/2 (docs/formats.md), and a line end. What each
// line allocated, freed and left is in it whether asked for or not, a repeated column once.
void write_json(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns);
// Writes one page without scripts or links: the source, and next to each line a bar per column.
void write_html(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns);

}  // namespace memledger
