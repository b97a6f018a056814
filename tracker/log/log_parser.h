#pragma once

// Reads a log once, from front to back, and passes it to a visitor block by block. Keeps one line
// and one block, both bounded.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tracker/log_reader.h"

namespace memledger {

// Any error that a visitor returns ends the reading, and is returned with file and line added.
class LogVisitor {
 public:
  virtual ~LogVisitor() = default;
  // Begins a run, at its header, or at the first line of a log without one. `header` has no blocks.
  virtual absl::Status begin_run(LogRun header) = 0;
  virtual absl::Status add_block(LogBlock block) = 0;
  // Adds a note that stands below the At line of the last block.
  virtual absl::Status add_note(std::string note) = 0;
  // Ends a run; `rows` of them stand behind its last At line.
  virtual void cut(int64_t rows) = 0;
};

// A file with longer lines, or blocks whose rows take more, is no log.
constexpr size_t kMostBytesOfLine = size_t{1} << 20;
constexpr size_t kMostBytesOfBlock = size_t{128} << 20;
// Foreign lines that may come before the log's first.
constexpr size_t kMostBytesBeforeLog = size_t{16} << 20;

// Return the number of lines that could not be read, or the errors of parse_log() and read_log().
absl::StatusOr<int64_t> visit_log_text(std::string_view text, const std::string& name,
                                       LogVisitor& visitor);
absl::StatusOr<int64_t> visit_log_file(const std::string& path, LogVisitor& visitor);

}  // namespace memledger
