#include "runner/writes/private_root.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runner/writes/layer_files.h"
#include "runner/writes/mount_table.h"
#include "runner/writes/refusals.h"
#include "text/file_text.h"

namespace memledger::runner {
namespace {

// A machine with more mounts, a container host, say, is not worth the seconds that they would take.
constexpr size_t kMaxSteps = 4096;
constexpr char kShared[] = "/dev/shm";

// CAP_CHECKPOINT_RESTORE came with Linux 5.9.
constexpr int kCheckpointRestore = 40;
// With which root could leave the new root again, look into the process that made it, or change
// what no file system holds.
constexpr std::array kGivenUp = {CAP_SYS_ADMIN,       CAP_SYS_PTRACE,     kCheckpointRestore,
                                 CAP_DAC_READ_SEARCH, CAP_MKNOD,          CAP_SYSLOG,
                                 CAP_SYS_MODULE,      CAP_SYS_RAWIO,      CAP_SYS_BOOT,
                                 CAP_SYS_TIME,        CAP_LINUX_IMMUTABLE};

bool has_capability(int number) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  return syscall(SYS_capget, &header, data.data()) == 0 &&
         (data[static_cast<size_t>(number) / 32].effective >> (number % 32) & 1) != 0;
}

// Whether all users are who they are outside.
bool is_initial_user_namespace() {
  const std::vector<std::string> fields =
      absl::StrSplit(file_text("/proc/self/uid_map"), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return fields == std::vector<std::string>{"0", "0", std::to_string(UINT32_MAX)};
}

bool is_folder(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

bool is_on_read_only_mount(const std::string& path) {
  struct statvfs found {};
  return statvfs(path.c_str(), &found) == 0 && (found.f_flag & ST_RDONLY) != 0;
}

std::string joined(const std::string& folder, const std::string& name) {
  return folder == "/" ? "/" + name : folder + "/" + name;
}

std::optional<std::string> real_path(const std::string& path) {
  char* const found = realpath(path.c_str(), nullptr);
  if (found == nullptr) return std::nullopt;
  std::string result = found;
  free(found);
  return result;
}

// Names and types as the folder has them; nothing where it cannot be read.
struct Entry {
  std::string name;
  unsigned char type;
};
std::optional<std::vector<Entry>> entries_of(const std::string& folder) {
  DIR* const list = opendir(folder.c_str());
  if (list == nullptr) return std::nullopt;
  std::vector<Entry> entries;
  while (const dirent* const entry = readdir(list)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") entries.push_back({name, entry->d_type});
  }
  closedir(list);
  return entries;
}

// Paths of sockets, as /proc/net/unix has them: not those that were bound by a relative one.
std::vector<std::string> paths_of_sockets(const std::string& sockets) {
  std::vector<std::string> paths;
  for (const absl::string_view line : absl::StrSplit(sockets, '\n')) {
    const size_t path = line.find(" /");
    if (path != absl::string_view::npos) paths.emplace_back(line.substr(path + 1));
  }
  return paths;
}

void add_sockets_and_fifos_in(const std::string& folder, std::vector<std::string>& paths) {
  for (const Entry& entry : entries_of(folder).value_or(std::vector<Entry>())) {
    if (entry.type == DT_FIFO || entry.type == DT_SOCK) paths.push_back(joined(folder, entry.name));
  }
}

uint64_t bytes_of_file_system(const char* path, uint64_t otherwise) {
  struct statvfs found {};
  const bool is_known = statvfs(path, &found) == 0 && found.f_blocks > 0;
  return is_known ? uint64_t{found.f_blocks} * found.f_frsize : otherwise;
}

// What follows is called in a child of a process with threads, and allocates nothing.

using Path = std::array<char, size_t{2} * PATH_MAX>;

// Returns false where the path is too long.
bool set_path(Path& path, const char* folder, const char* name) {
  const int length = std::snprintf(path.data(), path.size(), "%s/%s", folder, name);
  errno = ENAMETOOLONG;
  return length > 0 && static_cast<size_t>(length) < path.size();
}
bool set_layer_path(Path& path, const char* layers, char kind, int number) {
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "%c/%d", kind, number);
  return set_path(path, layers, name.data());
}

unsigned long flags_of(const char* path) {
  struct statvfs found {};
  if (statvfs(path, &found) != 0) return 0;
  return (found.f_flag & ST_NOSUID ? MS_NOSUID : 0) | (found.f_flag & ST_NODEV ? MS_NODEV : 0) |
         (found.f_flag & ST_NOEXEC ? MS_NOEXEC : 0);
}

// mount_setattr() came with Linux 5.12, and the C library's declaration later.
bool make_read_only(const char* path, bool with_all_below) {
  constexpr long kMountSetattr = 442;                          // on all architectures
  constexpr unsigned kRecursive = 0x8000;                      // AT_RECURSIVE
  const std::array<uint64_t, 4> set_read_only = {1, 0, 0, 0};  // MOUNT_ATTR_RDONLY
  if (syscall(kMountSetattr, AT_FDCWD, path, with_all_below ? kRecursive : 0, set_read_only.data(),
              sizeof set_read_only) == 0)
    return true;
  if (errno != ENOSYS) return false;
  return mount(nullptr, path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | flags_of(path),
               nullptr) == 0;
}

bool mount_memory(const char* path, uint64_t bytes) {
  std::array<char, 64> options{};
  std::snprintf(options.data(), options.size(), "mode=700,size=%llu",
                static_cast<unsigned long long>(bytes));
  return mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options.data()) == 0;
}

bool write_text(const char* path, const char* text, size_t length) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool is_written = write(file, text, length) == static_cast<ssize_t>(length);
  close(file);
  return is_written;
}

