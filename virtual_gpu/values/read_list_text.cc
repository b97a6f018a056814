#include "virtual_gpu/values/read_list_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "text/bytes.h"
#include "virtual_gpu/reads.h"

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kMostRows = 10;
constexpr uint32_t kMillion = 1000000;

std::string times(uint64_t count) { return count == 1 ? "once" : std::to_string(count) + " times"; }

std::string policy_in_words(uint32_t millionths) {
  if (millionths == 0) return "reads=none: none of them";
  if (millionths == kVariedMillionths)
    return "reads=varied: of each tensor another share of the largest possible";
  if (millionths >= kMillion) return "reads=all: the largest possible";
  std::string digits = std::to_string(kMillion + millionths).substr(1);
  digits.erase(digits.find_last_not_of('0') + 1);
  return "reads=0." + digits + ": that share of the largest possible";
}

bool is_size(const ReadRow& row) {
  return row.kind == ReadKind::kAssumedSize || row.kind == ReadKind::kUnboundedSize;
}

std::string number_text(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", number);
  return text.data();
}

std::string row_text(const ReadRow& row) {
  std::string text = "  " + row.op + ", " + times(row.count);
  if (row.kind == ReadKind::kScalar || row.kind == ReadKind::kFraction) {
    text += ": a value, read as " + number_text(row.assumed);
  } else if (row.kind == ReadKind::kNumber) {
    text += ": a whole number, read as " + number_text(row.assumed);
  } else if (row.kind == ReadKind::kSaid) {
    text += ": read as you said, " + number_text(row.assumed);
  } else if (row.kind == ReadKind::kReceived) {
    text += ": a whole number of other ranks, taken to be this one's";
  } else {
    text += ": " + size_in_words(static_cast<double>(row.dependent_bytes)) + " of results";
    if (row.kind == ReadKind::kUnboundedSize) text += ", no largest size is known";
  }
  if (!row.where.empty()) text += ", first at " + row.where;
  return text + "\n";
}

}  // namespace

std::string read_list_text(const std::vector<ReadRow>& rows, uint32_t millionths) {
  if (rows.empty()) return "";
  uint64_t sizes = 0, scalars = 0;
  bool has_unbounded = false;
  for (const ReadRow& row : rows) {
    (is_size(row) ? sizes : scalars) += row.count;
    has_unbounded |= row.kind == ReadKind::kUnboundedSize;
  }
  std::string text = "memledger virtual GPU: the host read what only the device knows";
  if (sizes > 0) text += "; sizes " + times(sizes) + " (" + policy_in_words(millionths) + ")";
  if (scalars > 0) text += "; values that may steer the program " + times(scalars);
  text += ":\n";
  const size_t shown = std::min(rows.size(), kMostRows);
  for (size_t i = 0; i < shown; ++i) text += row_text(rows[i]);
  if (shown < rows.size()) text += "  and " + std::to_string(rows.size() - shown) + " more\n";
  if (sizes > 0 && millionths == kMillion) {
    text += "  The peak of allocated bytes is an upper end";
    if (has_unbounded) text += " but for what has no largest size";
    text += "; a run with reads=none gives the lower one.\n";
  }
  return text;
}

}  // namespace memledger::virtual_gpu
