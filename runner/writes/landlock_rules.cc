#include "runner/writes/landlock_rules.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace memledger::runner {
namespace {

// The first that can refuse truncate().
constexpr int kMinLandlockAbi = 3;
constexpr uint64_t kTruncate = uint64_t{1} << 14;  // not yet in the headers of Linux 6.1

constexpr uint64_t kWritesFile = LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate;
// A device node would be a way to a real disk.
constexpr uint64_t kMakesDevices = LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK;
constexpr uint64_t kChangesFolder =
    kWritesFile | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
    LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
    LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER;

constexpr const char* kDevices[] = {"/dev/null",    "/dev/zero", "/dev/full", "/dev/random",
                                    "/dev/urandom", "/dev/tty",  "/dev/ptmx"};
constexpr char kTerminals[] = "/dev/pts";
constexpr char kSharedMemory[] = "/dev/shm";

absl::Status refused(absl::string_view what, int error) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(error)));
}

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(long number) : number_(static_cast<int>(number)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  const int number_;
};

// Returns an error's number where the path is missing or the kernel refuses, else 0.
int error_of_rule(int ruleset, const char* path, uint64_t access) {
  const Descriptor parent(open(path, O_PATH | O_CLOEXEC));
  if (parent.get() < 0) return errno;
  landlock_path_beneath_attr rule = {};
  rule.allowed_access = access;
  rule.parent_fd = parent.get();
  const long result = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  return result == 0 ? 0 : errno;
}

absl::Status add_rules(int ruleset, const LandlockRules& rules) {
  for (const std::string& folder : rules.private_folders) {
    if (const int error = error_of_rule(ruleset, folder.c_str(), kChangesFolder))
      return refused(folder, error);
  }
  // What a container does not have needs no rule.
  const auto is_wrong = [](int error) { return error != 0 && error != ENOENT; };
  for (const char* const device : kDevices) {
    const int error = error_of_rule(ruleset, device, kWritesFile);
    if (is_wrong(error)) return refused(device, error);
  }
  const int terminals = error_of_rule(ruleset, kTerminals, kWritesFile);
  if (is_wrong(terminals)) return refused(kTerminals, terminals);
  if (!rules.allows_shared_memory) return absl::OkStatus();
  const int shared_memory = error_of_rule(ruleset, kSharedMemory, kChangesFolder);
  return is_wrong(shared_memory) ? refused(kSharedMemory, shared_memory) : absl::OkStatus();
}

#if defined(__x86_64__)

// System calls that the headers of Linux 6.1 do not name; they have one number everywhere.
constexpr uint32_t kFchmodat2 = 452, kSetxattrat = 463, kRemovexattrat = 466, kOpenTreeAttr = 467,
                   kFileSetattr = 469;

// Landlock does not see these: they change a file's attributes.
constexpr uint32_t kAttributeCalls[] = {
    SYS_chmod,    SYS_fchmod,    SYS_fchmodat,  kFchmodat2,      SYS_chown,        SYS_fchown,
    SYS_lchown,   SYS_fchownat,  SYS_utime,     SYS_utimes,      SYS_futimesat,    SYS_utimensat,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
};
// They have no sixth argument to spare, or nobody needs the exception.
constexpr uint32_t kRefusedCalls[] = {
    kSetxattrat,
    kRemovexattrat,
    kFileSetattr,
    // Other views of the file system.
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_move_mount,
    SYS_open_tree,
    kOpenTreeAttr,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_open_by_handle_at,
    // What only root may: the disk and the kernel below the files.
    SYS_swapon,
    SYS_swapoff,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_acct,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_bpf,
    SYS_iopl,
    SYS_ioperm,
};
// ENOSYS is what a kernel without io_uring says: programs have another way then.
constexpr uint32_t kMissingCalls[] = {SYS_io_uring_setup, SYS_io_uring_enter,
                                      SYS_io_uring_register};