// A path of a descriptor, which needs no escapes in options of a mount.
class DescriptorPath {
 public:
  explicit DescriptorPath(const char* folder) : file_(open(folder, O_PATH | O_CLOEXEC)) {
    std::snprintf(path_.data(), path_.size(), "/proc/self/fd/%d", file_);
  }
  ~DescriptorPath() {
    const int error = errno;
    if (file_ >= 0) close(file_);
    errno = error;
  }
  DescriptorPath(const DescriptorPath&) = delete;
  DescriptorPath& operator=(const DescriptorPath&) = delete;
  explicit operator bool() const { return file_ >= 0; }
  const char* path() const { return path_.data(); }

 private:
  const int file_;
  std::array<char, 32> path_{};
};

}  // namespace

// Decides what is done with each folder.
class PrivateRoot::Planner {
 public:
  Planner(const PrivateRootOptions& options, PrivateRoot& root)
      : options_(options),
        root_(root),
        mounts_(visible_mounts(file_text("/proc/self/mountinfo"))) {}

  absl::Status plan() {
    if (mounts_.empty()) return absl::UnavailableError("/proc/self/mountinfo names no mount");
    if (covers_whole_mounts()) {
      for (const Mount& mount : mounts_) add_mount(mount);
    } else {
      cover("/");
    }
    add_special();
    for (const std::string& folder : options_.writable) add(Step::Kind::kWritable, folder, folder);
    add_sockets_and_fifos();
    if (root_.steps_.size() > kMaxSteps)
      return absl::UnavailableError(absl::StrCat(root_.steps_.size(), " mounts would be needed"));
    add_folders_on_the_way();
    return absl::OkStatus();
  }

 private:
  // In a user namespace the kernel refuses an overlay of a folder that has mounts below it, as it
  // would show what they hide.
  bool covers_whole_mounts() const { return root_.is_initial_; }

  static bool is_special(const std::string& path) {
    return path == "/proc" || path == "/sys" || path == "/dev";
  }

  Step& add(Step::Kind kind, std::string source, const std::string& path) {
    Step step;
    step.kind = kind;
    step.source = std::move(source);
    step.target = path == "/" ? root_.root_ : root_.root_ + path;
    root_.steps_.push_back(std::move(step));
    return root_.steps_.back();
  }

