#pragma once

// What is mounted where, as this process sees it.

#include <string>
#include <string_view>
#include <vector>

namespace memledger::runner {

struct Mount {
  int id = 0;
  int parent = 0;
  std::string path;  // where it is mounted
  std::string type;  // of its file system: ext4
};

// Returns the mounts of a text such as /proc/self/mountinfo that can be reached by their path, each
// after the one that it is mounted on. What another mount covers is left out, and so are lines that
// cannot be read.
std::vector<Mount> visible_mounts(std::string_view mountinfo);

// Whether `path` is `folder` or lies below it. Both are absolute, without `.`, `..` and a slash at
// the end.
bool is_within(std::string_view path, std::string_view folder);

// Whether a file system of this type holds files of users, which an overlay can cover. Others are
// the kernel's own: proc, sysfs, devpts, cgroup2.
bool holds_files(std::string_view type);

}  // namespace memledger::runner
