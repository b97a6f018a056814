#include "tracker/log_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace memledger {
namespace {

constexpr double kBytesPerMib = 1048576.0;
constexpr double kMostMib = 1e7;  // ten tebibytes
constexpr int64_t kMostStorages = 1000000000;

absl::string_view trimmed(absl::string_view text) { return absl::StripAsciiWhitespace(text); }
std::string to_string(absl::string_view text) { return std::string(text); }

// What stands between two texts, from `at` on; moves it behind the second.
std::optional<absl::string_view> between(absl::string_view line, absl::string_view begin, absl::string_view end) {
  const size_t from = line.find(begin);
  if (from == absl::string_view::npos) return std::nullopt;
  const size_t start = from + begin.size();
  const size_t to = line.find(end, start);
  if (to == absl::string_view::npos) return std::nullopt;
  return line.substr(start, to - start);
}

std::optional<double> number(absl::string_view text) {
  double value = 0;
  // Not the locale's.
  if (!absl::SimpleAtod(trimmed(text), &value)) return std::nullopt;
  // What no machine has is no figure of a log's.
  if (!(value >= 0 && value <= kMostMib)) return std::nullopt;
  return value;
}

struct Totals {
  std::optional<double> tensor_mib, allocated_mib;
};

// `Total Tensor Used Memory:0.0    Mb Total Allocated Memory:0.0    Mb`; the Python tool's README has `Total Used Memory` second.
std::optional<Totals> totals_of(absl::string_view line) {
  const size_t at = line.rfind("Total Tensor Used Memory:");
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view rest = line.substr(at);
  const auto tensor = between(rest, "Total Tensor Used Memory:", "Mb");
  auto allocated = between(rest, "Total Allocated Memory:", "Mb");
  if (!allocated.has_value()) allocated = between(rest, "Total Used Memory:", "Mb");
  // The last line of a log that was cut off may end anywhere.
  if (!tensor.has_value() || !allocated.has_value()) return std::nullopt;
  return Totals{number(*tensor), number(*allocated)};
}

const std::map<std::string, int64_t, std::less<>>& element_sizes() {
  static const auto* const sizes = new std::map<std::string, int64_t, std::less<>>{
      {"float64", 8},   {"float32", 4},     {"float16", 2}, {"bfloat16", 2}, {"int64", 8},       {"int32", 4},
      {"int16", 2},     {"int8", 1},        {"uint8", 1},   {"bool", 1},     {"complex32", 4},   {"uint16", 2},
      {"complex64", 8}, {"complex128", 16}, {"uint32", 4},  {"uint64", 8},   {"float8_e5m2", 1}, {"float8_e4m3fn", 1},
      {"qint8", 1},     {"quint8", 1},      {"qint32", 4}};
  return *sizes;
}

// Bytes that such a tensor takes; nothing where size or dtype do not tell.
std::optional<int64_t> bytes_of(absl::string_view size, absl::string_view dtype) {
  if (!absl::ConsumePrefix(&dtype, "torch.")) return std::nullopt;
  const auto element = element_sizes().find(to_string(dtype));
  if (element == element_sizes().end() || size.size() < 2) return std::nullopt;
  int64_t bytes = element->second;
  for (const absl::string_view part : absl::StrSplit(size.substr(1, size.size() - 2), ',', absl::SkipWhitespace())) {
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

// `+ | 3 * Size:(256, 256, 3, 3)     | Memory: 6.75 M | Parameter            | torch.float32 | features.5.weight …`
std::optional<LogRow> row_of(absl::string_view line) {
  LogRow row;
  row.sign = line[0];
  std::vector<absl::string_view> columns = absl::StrSplit(line, absl::MaxSplits(" | ", 5));
  if (columns.size() < 5) return std::nullopt;
  const std::vector<absl::string_view> count_and_size = absl::StrSplit(columns[1], absl::MaxSplits(" * Size:", 1));
  if (count_and_size.size() != 2 || !absl::SimpleAtoi(count_and_size[0], &row.count)) return std::nullopt;
  if (row.count <= 0 || row.count > kMostStorages) return std::nullopt;
  row.size = to_string(trimmed(count_and_size[1]));
  absl::string_view memory = trimmed(columns[2]);
  if (!absl::ConsumePrefix(&memory, "Memory: ") || !absl::ConsumeSuffix(&memory, " M")) return std::nullopt;
  const std::optional<double> mib = number(memory);
  if (!mib.has_value()) return std::nullopt;
  row.role = role_of(columns[3]);
  row.dtype = to_string(trimmed(columns[4]));
  if (columns.size() > 5) row.last = to_string(columns[5]);

  row.bytes = static_cast<int64_t>(*mib * kBytesPerMib + 0.5);
  row.exact = false;
  std::optional<int64_t> bytes = bytes_of(row.size, row.dtype);
  if (bytes.has_value() && !__builtin_mul_overflow(*bytes, row.count, &*bytes)) {
    const double worked_out = static_cast<double>(*bytes) / kBytesPerMib;
    // Cut in the log, to three significant digits at worst. A storage can be larger than its tensor; the column is right then.
    row.exact = worked_out >= *mib * 0.9985 && worked_out - *mib <= std::max(0.002, 0.0015 * worked_out);
    if (row.exact) row.bytes = *bytes;
  }
  return row;
}

}  // namespace

int64_t LogBlock::born_bytes() const {
  int64_t bytes = 0;
  for (const LogRow& row : rows) bytes += row.sign == '+' ? row.bytes : 0;
  return bytes;
}

int64_t LogBlock::died_bytes() const {
  int64_t bytes = 0;
  for (const LogRow& row : rows) bytes += row.sign == '-' ? row.bytes : 0;
  return bytes;
}

absl::StatusOr<MemoryLog> parse_log(std::string_view text, std::string name) {
  MemoryLog log;
  log.name = std::move(name);
  LogBlock block;
  const auto end_run = [&] {
    if (!log.runs.empty()) log.runs.back().cut_rows = static_cast<int64_t>(block.rows.size());
    block = {};
  };
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    if (trimmed(line).empty()) continue;
    if (absl::StartsWith(line, "GPU Memory Track | ")) {
      const auto totals = totals_of(line);
      if (!totals.has_value()) {
        ++log.unread_lines;
        continue;
      }
      end_run();
      LogRun& run = log.runs.emplace_back();
      run.date = to_string(trimmed(between(line, "GPU Memory Track | ", "|").value_or("")));
      run.tensor_mib = totals->tensor_mib;
      run.allocated_mib = totals->allocated_mib;
      continue;
    }
    // A log of which only a part is there is one, too.
    if (log.runs.empty()) log.runs.emplace_back();
    if (absl::StartsWith(line, "At ")) {
      const auto totals = totals_of(line);
      if (!totals.has_value()) {
        ++log.unread_lines;
        continue;
      }
      block.where = to_string(trimmed(line.substr(3, line.rfind("Total Tensor Used Memory:") - 3)));
      block.tensor_mib = totals->tensor_mib;
      block.allocated_mib = totals->allocated_mib;
      log.runs.back().blocks.push_back(std::move(block));
      block = {};
    } else if (absl::StartsWith(line, "+ | ") || absl::StartsWith(line, "- | ")) {
      std::optional<LogRow> row = row_of(line);
      if (row.has_value()) {
        block.rows.push_back(std::move(*row));
      } else {
        ++log.unread_lines;
      }
    } else if (absl::StartsWith(line, "  ")) {
      // verbose writes below the At line, missing blocks are told above it
      std::vector<LogBlock>& blocks = log.runs.back().blocks;
      const bool above = absl::StrContains(line, "blocks are missing here") || absl::StrContains(line, "no earlier instant");
      (above || blocks.empty() ? block : blocks.back()).notes.push_back(to_string(trimmed(line)));
    } else {
      ++log.unread_lines;
    }
  }
  end_run();
  size_t blocks = 0;
  for (const LogRun& run : log.runs) blocks += run.blocks.size();
  if (log.runs.empty() || (blocks == 0 && log.runs.front().date.empty())) {
    return absl::InvalidArgumentError(
        log.name + ": this is no log of MemTracker or gpu_mem_track: neither its header nor an At line is in it");
  }
  return log;
}

absl::StatusOr<MemoryLog> read_log(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "r"), &std::fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, path);
  std::string text;
  char buffer[65536];
  size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, file.get())) > 0) text.append(buffer, count);
  if (std::ferror(file.get()) != 0) return absl::ErrnoToStatus(errno, path);
  return parse_log(text, path);
}

}  // namespace memledger
