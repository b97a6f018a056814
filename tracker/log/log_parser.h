#pragma once

// A log block by block, read once from front to back: what is kept of it is the visitor's affair.
// Reading itself keeps a line and a block, both bounded.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tracker/log_reader.h"

namespace memledger {

// A status that is not OK ends the reading; it is handed on with the file's name and the line
// before its message.
class LogVisitor {
 public:
  virtual ~LogVisitor() = default;
  // A header, or the first line of a log that has none. Without blocks.
  virtual absl::Status begin_run(LogRun header) = 0;
  virtual absl::Status add_block(LogBlock block) = 0;
  // What stands below the At line of the block that was added last.
  virtual absl::Status add_note(std::string note) = 0;
  // The run ends within a block.
  virtual void cut(int64_t rows) = 0;
};

// Longer lines, and blocks whose rows take more, are in no log.
constexpr size_t kMostBytesOfLine = size_t{1} << 20;
constexpr size_t kMostBytesOfBlock = size_t{128} << 20;
// Lines of another kind that may come before the first that a log has.
constexpr size_t kMostBytesBeforeLog = size_t{16} << 20;

// The number of lines that could not be read; else what parse_log() and read_log() say.
absl::StatusOr<int64_t> visit_log_text(std::string_view text, const std::string& name,
                                       LogVisitor& visitor);
absl::StatusOr<int64_t> visit_log_file(const std::string& path, LogVisitor& visitor);

}  // namespace memledger
