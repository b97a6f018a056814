#pragma once

// What a line profile shows: values, and one writer per format. No LibTorch.

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace memledger {

// The statistics of LibTorch's DeviceStats that have `current`, `peak`, `allocated`, `freed`, each
// for three pools.
constexpr std::array<std::string_view, 9> kDeviceStatNames = {
    "allocation",      "segment",        "active",       "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
    "requested_bytes"};
constexpr std::array<std::string_view, 3> kPoolNames = {"all", "small_pool", "large_pool"};
constexpr size_t kDeviceStats = kDeviceStatNames.size() * kPoolNames.size();
constexpr size_t kActiveBytes = 6 * kPoolNames.size();  // active_bytes.all

// `active_bytes.all.peak`, or one of ours: `line.allocated`, `line.freed`, `line.left`.
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
  size_t stat = 0;  // name and pool
  Figure figure = Figure::kPeak;

  static std::optional<LineColumn> parse(std::string_view name);
  std::string name() const;
  bool is_bytes() const;
};
// For error messages.
std::string all_column_names();
std::vector<LineColumn> default_line_columns();

struct LineFigures {
  static constexpr int64_t kUnknown = -1;
  // By LineColumn::stat; kUnknown: the device has no such figure.
  std::array<int64_t, kDeviceStats> current{};    // after the last event, the highest over threads
  std::array<int64_t, kDeviceStats> peak{};       // the highest while this line ran
  std::array<int64_t, kDeviceStats> allocated{};  // over all runs
  std::array<int64_t, kDeviceStats> freed{};
  // Requested bytes, over all runs.
  int64_t line_allocated = 0;
  int64_t line_freed = 0;
  int64_t line_left = 0;     // allocated by this line and alive now
  int64_t peak_time_ns = 0;  // of active_bytes.all; registry/recording.h's clock
  int peak_gpu = -1;         // whose it was; -1: the CPU's
  int64_t events = 0;

  void fold(const LineFigures& other);
  int64_t value(LineColumn column) const;
};

struct LineRow {
  int64_t line = 0;  // 0: not known
  std::string code;
  std::optional<LineFigures> figures;  // nothing: no allocation or free was seen there
};

struct LineTable {
  std::string function;  // qualified
  std::string file;      // empty: not known
  std::vector<LineRow> rows;
  LineFigures total;               // of the function: each event once
  std::vector<std::string> notes;  // `-g` is missing; lines that the compiler has merged
};

struct LineProfile {
  std::string device;
  std::vector<LineTable> tables;
  std::vector<std::string> notes;
};

// Text, as pytorch_memlab prints it.
void write_text(std::ostream& out, const LineTable& table, const std::vector<LineColumn>& columns);
void write_text(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns);
// {"schema": 1, "device": …, "functions": [{"function", "file", "total", "lines": [{"line", "code",
// …}], "notes"}]}
void write_json(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns);
// One file without scripts or anything from elsewhere: the source, with a bar beside each line for
// each column.
void write_html(std::ostream& out, const LineProfile& profile,
                const std::vector<LineColumn>& columns);

}  // namespace memledger
