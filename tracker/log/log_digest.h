#pragma once

// What the texts and pictures of a log need of it, taken while it is read once. Memory grows with
// what is different in the log (lines of the program, kinds of tensors), not with its length, and
// has a limit.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tracker/log/log_parser.h"
#include "tracker/log_reader.h"

namespace memledger {

// What was born of one kind (LogRow::group()) and is alive. A log does not say which one died: the
// oldest.
class LogKind {
 public:
  void bear(int64_t count, int64_t bytes, uint32_t place, const std::string& last);
  // Takes up to `count` away, and returns how many are missing.
  int64_t take(int64_t count);

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  // The last birth's, which is alive if any is.
  uint32_t place() const { return place_; }
  const std::string& last() const { return last_; }
  // How many places have borne what is alive.
  size_t places() const;
  // Own memory, about.
  size_t size() const;

 private:
  struct Births {
    int64_t count, bytes;
  };

  std::vector<Births> births_;  // the oldest first; equal ones side by side are one
  size_t taken_births_ = 0;     // at its front
  int64_t count_ = 0, bytes_ = 0;
  int64_t born_ = 0;  // ever
  uint32_t place_ = 0;
  std::string last_;
  std::unordered_map<uint32_t, int64_t> born_until_;  // by place: `born_` after its last birth
  size_t prune_at_ = 64;
};

struct LogPlace {
  const std::string* name = nullptr;
  int64_t visits = 0, bytes = 0, visits_that_grew = 0;
};

// A block; in a log of millions of blocks the highest of several.
struct LogPoint {
  double tensor_mib, allocated_mib;  // NaN where unknown
  uint32_t place;
};

// The tops of both, NaN aside, and where the higher one is.
LogPoint higher(const LogPoint& a, const LogPoint& b);

class LogRunDigest {
 public:
  // Its blocks are not looked at.
  explicit LogRunDigest(const LogRun& header);
  LogRunDigest(LogRunDigest&&) noexcept = default;

  void add(const LogBlock& block);
  // The block that was added last has it.
  void add_note(const std::string& note);

  const std::string& place_name(uint32_t place) const { return *places[place].name; }
  // Own memory, about.
  size_t size() const { return size_; }

  std::string date;
  std::optional<double> tensor_mib, allocated_mib;  // the header's
  int64_t cut_rows = 0;

  int64_t blocks = 0;
  std::vector<LogPlace> places;  // the first visited first
  std::optional<double> first_mib, last_mib;
  std::optional<std::pair<double, uint32_t>> highest;
  std::vector<LogPoint> points;
  int64_t blocks_per_point = 1;
  // What is told of missing blocks, and before which place.
  std::vector<std::pair<std::string, uint32_t>> missing;
  size_t more_missing = 0;

  // The block with the biggest change, and its largest rows.
  struct Step {
    int64_t born = 0, died = 0;
    uint32_t place = 0;
    std::vector<LogRow> rows;
    size_t all_rows = 0;
  };
  std::optional<Step> biggest;

  using Alike = std::map<size_t, LogKind*>;
  struct Kind {
    LogKind alive;
    size_t number = 0;
    Alike* alike = nullptr;
  };
  std::map<std::string, Kind> kinds;  // by LogRow::group()

 private:
  uint32_t number_of(const std::string& place);
  void add_point(const LogBlock& block, uint32_t place);
  void add_step(const LogBlock& block, uint32_t place);
  void take(const LogRow& row);
  void bear(const LogRow& row, uint32_t place);
  int64_t take_from(LogKind& kind, int64_t count);

  size_t size_ = sizeof(LogRunDigest);
  size_t step_size_ = 0;
  int64_t blocks_in_last_point_ = 0;
  uint32_t last_place_ = 0;
  std::unordered_map<std::string, uint32_t> numbers_;  // of places
  // By size and dtype: the kinds of which something is alive, in order of their first births. A
  // tensor's role may change.
  std::unordered_map<std::string, Alike> alike_;
};

class LogDigest final : public LogVisitor {
 public:
  explicit LogDigest(std::string log_name, size_t most_bytes = std::numeric_limits<size_t>::max())
      : name(std::move(log_name)), most_bytes_(most_bytes) {}
  LogDigest(LogDigest&&) noexcept = default;

  absl::Status begin_run(LogRun header) override;
  absl::Status add_block(LogBlock block) override;
  absl::Status add_note(std::string note) override;
  void cut(int64_t rows) override { runs.back().cut_rows = rows; }

  std::string name;
  std::vector<LogRunDigest> runs;
  int64_t unread_lines = 0;

 private:
  absl::Status check_size() const;

  size_t most_bytes_;
  size_t ended_runs_size_ = 0;
};

LogDigest digest_of(const MemoryLog& log);
LogRunDigest digest_of(const LogRun& run);
// Errors are read_log()'s, and ResourceExhausted where too much in the log is different.
absl::StatusOr<LogDigest> read_log_digest(const std::string& path);

std::string log_summary(const LogDigest& log);
std::string log_plot(const LogRunDigest& run, size_t width = 79, size_t height = 14);
std::string log_svg(const LogDigest& log);
// InvalidArgument where a last run has more blocks than are kept one by one.
absl::StatusOr<std::string> log_comparison(const LogDigest& before, const LogDigest& after);

}  // namespace memledger
