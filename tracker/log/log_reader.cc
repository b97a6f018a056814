#include "tracker/log_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tracker/log/log_parser.h"
#include "tracker/log/log_text.h"

namespace memledger {
namespace {

using log_text::kBytesPerMib;

// Written by gpu_mem_track.py in its README's sample, instead of kAllocatedTotal.
constexpr char kAllocatedTotalOfReadme[] = "Total Used Memory:";
constexpr double kMostMib = 1e7;  // ten tebibytes
constexpr int64_t kMostStorages = 1000000000;

absl::string_view trimmed(absl::string_view text) { return absl::StripAsciiWhitespace(text); }
std::string to_string(absl::string_view text) { return std::string(text); }

// Returns the part of the line after `begin` and before the `end` that follows it.
std::optional<absl::string_view> between(absl::string_view line, absl::string_view begin,
                                         absl::string_view end) {
  const size_t from = line.find(begin);
  if (from == absl::string_view::npos) return std::nullopt;
  const size_t start = from + begin.size();
  const size_t to = line.find(end, start);
  if (to == absl::string_view::npos) return std::nullopt;
  return line.substr(start, to - start);
}

std::optional<double> number(absl::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(trimmed(text), &value)) return std::nullopt;  // whatever the locale
  // A figure that no machine can have is none. NaN is neither.
  if (!(value >= 0 && value <= kMostMib)) return std::nullopt;
  return value;
}

struct Totals {
  std::optional<double> tensor_mib, allocated_mib;
};

std::optional<Totals> totals_of(absl::string_view line) {
  const size_t at = line.rfind(log_text::kTensorTotal);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view rest = line.substr(at);
  const auto tensor = between(rest, log_text::kTensorTotal, log_text::kTotalUnit);
  auto allocated = between(rest, log_text::kAllocatedTotal, log_text::kTotalUnit);
  if (!allocated.has_value())
    allocated = between(rest, kAllocatedTotalOfReadme, log_text::kTotalUnit);
  // The last line of a log that was cut off may end anywhere.
  if (!tensor.has_value() || !allocated.has_value()) return std::nullopt;
  return Totals{number(*tensor), number(*allocated)};
}

const std::map<std::string, int64_t, std::less<>>& element_sizes() {
  static const auto* const sizes = new std::map<std::string, int64_t, std::less<>>{
      {"float64", 8},   {"float32", 4},     {"float16", 2},       {"bfloat16", 2},    {"int64", 8},
      {"int32", 4},     {"int16", 2},       {"int8", 1},          {"uint8", 1},       {"bool", 1},
      {"complex32", 4}, {"uint16", 2},      {"complex64", 8},     {"complex128", 16}, {"uint32", 4},
      {"uint64", 8},    {"float8_e5m2", 1}, {"float8_e4m3fn", 1}, {"qint8", 1},       {"quint8", 1},
      {"qint32", 4}};
  return *sizes;
}

// Returns the bytes of a tensor of that size and dtype, if these are known.
std::optional<int64_t> bytes_of(absl::string_view size, absl::string_view dtype) {
  if (!absl::ConsumePrefix(&dtype, "torch.")) return std::nullopt;
  const auto element = element_sizes().find(to_string(dtype));
  if (element == element_sizes().end() || size.size() < 2) return std::nullopt;
  int64_t bytes = element->second;
  for (const absl::string_view part :
       absl::StrSplit(size.substr(1, size.size() - 2), ',', absl::SkipWhitespace())) {
    int64_t length = 0;
    if (!absl::SimpleAtoi(trimmed(part), &length)) return std::nullopt;
    if (__builtin_mul_overflow(bytes, length, &bytes)) return std::nullopt;
  }
  return bytes;
}

// <class 'torch.nn.parameter.Parameter'> is Parameter.
std::string role_of(absl::string_view type) {
  type = trimmed(type);
  if (absl::ConsumePrefix(&type, "<class '")) {
    type = type.substr(0, type.find('\''));
    const size_t dot = type.rfind('.');
    if (dot != absl::string_view::npos) type.remove_prefix(dot + 1);
  }
  return to_string(type);
}

struct CountAndSize {
  int64_t count = 0;
  std::string size;
};

std::optional<CountAndSize> count_and_size_of(absl::string_view column) {
  CountAndSize result;
  const std::vector<absl::string_view> parts =
      absl::StrSplit(column, absl::MaxSplits(log_text::kSize, 1));
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &result.count)) return std::nullopt;
  if (result.count <= 0 || result.count > kMostStorages) return std::nullopt;
  result.size = to_string(trimmed(parts[1]));
  return result;
}

