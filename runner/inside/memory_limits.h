#pragma once

// What the kernel lets this process' control groups use: beyond it, processes are killed.
//
//   const MemoryLimits limits;
//   if (const auto nearest = limits.nearest()) … nearest->used_bytes …

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace memledger::inside {

// What one group uses. What can be dropped at any time (the cache of files) does not count as used.
struct MemoryUse {
  int64_t used_bytes = 0;
  int64_t limit_bytes = 0;
};

// Versions 1 and 2 of control groups, the outer groups included. Thread-safe.
class MemoryLimits {
 public:
  // Finds the groups. The process should not change them later.
  explicit MemoryLimits(const std::string& groups = "/sys/fs/cgroup",
                        const std::string& groups_of_process = "/proc/self/cgroup");

  // Returns the group with the least room, or nothing where there is no limit. Reads three files of
  // each group.
  std::optional<MemoryUse> nearest() const;

 private:
  struct Group {
    std::string folder;
    bool is_first_version = false;
  };
  void find_groups(const std::string& outermost, const std::string& path, bool is_first_version);
  static std::optional<MemoryUse> use_of(const Group& group);

  std::vector<Group> groups_;
};

}  // namespace memledger::inside