  void add_overlay(const std::string& path) {
    if (is_on_read_only_mount(path)) {
      add(Step::Kind::kBind, path, path);
      return;
    }
    add(Step::Kind::kOverlay, path, path).layer = static_cast<int>(root_.layers_of_.size());
    root_.layers_of_.push_back({path, {}});
  }

  bool is_bound(const std::string& path) const {
    return std::any_of(bound_.begin(), bound_.end(),
                       [&](const std::string& folder) { return is_within(path, folder); });
  }
  void bind_all(const std::string& path) {
    add(Step::Kind::kBindAll, path, path);
    bound_.push_back(path);
  }

  // /proc comes last, as the others are mounted by paths in it.
  void add_mount(const Mount& mount) {
    const std::string& path = mount.path;
    if (is_bound(path) || is_within(path, "/proc")) return;
    struct stat found {};
    if (stat(path.c_str(), &found) != 0) return;
    if (!S_ISDIR(found.st_mode)) {
      add(Step::Kind::kBind, path, path).is_read_only = true;
    } else if (is_special(path) || !holds_files(mount.type)) {
      bind_all(path);
    } else if (covers_whole_mounts()) {
      add_overlay(path);
    } else {
      cover(path);
    }
  }

  const Mount* mount_at(const std::string& path) const {
    const auto found = std::find_if(mounts_.begin(), mounts_.end(),
                                    [&](const Mount& mount) { return mount.path == path; });
    return found == mounts_.end() ? nullptr : &*found;
  }
  bool has_mounts_below(const std::string& path) const {
    return std::any_of(mounts_.begin(), mounts_.end(), [&](const Mount& mount) {
      return mount.path != path && is_within(mount.path, path);
    });
  }

  void cover(const std::string& path) {
    if (!has_mounts_below(path)) return add_overlay(path);
    const std::optional<std::vector<Entry>> entries = entries_of(path);
    add(Step::Kind::kFolder, path, path);
    if (!entries) {
      bind_all(path);
      root_.steps_.back().is_read_only = true;
      return;
    }
    root_.ours_.push_back(path == "/" ? "" : path);
    for (const Entry& entry : *entries) {
      const std::string inner = joined(path, entry.name);
      if (is_special(inner)) {
        add(Step::Kind::kFolder, inner, inner);
        root_.ours_.push_back(inner);
        if (inner != "/proc") bind_all(inner);
        continue;
      }
      const Mount* const mount = mount_at(inner);
      if (entry.type == DT_LNK) {
        std::array<char, PATH_MAX> target{};
        const ssize_t length = readlink(inner.c_str(), target.data(), target.size() - 1);
        if (length > 0)
          add(Step::Kind::kLink, std::string(target.data(), static_cast<size_t>(length)), inner);
        root_.ours_.push_back(inner);
      } else if (is_folder(inner)) {
        const bool is_made_by_cover = mount == nullptr || holds_files(mount->type);
        if (!is_made_by_cover || !has_mounts_below(inner)) {
          add(Step::Kind::kFolder, inner, inner);
          root_.ours_.push_back(inner);
        }
        mount == nullptr ? cover(inner) : add_mount(*mount);
      } else {
        add(Step::Kind::kFile, inner, inner);
        add(Step::Kind::kBind, inner, inner).is_read_only = true;
        root_.ours_.push_back(inner);
      }
    }
  }

  void add_special() {
    // Where they are no mounts: a chroot.
    for (const char* const path : {"/dev", "/sys"}) {
      if (covers_whole_mounts() && !is_bound(path) && is_folder(path)) bind_all(path);
    }
    if (is_folder("/proc")) add(Step::Kind::kProc, "/proc", "/proc");
    // Its layer is as large as it is outside.
    if (options_.is_shared_memory_private && is_folder(kShared)) {
      add_overlay(kShared);
      root_.steps_.back().bytes = bytes_of_file_system(kShared, options_.limit_bytes);
    }
  }