std::optional<double> mib_of(absl::string_view column) {
  column = trimmed(column);
  if (!absl::ConsumePrefix(&column, log_text::kMemory) ||
      !absl::ConsumeSuffix(&column, log_text::kMemoryUnit))
    return std::nullopt;
  return number(column);
}

// Works out the bytes from size and dtype, unless the Memory column contradicts them: a storage can
// be larger than its tensor. The log cuts that column to three significant digits at worst.
void set_bytes(LogRow& row, double mib) {
  row.bytes = static_cast<int64_t>(mib * kBytesPerMib + 0.5);
  row.exact = false;
  std::optional<int64_t> bytes = bytes_of(row.size, row.dtype);
  if (!bytes.has_value() || __builtin_mul_overflow(*bytes, row.count, &*bytes)) return;
  const double exact_mib = static_cast<double>(*bytes) / kBytesPerMib;
  row.exact = exact_mib >= mib * 0.9985 && exact_mib - mib <= std::max(0.002, 0.0015 * exact_mib);
  if (row.exact) row.bytes = *bytes;
}

std::optional<LogRow> row_of(absl::string_view line) {
  // Python's logs have no sixth column. The names in it may contain anything.
  const std::vector<absl::string_view> columns =
      absl::StrSplit(line, absl::MaxSplits(log_text::kColumnEnd, 5));
  if (columns.size() < 5) return std::nullopt;
  const std::optional<CountAndSize> count_and_size = count_and_size_of(columns[1]);
  const std::optional<double> mib = mib_of(columns[2]);
  if (!count_and_size.has_value() || !mib.has_value()) return std::nullopt;
  LogRow row;
  row.sign = line[0];
  row.count = count_and_size->count;
  row.size = count_and_size->size;
  row.role = role_of(columns[3]);
  row.dtype = to_string(trimmed(columns[4]));
  if (columns.size() > 5) row.last = to_string(columns[5]);
  set_bytes(row, *mib);
  return row;
}

bool is_row(absl::string_view line) {
  return (absl::StartsWith(line, "+") || absl::StartsWith(line, "-")) &&
         absl::StartsWith(line.substr(1), log_text::kColumnEnd);
}

// The others stand below their block's At line.
bool stands_above_block(absl::string_view note) {
  return absl::StrContains(note, log_text::kBlocksMissing) ||
         absl::StrContains(note, log_text::kNoEarlierInstant);
}

constexpr char kExpected[] = "expected a log of MemTracker or gpu_mem_track";

// Takes a text in pieces of any length and passes its blocks to the visitor.
class LogParser {
 public:
  LogParser(std::string name, LogVisitor& visitor) : name_(std::move(name)), visitor_(visitor) {}

  absl::Status feed(absl::string_view piece) {
    for (size_t end = piece.find('\n'); end != absl::string_view::npos; end = piece.find('\n')) {
      if (absl::Status status = add_to_line(piece.substr(0, end)); !status.ok()) return status;
      if (absl::Status status = end_line(); !status.ok()) return status;
      piece.remove_prefix(end + 1);
    }
    return add_to_line(piece);
  }

  // Returns the number of lines that could not be read.
  absl::StatusOr<int64_t> end() {
    if (!begun_.empty()) {
      if (absl::Status status = end_line(); !status.ok()) return status;
    }
    end_run();
    if (blocks_ == 0 && !has_date_) {
      return absl::InvalidArgumentError(
          fmt::format("{}: this is no log of MemTracker or gpu_mem_track: neither its header nor "
                      "an At line is in its {} line{}",
                      name_, lines_, lines_ == 1 ? "" : "s"));
    }
    return unread_lines_;
  }

