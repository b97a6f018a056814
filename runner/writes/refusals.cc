#include "runner/writes/refusals.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace memledger::runner {
namespace {

using prediction::Refusal;

// Calls that are refused between two file systems, and what is noted before of the other path.
struct TwoPaths {
  const char* call;
  const char* other;
};
constexpr TwoPaths kTwoPaths[] = {{"rename: EXDEV", "rename to: EXDEV"},
                                  {"link: EXDEV", "link from: EXDEV"}};

const Mount* mount_of(const std::string& path, const std::vector<Mount>& mounts) {
  const Mount* deepest = nullptr;
  for (const Mount& mount : mounts) {
    const bool is_deeper = deepest == nullptr || mount.path.size() > deepest->path.size();
    if (is_deeper && is_within(path, mount.path)) deepest = &mount;
  }
  return deepest;
}

// The other path is noted right before. Another process may have come in between, and each path is
// noted once: then any of them may be the one.
bool may_be_within_one_mount(const std::vector<Refusal>& noted, size_t call, const char* other_path,
                             const std::vector<Mount>& mounts) {
  const Mount* const mount = mount_of(noted[call].path, mounts);
  if (call > 0 && noted[call - 1].what == other_path)
    return mount_of(noted[call - 1].path, mounts) == mount;
  return std::any_of(noted.begin(), noted.end(), [&](const Refusal& other) {
    return other.what == other_path && mount_of(other.path, mounts) == mount;
  });
}

// Whether it is refused without layers, too, or is no more than the other path of a call.
bool is_between_file_systems(const std::vector<Refusal>& noted, size_t call,
                             const std::vector<Mount>& mounts) {
  for (const TwoPaths& known : kTwoPaths) {
    if (noted[call].what == known.other) return true;
    if (noted[call].what == known.call)
      return !may_be_within_one_mount(noted, call, known.other, mounts);
  }
  return false;
}

bool became_read_only(const std::string& path, const prediction::Writes& writes) {
  for (const char* const folder : {"/dev", "/proc", "/sys"}) {
    if (is_within(path, folder)) return true;
  }
  return std::any_of(writes.read_only.begin(), writes.read_only.end(),
                     [&](const std::string& folder) { return is_within(path, folder); });
}

bool has(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

}  // namespace

bool may_listen(std::string_view sockets, const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(sockets.data(), sockets.size()), '\n')) {
    // NUMBER: REFERENCES PROTOCOL FLAGS TYPE STATE INODE [PATH]
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 7));
    if (fields.size() < 8) continue;
    const absl::string_view bound = absl::StripLeadingAsciiWhitespace(fields[7]);
    const bool is_relative = !absl::StartsWith(bound, "/") && !absl::StartsWith(bound, "@");
    if (bound == path || (is_relative && bound.substr(bound.rfind('/') + 1) == name)) return true;
  }
  return false;
}

std::vector<Refusal> refusals_of_layers(const std::vector<Refusal>& noted,
                                        const prediction::Writes& writes,
                                        const std::vector<Mount>& mounts,
                                        std::string_view sockets) {
  std::vector<Refusal> refusals;
  for (size_t i = 0; i < noted.size(); ++i) {
    const Refusal& refusal = noted[i];
    const bool is_ours =
        has(writes.host_files, refusal.path) || became_read_only(refusal.path, writes);
    const bool is_alike =
        is_between_file_systems(noted, i, mounts) ||
        (absl::EndsWith(refusal.what, ": EBUSY") && !is_ours) ||
        (absl::EndsWith(refusal.what, ": EROFS") && !became_read_only(refusal.path, writes)) ||
        (refusal.what == "open: FIFO" && has(writes.host_files, refusal.path)) ||
        (refusal.what == "connect: socket" &&
         (has(writes.host_files, refusal.path) || !may_listen(sockets, refusal.path)));
    if (!is_alike) refusals.push_back(refusal);
  }
  return refusals;
}

}  // namespace memledger::runner
