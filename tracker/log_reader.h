#pragma once

// Reads the logs that MemTracker writes, and those of Pytorch-Memory-Utils' gpu_mem_track.py.
// Needs no LibTorch.
//
//   const absl::StatusOr<memledger::MemoryLog> log = memledger::read_log("gpu_mem_track.txt");
//   if (!log.ok()) throw std::runtime_error(std::string(log.status().message()));
//   std::cout << memledger::log_summary(*log);
//   for (const memledger::LogRun& run : log->runs) std::cout << memledger::log_plot(run);

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger {

struct LogRow {
  char sign = '+';    // '+': born; '-': died
  int64_t count = 0;  // number of storages
  // Bytes of all of them: worked out from size and dtype, or, if these do not agree with it, read
  // from the Memory column, which the log cuts to six characters.
  int64_t bytes = 0;
  bool exact = true;  // false: from the Memory column
  std::string size;   // (64, 3, 3, 3)
  std::string role;   // Parameter; Python's class without its module
  std::string dtype;  // torch.float32
  std::string last;   // names, or operator and label; empty in Python's logs

  // Returns what a `-` and the `+` that it undoes have in common: role, size and dtype. Names are
  // not part of it, as they change; nor is the role for a storage whose role changed.
  std::string group() const { return role + " " + size + " " + dtype; }
};

struct LogBlock {
  std::string where;  // main.cpp line 10: main [label]
  // MiB as in the log; nothing where it has `?`.
  std::optional<double> tensor_mib;
  std::optional<double> allocated_mib;
  std::vector<LogRow> rows;
  std::vector<std::string> notes;  // those of `verbose`, and on missing blocks

  // Return the sums of the + rows and of the - rows.
  int64_t born_bytes() const;
  int64_t died_bytes() const;
};

// One run of a program: from one header to the next.
struct LogRun {
  std::string date;  // 30-Apr-21-20:25:29
  std::optional<double> tensor_mib;
  std::optional<double> allocated_mib;
  std::vector<LogBlock> blocks;
  // Rows at the end without their At line: the process was killed, or is still writing.
  int64_t cut_rows = 0;
};

struct MemoryLog {
  std::string name;
  std::vector<LogRun> runs;
  int64_t unread_lines = 0;
};

// Reads a log's text; `name` stands for it in messages. Lines that cannot be read are counted.
// Returns InvalidArgument with name and line if the text is no log.
absl::StatusOr<MemoryLog> parse_log(std::string_view text, std::string name);
// Reads a log file. Also returns NotFound, PermissionDenied … with the path.
absl::StatusOr<MemoryLog> read_log(const std::string& path);

// Returns for each run its biggest step, what grew, and what never came back.
std::string log_summary(const MemoryLog& log);
// Returns a drawing of the totals over the blocks, for a terminal `width` columns wide. Empty for a
// run without blocks.
std::string log_plot(const LogRun& run, size_t width = 79, size_t height = 14);
// Returns the same as an SVG document, the runs one below the other.
std::string log_svg(const MemoryLog& log);
// Compares the last runs of two logs, block by block, and what is alive at their ends.
std::string log_comparison(const MemoryLog& before, const MemoryLog& after);

}  // namespace memledger