  // An overlay's socket or FIFO is another one than the file's below it.
  void add_sockets_and_fifos() {
    const std::string sockets = file_text("/proc/net/unix");
    std::vector<std::string> paths = paths_of_sockets(sockets);
    add_sockets_and_fifos_in(options_.working_folder, paths);
    add_sockets_and_fifos_in("/tmp", paths);
    paths.insert(paths.end(), options_.expected.begin(), options_.expected.end());
    std::set<std::string> seen;
    for (const std::string& path : paths) {
      const std::optional<std::string> real = real_path(path);
      if (!real || is_bound(*real) || is_within(*real, "/proc") || !seen.insert(*real).second)
        continue;
      struct stat found {};
      if (lstat(real->c_str(), &found) != 0) continue;
      if (S_ISFIFO(found.st_mode) || (S_ISSOCK(found.st_mode) && may_listen(sockets, *real)))
        add(Step::Kind::kOptional, *real, *real);
    }
  }

  void add_folders_on_the_way() {
    if (covers_whole_mounts()) return;
    for (const std::string& path : options_.expected) {
      const std::optional<std::string> real = real_path(path);
      if (!real) continue;
      Layer* deepest = nullptr;
      for (Layer& layer : root_.layers_of_) {
        const bool is_deeper = deepest == nullptr || layer.folder.size() > deepest->folder.size();
        if (is_within(*real, layer.folder) && is_deeper) deepest = &layer;
      }
      if (deepest != nullptr) add_folders_on_the_way(*real, *deepest);
    }
  }

  static void add_folders_on_the_way(const std::string& path, Layer& layer) {
    std::vector<std::string> folders;
    size_t needed = 0;
    for (size_t end = path.find('/', layer.folder.size() + 1);; end = path.find('/', end + 1)) {
      const std::string folder = path.substr(0, end);
      struct stat found {};
      if (folder.size() > layer.folder.size() && lstat(folder.c_str(), &found) == 0 &&
          S_ISDIR(found.st_mode)) {
        folders.push_back(folder.substr(layer.folder.size() + 1));
        if (found.st_uid != geteuid() || found.st_gid != getegid()) needed = folders.size();
      }
      if (end == std::string::npos) break;
    }
    folders.resize(needed);
    for (std::string& folder : folders) {
      if (std::find(layer.made_before.begin(), layer.made_before.end(), folder) ==
          layer.made_before.end())
        layer.made_before.push_back(std::move(folder));
    }
  }

  const PrivateRootOptions& options_;
  PrivateRoot& root_;
  const std::vector<Mount> mounts_;
  std::vector<std::string> bound_;  // with all that is below
};

absl::StatusOr<PrivateRoot> PrivateRoot::plan(const PrivateRootOptions& options) {
  PrivateRoot root;
  const bool may_mount = has_capability(CAP_SYS_ADMIN);
  root.makes_user_namespace_ = !may_mount;
  root.is_initial_ = may_mount && is_initial_user_namespace();
  root.layers_ = options.scratch + "/layers";
  root.root_ = root.layers_ + "/root";
  root.working_folder_ = options.working_folder;
  root.limit_bytes_ = options.limit_bytes;
  root.uid_map_ = absl::StrCat(geteuid(), " ", geteuid(), " 1\n");
  root.gid_map_ = absl::StrCat(getegid(), " ", getegid(), " 1\n");
  if (const absl::Status status = Planner(options, root).plan(); !status.ok()) return status;
  return root;
}

bool PrivateRoot::fail(const char* at) {
  failed_ = at;
  return false;
}

bool PrivateRoot::enter_namespaces() {
  const int kinds = CLONE_NEWNS | CLONE_NEWPID | (makes_user_namespace_ ? CLONE_NEWUSER : 0);
  if (unshare(kinds) != 0) return fail("namespaces");
  if (!makes_user_namespace_) return true;
  return (write_text("/proc/self/setgroups", "deny", 4) &&
          write_text("/proc/self/uid_map", uid_map_.data(), uid_map_.size()) &&
          write_text("/proc/self/gid_map", gid_map_.data(), gid_map_.size())) ||
         fail("the user namespace");
}

