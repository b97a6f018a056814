#include "runner/writes/mount_table.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace memledger::runner {
namespace {

constexpr std::array<std::string_view, 21> kOfTheKernel = {
    "autofs", "binfmt_misc", "bpf",        "cgroup",     "cgroup2",   "configfs", "debugfs",
    "devpts", "devtmpfs",    "efivarfs",   "fusectl",    "hugetlbfs", "mqueue",   "nsfs",
    "proc",   "pstore",      "rpc_pipefs", "securityfs", "selinuxfs", "sysfs",    "tracefs"};

// The kernel writes a space, a tab, a newline and a backslash as \040, \011, \012 and \134.
std::string unescaped(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return text[i + at] - '0'; };
    const bool is_escape = text[i] == '\\' && i + 3 < text.size() && digit(1) >= 0 &&
                           digit(1) <= 3 && digit(2) >= 0 && digit(2) <= 7 && digit(3) >= 0 &&
                           digit(3) <= 7;
    if (!is_escape) {
      result += text[i];
      continue;
    }
    result += static_cast<char>(digit(1) * 64 + digit(2) * 8 + digit(3));
    i += 3;
  }
  return result;
}

// ID PARENT MAJOR:MINOR ROOT PATH OPTIONS [FIELD…] - TYPE SOURCE OPTIONS
bool parse(std::string_view line, Mount& mount) {
  const std::vector<std::string> fields =
      absl::StrSplit(absl::string_view(line.data(), line.size()), ' ');
  const auto separator = std::find(fields.begin(), fields.end(), "-");
  if (fields.size() < 6 || fields.end() - separator < 2) return false;
  mount.path = unescaped(fields[4]);
  mount.type = *(separator + 1);
  return absl::SimpleAtoi(fields[0], &mount.id) && absl::SimpleAtoi(fields[1], &mount.parent);
}

class Visible {
 public:
  explicit Visible(const std::vector<Mount>& all) {
    for (const Mount& mount : all) children_[mount.parent].push_back(&mount);
  }

  void add(const Mount& mount) {
    const std::vector<const Mount*>& inner = children_[mount.id];
    // One that covers this one wholly takes its place.
    for (const Mount* const child : inner) {
      if (child->path == mount.path && child->id != mount.id) return add(*child);
    }
    result.push_back(mount);
    for (const Mount* const child : inner) {
      if (child->id != mount.id && !is_covered(*child, inner)) add(*child);
    }
  }

  std::vector<Mount> result;

 private:
  // By a later mount on one of the folders on its way. A mount on a path that is covered has the
  // covering one as its parent, so it is enough to look at brothers.
  static bool is_covered(const Mount& mount, const std::vector<const Mount*>& brothers) {
    return std::any_of(brothers.begin(), brothers.end(), [&](const Mount* brother) {
      return brother != &mount && brother->path != mount.path &&
             is_within(mount.path, brother->path);
    });
  }

  std::map<int, std::vector<const Mount*>> children_;
};

}  // namespace

bool is_within(std::string_view path, std::string_view folder) {
  if (folder == "/") return !path.empty() && path[0] == '/';
  return path.substr(0, folder.size()) == folder &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

bool holds_files(std::string_view type) {
  return std::find(kOfTheKernel.begin(), kOfTheKernel.end(), type) == kOfTheKernel.end();
}

std::vector<Mount> visible_mounts(std::string_view mountinfo) {
  std::vector<Mount> all;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(mountinfo.data(), mountinfo.size()), '\n')) {
    Mount mount;
    if (parse({line.data(), line.size()}, mount)) all.push_back(std::move(mount));
  }
  // The lowest mount at the root: its parent is no mount of this process's.
  Visible visible(all);
  for (const Mount& mount : all) {
    const bool is_lowest =
        mount.path == "/" && std::none_of(all.begin(), all.end(), [&](const Mount& other) {
          return other.id == mount.parent && other.id != mount.id;
        });
    if (is_lowest) {
      visible.add(mount);
      break;
    }
  }
  return visible.result;
}

}  // namespace memledger::runner