// The same by the numbers of 32-bit programs, without the exception for private files.
constexpr uint32_t kRefusedCalls32[] = {
    // chmod fchmod fchmodat fchmodat2, chown fchown lchown in 16 and 32 bits, fchownat
    15,
    94,
    306,
    kFchmodat2,
    182,
    95,
    16,
    212,
    207,
    198,
    298,
    // utime utimes futimesat utimensat utimensat_time64, setxattr …, removexattr …
    30,
    271,
    299,
    320,
    412,
    226,
    227,
    228,
    235,
    236,
    237,
    kSetxattrat,
    kRemovexattrat,
    kFileSetattr,
    // mount umount umount2 pivot_root
    21,
    22,
    52,
    217,
    SYS_move_mount,
    SYS_open_tree,
    kOpenTreeAttr,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    // open_by_handle_at swapon swapoff quotactl acct init_module finit_module delete_module
    342,
    87,
    115,
    131,
    SYS_quotactl_fd,
    51,
    128,
    350,
    129,
    // kexec_load reboot bpf iopl ioperm
    283,
    88,
    357,
    110,
    101,
};
constexpr uint32_t kIoctl32 = 54;

// Requests to file systems through a descriptor that need not be open for writing are known by the
// letter in their second byte: flags, verity, subvolumes. These of them only read, or ask for a
// descriptor that is open for writing.
constexpr uint32_t kFreeRequests[] = {
    FS_IOC_GETFLAGS, FS_IOC32_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_FSGETXATTR,
    FS_IOC_FIEMAP,   FICLONE,           FICLONERANGE,      FIDEDUPERANGE,
};
constexpr uint32_t kFileSystemLetters[] = {'f', 'v', 'X', 'r', 'n', 0x94, 0x97, 0xf5};
// Typed into the terminal, as if by its user.
constexpr uint32_t kTerminalInput[] = {0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */};

class SystemCallFilter {
 public:
  explicit SystemCallFilter(uint64_t attribute_key) : key_(attribute_key) {
    load(offsetof(seccomp_data, arch));
    const size_t is_64_bit = size();
    add(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    add(BPF_JMP | BPF_JA, 0);
    add_64_bit();
    code_[is_64_bit + 1].k = static_cast<uint32_t>(size() - is_64_bit - 2);
    add_32_bit();
  }
  std::vector<sock_filter> take() { return std::move(code_); }

 private:
  size_t size() const { return code_.size(); }
  void add(int operation, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({static_cast<uint16_t>(operation), if_true, if_false, value});
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void load_argument(int number, bool is_high = false) {
    load(offsetof(seccomp_data, args) + static_cast<size_t>(number) * 8 + (is_high ? 4 : 0));
  }
  void allow() { add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW); }
  void fail(int error) { add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)); }
  // The next `count` instructions are for one value of what was loaded.
  void only_for(uint32_t value, uint8_t count) { add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count); }
  template <size_t kCount>
  void fail_each(const uint32_t (&values)[kCount], int error) {
    for (const uint32_t value : values) {
      only_for(value, 1);
      fail(error);
    }
  }

  void add_64_bit() {
    load(offsetof(seccomp_data, nr));
    // x32: few kernels have it.
    add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);
    fail(ENOSYS);
    for (const uint32_t call : kAttributeCalls) {
      if (key_ != 0) {
        only_for(call, 6);
        load_argument(5);
        only_for(static_cast<uint32_t>(key_), 3);
        load_argument(5, /*is_high=*/true);
        only_for(static_cast<uint32_t>(key_ >> 32), 1);
        allow();
      } else {
        only_for(call, 1);
      }
      fail(EPERM);
    }
    fail_each(kRefusedCalls, EPERM);
    fail_each(kMissingCalls, ENOSYS);
    add_requests(SYS_ioctl);
    allow();
  }
  void add_32_bit() {
    add(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_I386, 1, 0);
    fail(ENOSYS);
    load(offsetof(seccomp_data, nr));
    fail_each(kRefusedCalls32, EPERM);
    fail_each(kMissingCalls, ENOSYS);
    add_requests(kIoctl32);
    allow();
  }
  void add_requests(uint32_t ioctl) {
    const size_t begin = size();
    only_for(ioctl, 0);
    load_argument(1);
    for (const uint32_t request : kFreeRequests) {
      only_for(request, 1);
      allow();
    }
    fail_each(kTerminalInput, EPERM);
    add(BPF_ALU | BPF_AND | BPF_K, 0xff00);
    for (const uint32_t letter : kFileSystemLetters) {
      only_for(letter << 8, 1);
      fail(EPERM);
    }
    code_[begin].jf = static_cast<uint8_t>(size() - begin - 1);
  }

  const uint64_t key_;
  std::vector<sock_filter> code_;
};