// Makes a folder with the mode, owner and times of another one.
bool PrivateRoot::make_like(const char* source, const char* target) const {
  struct stat found {};
  if (stat(source, &found) != 0) return false;
  if (mkdir(target, 0700) != 0 && errno != EEXIST) return false;
  mode_t mode = found.st_mode & 07777;
  // Here it becomes the user's own, and he must not be able to do more there than before.
  const bool is_same_owner = chown(target, found.st_uid, found.st_gid) == 0;
  if (!is_same_owner && access(source, W_OK) != 0) mode &= ~mode_t{0222};
  if (!is_same_owner && access(source, R_OK | X_OK) == 0) mode |= 0500;
  if (!is_same_owner && access(source, W_OK) == 0) mode |= 0200;
  const timespec times[2] = {found.st_atim, found.st_mtim};
  return chmod(target, mode) == 0 && utimensat(AT_FDCWD, target, times, 0) == 0;
}

bool PrivateRoot::mount_overlay(Step& step) {
  const Layer& layer = layers_of_[static_cast<size_t>(step.layer)];
  Path base{}, upper{}, work{}, inner{}, source{};
  std::snprintf(base.data(), base.size(), "%s%s", layers_.c_str(), step.bytes == 0 ? "" : "/m");
  if (step.bytes != 0) {
    if (mkdir(base.data(), 0700) != 0 || !mount_memory(base.data(), step.bytes)) return false;
    for (const char* const folder : {"u", "w"}) {
      if (!set_path(inner, base.data(), folder) || mkdir(inner.data(), 0700) != 0) return false;
    }
  }
  if (!set_layer_path(upper, base.data(), 'u', step.layer) ||
      !set_layer_path(work, base.data(), 'w', step.layer) ||
      !make_like(step.source.c_str(), upper.data()) || mkdir(work.data(), 0700) != 0)
    return false;
  for (const std::string& folder : layer.made_before) {
    if (!set_path(inner, upper.data(), folder.c_str()) ||
        !set_path(source, step.source.c_str(), folder.c_str()) ||
        !make_like(source.data(), inner.data()))
      return false;
  }
  const DescriptorPath lower_path(step.source.c_str()), upper_path(upper.data()),
      work_path(work.data());
  if (!lower_path || !upper_path || !work_path) return false;
  const unsigned long flags = flags_of(step.source.c_str());
  // With the first a renamed folder and a changed mode need no copy; older kernels do without.
  constexpr std::array kInitial = {",volatile,redirect_dir=on,metacopy=on", ",volatile", ""};
  constexpr std::array kInUserNamespace = {",volatile,userxattr", ",userxattr", ""};
  for (const char* const more : is_initial_ ? kInitial : kInUserNamespace) {
    std::array<char, 256> options{};
    std::snprintf(options.data(), options.size(), "lowerdir=%s,upperdir=%s,workdir=%s%s",
                  lower_path.path(), upper_path.path(), work_path.path(), more);
    if (mount("overlay", step.target.c_str(), "overlay", flags, options.data()) == 0) return true;
    if (errno != EINVAL) return false;
  }
  return false;
}

// What has gone since it was planned is not there in the new root, either.
bool PrivateRoot::run(Step& step) {
  if (try_to_run(step)) return true;
  struct stat found {};
  const int error = errno;
  const bool has_gone = step.kind != Step::Kind::kLink && !step.source.empty() &&
                        lstat(step.source.c_str(), &found) != 0 && errno == ENOENT;
  errno = error;
  return has_gone;
}

