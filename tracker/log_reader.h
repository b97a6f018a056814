#pragma once

// Reads the logs that MemTracker writes, and those of Pytorch-Memory-Utils' gpu_mem_track.py.
//
// No LibTorch. Units: MiB, as in the log; bytes of rows are worked out from size and dtype where
// they agree with the Memory column, which is cut to six characters. Errors: InvalidArgument where
// a text is no such log; lines that cannot be read are counted. A block that a killed process left
// in half is told, not guessed at.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger {

struct LogRow {
  char sign = '+';
  int64_t count = 0;
  int64_t bytes = 0;  // of all of them
  bool exact = true;  // false: from the Memory column alone
  std::string size;   // (64, 3, 3, 3)
  std::string role;   // Parameter; Python's class without its module
  std::string dtype;  // torch.float32
  std::string last;   // names, or producer and label; empty in Python's logs

  // A `-` undoes a `+` that is equal in this, or, as roles change, in size and dtype. Names are not
  // in it: they are those of the moment.
  std::string group() const { return role + " " + size + " " + dtype; }
};

struct LogBlock {
  std::string where;  // main.cpp line 10: main [label]
  std::optional<double> tensor_mib;
  std::optional<double> allocated_mib;
  std::vector<LogRow> rows;
  std::vector<std::string> notes;  // what verbose adds, and missing blocks

  int64_t born_bytes() const;
  int64_t died_bytes() const;
};

// From one header to the next: one run of a program.
struct LogRun {
  std::string date;  // 30-Apr-21-20:25:29
  std::optional<double> tensor_mib;
  std::optional<double> allocated_mib;
  std::vector<LogBlock> blocks;
  int64_t cut_rows = 0;  // of a block without its At line: the process was killed, or the log is
                         // still being written
};

struct MemoryLog {
  std::string name;
  std::vector<LogRun> runs;
  int64_t unread_lines = 0;
};

absl::StatusOr<MemoryLog> parse_log(std::string_view text, std::string name);
// NotFound, PermissionDenied … with the path.
absl::StatusOr<MemoryLog> read_log(const std::string& path);

// Biggest step, what grew, what never came back; of each run.
std::string log_summary(const MemoryLog& log);
// Totals over blocks, for a terminal; `width` columns in all. Empty for a run without blocks.
std::string log_plot(const LogRun& run, size_t width = 79, size_t height = 14);
// The same as an SVG document, all runs one below the other.
std::string log_svg(const MemoryLog& log);
// Block by block, and what is alive at the end; of the last run of each.
std::string log_comparison(const MemoryLog& before, const MemoryLog& after);

}  // namespace memledger