std::vector<sock_filter> filter_of(const LandlockRules& rules) {
  return SystemCallFilter(rules.attribute_key).take();
}

#else

// Empty: these system calls are not known.
std::vector<sock_filter> filter_of(const LandlockRules&) { return {}; }

#endif

// Only ever lowers the limit.
bool limit_files(uint64_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  if (limit.rlim_cur <= bytes) return true;
  limit.rlim_cur = bytes;
  limit.rlim_max = std::min<rlim_t>(limit.rlim_max, bytes);
  return signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

bool is_in(absl::string_view path, absl::string_view folder) {
  return absl::StartsWith(path, folder) &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

bool is_private(absl::string_view path, const LandlockRules& rules) {
  for (const std::string& folder : rules.private_folders) {
    if (is_in(path, folder)) return true;
  }
  return rules.allows_shared_memory && is_in(path, kSharedMemory);
}

// Returns the path of a descriptor that goes round the rules.
std::optional<std::string> path_if_unheld(int number, const LandlockRules& rules) {
  const int descriptor_flags = fcntl(number, F_GETFD), flags = fcntl(number, F_GETFL);
  if (descriptor_flags < 0 || flags < 0 || (descriptor_flags & FD_CLOEXEC) != 0) return {};
  struct stat status;
  char path[4097];
  const ssize_t length =
      readlink(absl::StrCat("/proc/self/fd/", number).c_str(), path, sizeof path - 1);
  if (fstat(number, &status) != 0 || length < 0) return {};
  const absl::string_view name(path, static_cast<size_t>(length));
  if (name == "anon_inode:[io_uring]") return std::string(name);  // with files of its own
  const bool is_file = S_ISREG(status.st_mode) || S_ISBLK(status.st_mode);
  const bool is_written = (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY;
  // A file without a name is lost at the end whatever is written: a memfd, a temporary one.
  if (!is_file || !is_written || status.st_nlink == 0 || is_private(name, rules)) return {};
  return std::string(name);
}

}  // namespace

std::vector<UnheldDescriptor> unheld_descriptors(const LandlockRules& rules) {
  std::vector<UnheldDescriptor> unheld;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return {{-1, "/proc/self/fd"}};
  while (const dirent* const entry = readdir(folder)) {
    const absl::string_view name = entry->d_name;
    int number = -1;
    std::from_chars(name.data(), name.data() + name.size(), number);
    if (number < 3 || number == dirfd(folder)) continue;
    if (std::optional<std::string> path = path_if_unheld(number, rules))
      unheld.push_back({number, *std::move(path)});
  }
  closedir(folder);
  return unheld;
}

absl::StatusOr<LandlockHold> LandlockHold::prepare(const LandlockRules& rules) {
  std::vector<sock_filter> filter = filter_of(rules);
  if (filter.empty())
    return absl::UnimplementedError("the system calls of this processor are not known");
  const long abi =
      syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (abi < 0) return absl::UnimplementedError(absl::StrCat("Landlock: ", std::strerror(errno)));
  if (abi < kMinLandlockAbi)
    return absl::UnimplementedError(
        absl::StrCat("Landlock has ABI ", abi, ", and ", kMinLandlockAbi, " is needed"));
  landlock_ruleset_attr handled = {};
  handled.handled_access_fs = kChangesFolder | kMakesDevices;
  const auto ruleset =
      static_cast<int>(syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0));
  if (ruleset < 0)
    return absl::UnimplementedError(absl::StrCat("Landlock: ", std::strerror(errno)));
  LandlockHold hold(ruleset, std::move(filter), rules.max_file_bytes);
  if (absl::Status status = add_rules(ruleset, rules); !status.ok()) return status;
  return hold;
}

LandlockHold::LandlockHold(LandlockHold&& other) noexcept
    : ruleset_(other.ruleset_),
      filter_(std::move(other.filter_)),
      max_file_bytes_(other.max_file_bytes_) {
  other.ruleset_ = -1;
}

LandlockHold::~LandlockHold() {
  if (ruleset_ >= 0) close(ruleset_);
}

bool LandlockHold::apply() const {
  const sock_fprog program = {static_cast<unsigned short>(filter_.size()),
                              const_cast<sock_filter*>(filter_.data())};
  if (max_file_bytes_ != 0 && !limit_files(max_file_bytes_)) return false;
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_landlock_restrict_self, ruleset_, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

}  // namespace memledger::runner
