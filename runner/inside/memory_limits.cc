#include "runner/inside/memory_limits.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace memledger::inside {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 60;  // the first version has a number for none

// "max" is no number.
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &number)) return std::nullopt;
  return number;
}

int64_t sum_of(const std::string& path, std::string_view first_key, std::string_view second_key) {
  std::ifstream file(path);
  std::string key;
  int64_t number = 0, sum = 0;
  while (file >> key >> number) {
    if (key == first_key || key == second_key) sum += number;
  }
  return sum;
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

MemoryLimits::MemoryLimits(const std::string& groups, const std::string& groups_of_process) {
  std::ifstream file(groups_of_process);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[0] == "0" && parts[1].empty()) {
      find_groups(groups, parts[2], /*is_first_version=*/false);
    } else if (std::count(controllers.begin(), controllers.end(), "memory") > 0) {
      find_groups(groups + "/memory", parts[2], /*is_first_version=*/true);
    }
  }
}

// In a container, the path may be that of the machine, of which only the container's part is there.
void MemoryLimits::find_groups(const std::string& outermost, const std::string& path,
                               bool is_first_version) {
  const char* const usage = is_first_version ? "/memory.usage_in_bytes" : "/memory.current";
  std::string inner = path;
  while (true) {
    while (!inner.empty() && inner.back() == '/') inner.pop_back();
    if (exists(outermost + inner + usage)) groups_.push_back({outermost + inner, is_first_version});
    if (inner.empty()) return;
    inner.resize(inner.rfind('/') == std::string::npos ? 0 : inner.rfind('/'));
  }
}

std::optional<MemoryUse> MemoryLimits::use_of(const Group& group) {
  const bool first = group.is_first_version;
  const auto limit = number_in(group.folder + (first ? "/memory.limit_in_bytes" : "/memory.max"));
  const auto used =
      number_in(group.folder + (first ? "/memory.usage_in_bytes" : "/memory.current"));
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  const int64_t cache =
      first ? sum_of(group.folder + "/memory.stat", "total_inactive_file", "total_active_file")
            : sum_of(group.folder + "/memory.stat", "inactive_file", "active_file");
  return MemoryUse{std::max<int64_t>(0, *used - cache), *limit};
}

std::optional<MemoryUse> MemoryLimits::nearest() const {
  std::optional<MemoryUse> nearest;
  for (const Group& group : groups_) {
    const std::optional<MemoryUse> use = use_of(group);
    if (use && (!nearest ||
                use->limit_bytes - use->used_bytes < nearest->limit_bytes - nearest->used_bytes))
      nearest = use;
  }
  return nearest;
}

}  // namespace memledger::inside
