#pragma once

// Reads a log once and keeps what its summary, pictures and comparison need. Memory is bounded, and
// grows with the variety of the log (lines of the program, kinds of tensors), not with its length.

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

// The storages of one kind (LogRow::group()) that were born in the log and are alive. The log does
// not say which of them a death is of: the oldest is taken for it.
class LogKind {
 public:
  void bear(int64_t count, int64_t bytes, uint32_t place, const std::string& last);
  // Removes up to `count` storages. Returns how many there were too few.
  int64_t take(int64_t count);

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  // Place and last column of the last birth, which is alive if any is.
  uint32_t place() const { return place_; }
  const std::string& last() const { return last_; }
  // Returns the number of places where the living ones were born.
  size_t places() const;
  // Returns the memory that this takes, roughly.
  size_t size() const;

 private:
  struct Births {
    int64_t count, bytes;
  };

  std::vector<Births> births_;  // oldest first; adjacent ones of equal size are merged
  size_t taken_births_ = 0;     // at the front, all dead
  int64_t count_ = 0, bytes_ = 0;
  int64_t born_ = 0;  // dead ones included
  uint32_t place_ = 0;
  std::string last_;
  std::unordered_map<uint32_t, int64_t> born_until_;  // by place: `born_` after its last birth
  size_t prune_at_ = 64;
};

struct LogPlace {
  const std::string* name = nullptr;
  int64_t visits = 0, bytes = 0, visits_that_grew = 0;
};

// A block, or the highest of several in a log of millions.
struct LogPoint {
  double tensor_mib, allocated_mib;  // NaN where unknown
  uint32_t place;
};

// Returns the higher figures of both, NaN aside, and the place of the higher tensor_mib.
LogPoint higher(const LogPoint& a, const LogPoint& b);

class LogRunDigest {
 public:
  // Ignores the header's blocks.
  explicit LogRunDigest(const LogRun& header);
  LogRunDigest(LogRunDigest&&) noexcept = default;

  void add(const LogBlock& block);
  // Adds a note to the last block.
  void add_note(const std::string& note);

  const std::string& place_name(uint32_t place) const { return *places[place].name; }
  // Returns the memory that this takes, roughly.
  size_t size() const { return size_; }

  std::string date;
  std::optional<double> tensor_mib, allocated_mib;  // the header's
  int64_t cut_rows = 0;

  int64_t blocks = 0;
  std::vector<LogPlace> places;  // in order of their first visits
  std::optional<double> first_mib, last_mib;
  std::optional<std::pair<double, uint32_t>> highest;
  std::vector<LogPoint> points;
  int64_t blocks_per_point = 1;
  // Notes about missing blocks, each with the place that follows.
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
  // By size and dtype, as roles may change: the kinds with living storages, by their first births.
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
// Returns read_log()'s errors, and ResourceExhausted if the log has too much variety.
absl::StatusOr<LogDigest> read_log_digest(const std::string& path);

std::string log_summary(const LogDigest& log);
std::string log_plot(const LogRunDigest& run, size_t width = 79, size_t height = 14);
std::string log_svg(const LogDigest& log);
// Returns InvalidArgument if the last run of either has more blocks than are kept one by one.
absl::StatusOr<std::string> log_comparison(const LogDigest& before, const LogDigest& after);

}  // namespace memledger