 private:
  // Lines count from 1.
  absl::Status at_line(absl::StatusCode code, const std::string& what) const {
    return absl::Status(code, fmt::format("{}: line {}: {}", name_, lines_, what));
  }

  absl::Status add_to_line(absl::string_view part) {
    if (begun_.size() + part.size() > kMostBytesOfLine) {
      ++lines_;
      return at_line(absl::StatusCode::kInvalidArgument,
                     fmt::format("longer than {} bytes; {}", kMostBytesOfLine, kExpected));
    }
    begun_.append(part.data(), part.size());
    return absl::OkStatus();
  }

  absl::Status end_line() {
    ++lines_;
    const absl::Status status = read_line(begun_);
    begun_.clear();
    if (status.ok()) return status;
    return at_line(status.code(), to_string(status.message()));
  }

  void end_run() {
    if (in_run_) visitor_.cut(static_cast<int64_t>(block_.rows.size()));
    block_ = {};
    block_bytes_ = 0;
  }

  absl::Status begin_run(LogRun header) {
    end_run();
    if (!in_run_) has_date_ = !header.date.empty();
    in_run_ = true;
    has_block_ = false;
    return visitor_.begin_run(std::move(header));
  }

  absl::Status unread(absl::string_view line) {
    ++unread_lines_;
    unread_bytes_ += line.size() + 1;
    if (blocks_ > 0 || has_date_ || unread_bytes_ <= kMostBytesBeforeLog) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("neither a header nor an At line in {} bytes; {}",
                                                  kMostBytesBeforeLog, kExpected));
  }

  absl::Status charge_block(size_t bytes) {
    block_bytes_ += bytes;
    if (block_bytes_ <= kMostBytesOfBlock) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("a block of more than {} bytes, and its At line has not come yet; {}",
                    kMostBytesOfBlock, kExpected));
  }

  absl::Status read_line(absl::string_view line) {
    absl::ConsumeSuffix(&line, "\r");
    if (trimmed(line).empty()) return absl::OkStatus();
    if (absl::StartsWith(line, log_text::kHeader)) return read_header(line);
    // Part of a log may lack its header.
    if (!in_run_) {
      if (absl::Status status = begin_run({}); !status.ok()) return status;
    }
    if (absl::StartsWith(line, log_text::kAt)) return read_at_line(line);
    if (is_row(line)) return read_row(line);
    if (absl::StartsWith(line, log_text::kNote)) return read_note(line);
    return unread(line);
  }

  absl::Status read_header(absl::string_view line) {
    const auto totals = totals_of(line);
    if (!totals.has_value()) return unread(line);
    LogRun run;
    run.date = to_string(trimmed(between(line, log_text::kHeader, "|").value_or("")));
    run.tensor_mib = totals->tensor_mib;
    run.allocated_mib = totals->allocated_mib;
    return begin_run(std::move(run));
  }

  absl::Status read_at_line(absl::string_view line) {
    const auto totals = totals_of(line);
    if (!totals.has_value()) return unread(line);
    absl::string_view where = line.substr(0, line.rfind(log_text::kTensorTotal));
    absl::ConsumePrefix(&where, log_text::kAt);
    LogBlock block = std::exchange(block_, {});
    block.where = to_string(trimmed(where));
    block.tensor_mib = totals->tensor_mib;
    block.allocated_mib = totals->allocated_mib;
    block_bytes_ = 0;
    ++blocks_;
    has_block_ = true;
    return visitor_.add_block(std::move(block));
  }

  absl::Status read_row(absl::string_view line) {
    std::optional<LogRow> row = row_of(line);
    if (!row.has_value()) return unread(line);
    block_.rows.push_back(std::move(*row));
    return charge_block(sizeof(LogRow) + line.size());
  }

  absl::Status read_note(absl::string_view line) {
    std::string note = to_string(trimmed(line));
    if (has_block_ && !stands_above_block(line)) return visitor_.add_note(std::move(note));
    block_.notes.push_back(std::move(note));
    return charge_block(sizeof(std::string) + line.size());
  }

  const std::string name_;
  LogVisitor& visitor_;
  std::string begun_;  // line whose end has not come yet
  LogBlock block_;     // block whose At line has not come yet
  size_t block_bytes_ = 0;
  int64_t lines_ = 0, blocks_ = 0, unread_lines_ = 0;
  size_t unread_bytes_ = 0;
  bool in_run_ = false, has_block_ = false;
  bool has_date_ = false;  // of the first run's header
};