bool PrivateRoot::try_to_run(Step& step) {
  const char* const source = step.source.c_str();
  const char* const target = step.target.c_str();
  const auto bind = [&](unsigned long flags) {
    return mount(source, target, nullptr, MS_BIND | flags, nullptr) == 0;
  };
  switch (step.kind) {
    case Step::Kind::kFolder:
      return make_like(source, target);
    case Step::Kind::kFile: {
      const int file = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      if (file >= 0) close(file);
      return file >= 0;
    }
    case Step::Kind::kLink:
      return symlink(source, target) == 0;
    case Step::Kind::kOverlay:
      if (mount_overlay(step)) return true;
      step.is_read_only = true;
      return bind(0) && make_read_only(target, /*with_all_below=*/false);
    case Step::Kind::kBind:
      return bind(0) && make_read_only(target, /*with_all_below=*/false);
    case Step::Kind::kBindAll:
      return bind(MS_REC) && make_read_only(target, /*with_all_below=*/true);
    case Step::Kind::kWritable:
      return bind(0);
    case Step::Kind::kOptional:
      // It can still be opened and connected to, but not changed.
      return !bind(0) || make_read_only(target, /*with_all_below=*/false);
    case Step::Kind::kProc: {
      if (mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        return false;
      // What is there is the whole machine's.
      for (const char* const part : {"sys", "irq", "bus", "fs", "sysrq-trigger"}) {
        Path path{};
        if (set_path(path, target, part) &&
            mount(path.data(), path.data(), nullptr, MS_BIND | MS_REC, nullptr) == 0)
          make_read_only(path.data(), /*with_all_below=*/true);
      }
      return true;
    }
  }
  return false;
}

bool PrivateRoot::make_mounts() {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail("the namespace of mounts");
  if (mkdir(layers_.c_str(), 0700) != 0 && errno != EEXIST) return fail(layers_.c_str());
  if (!mount_memory(layers_.c_str(), limit_bytes_)) return fail(layers_.c_str());
  layers_folder_ = open(layers_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (layers_folder_ < 0 || mkdirat(layers_folder_, "root", 0755) != 0 ||
      mkdirat(layers_folder_, "u", 0700) != 0 || mkdirat(layers_folder_, "w", 0700) != 0)
    return fail(layers_.c_str());
  const char* const root = root_.c_str();
  // pivot_root() wants a mount.
  if (!is_initial_ && mount(root, root, nullptr, MS_BIND, nullptr) != 0) return fail(root);
  for (Step& step : steps_) {
    if (!run(step)) return fail(step.source.empty() ? step.target.c_str() : step.source.c_str());
  }
  if (chdir(root) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 ||
      chdir("/") != 0)
    return fail("the new root");
  return true;
}

bool PrivateRoot::enter_working_folder() const {
  if (chdir(working_folder_.c_str()) != 0) return false;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  if (syscall(SYS_capget, &header, data.data()) != 0) return false;
  for (const int number : kGivenUp) {
    const uint32_t bit = uint32_t{1} << (number % 32);
    __user_cap_data_struct& part = data[static_cast<size_t>(number) / 32];
    // A process without the right to give it up will not gain it by exec() either.
    prctl(PR_CAPBSET_DROP, number, 0, 0, 0);
    part.effective &= ~bit;
    part.permitted &= ~bit;
    part.inheritable &= ~bit;
  }
  return syscall(SYS_capset, &header, data.data()) == 0;
}

bool PrivateRoot::are_layers_full() const {
  struct statvfs found {};
  constexpr uint64_t kLeast = uint64_t{64} << 10;
  return fstatvfs(layers_folder_, &found) == 0 &&
         uint64_t{found.f_bavail} * found.f_frsize < kLeast;
}

prediction::Writes PrivateRoot::writes() const {
  LayerFiles files;
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::kOverlay && !step.is_read_only && step.bytes == 0) {
      files.add_upper_layer(layers_folder_, absl::StrCat("u/", step.layer),
                            layers_of_[static_cast<size_t>(step.layer)].folder);
    }
  }
  if (!is_initial_) files.add_folder(layers_folder_, "root", ours_);
  prediction::Writes writes = files.writes();
  writes.held_by = prediction::WritesHeldBy::kNamespace;
  for (const Step& step : steps_) {
    if (step.is_read_only) writes.read_only.push_back(step.source);
    if (step.kind == Step::Kind::kOptional) writes.host_files.push_back(step.source);
    // A folder that would not be a mount outside cannot be renamed or removed.
    if (step.kind == Step::Kind::kOverlay && !is_initial_) writes.host_files.push_back(step.source);
  }
  return writes;
}

}  // namespace memledger::runner