// Keeps the whole log.
class LogCollector final : public LogVisitor {
 public:
  explicit LogCollector(std::string name) { log.name = std::move(name); }

  absl::Status begin_run(LogRun header) override {
    log.runs.push_back(std::move(header));
    return absl::OkStatus();
  }
  absl::Status add_block(LogBlock block) override {
    log.runs.back().blocks.push_back(std::move(block));
    return absl::OkStatus();
  }
  absl::Status add_note(std::string note) override {
    log.runs.back().blocks.back().notes.push_back(std::move(note));
    return absl::OkStatus();
  }
  void cut(int64_t rows) override { log.runs.back().cut_rows = rows; }

  MemoryLog log;
};

absl::StatusOr<MemoryLog> collected(LogCollector collector, absl::StatusOr<int64_t> unread_lines) {
  if (!unread_lines.ok()) return unread_lines.status();
  collector.log.unread_lines = *unread_lines;
  return std::move(collector.log);
}

int64_t bytes_with(const std::vector<LogRow>& rows, char sign) {
  int64_t bytes = 0;
  for (const LogRow& row : rows) {
    if (row.sign == sign && __builtin_add_overflow(bytes, row.bytes, &bytes))
      return std::numeric_limits<int64_t>::max();
  }
  return bytes;
}

class File {
 public:
  // Does not wait for a writer if the path is a pipe.
  explicit File(const std::string& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int number() const { return number_; }

  // Makes reads wait for a pipe's writer from now on.
  void wait() const { ::fcntl(number_, F_SETFL, ::fcntl(number_, F_GETFL) & ~O_NONBLOCK); }

 private:
  const int number_;
};

}  // namespace

int64_t LogBlock::born_bytes() const { return bytes_with(rows, '+'); }
int64_t LogBlock::died_bytes() const { return bytes_with(rows, '-'); }

absl::StatusOr<int64_t> visit_log_text(std::string_view text, const std::string& name,
                                       LogVisitor& visitor) {
  LogParser parser(name, visitor);
  if (absl::Status status = parser.feed(absl::string_view(text.data(), text.size())); !status.ok())
    return status;
  return parser.end();
}

absl::StatusOr<int64_t> visit_log_file(const std::string& path, LogVisitor& visitor) {
  const File file(path);
  struct stat status;
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0)
    return absl::ErrnoToStatus(errno, path);
  if (S_ISDIR(status.st_mode))
    return absl::InvalidArgumentError(fmt::format("{}: a folder; {}", path, kExpected));
  LogParser parser(path, visitor);
  std::vector<char> buffer(size_t{1} << 16);
  for (bool first = true;; first = false) {
    const ssize_t count = ::read(file.number(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      file.wait();
      continue;
    }
    if (count < 0) return absl::ErrnoToStatus(errno, path);
    if (count == 0 && first && S_ISFIFO(status.st_mode)) {
      return absl::InvalidArgumentError(
          fmt::format("{}: a pipe that nobody writes to; {}", path, kExpected));
    }
    if (count == 0) return parser.end();
    if (absl::Status fed =
            parser.feed(absl::string_view(buffer.data(), static_cast<size_t>(count)));
        !fed.ok())
      return fed;
  }
}

absl::StatusOr<MemoryLog> parse_log(std::string_view text, std::string name) {
  LogCollector collector(name);
  absl::StatusOr<int64_t> unread_lines = visit_log_text(text, name, collector);
  return collected(std::move(collector), std::move(unread_lines));
}

absl::StatusOr<MemoryLog> read_log(const std::string& path) {
  LogCollector collector(path);
  absl::StatusOr<int64_t> unread_lines = visit_log_file(path, collector);
  return collected(std::move(collector), std::move(unread_lines));
}

}  // namespace memledger
