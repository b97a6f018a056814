#include "text/output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <ostream>
#include <streambuf>
#include <system_error>
#include <utility>

#include "text/names.h"

// libmemledger_measure.so, where it is preloaded (runner/inside/unreal_files_names.h).
extern "C" __attribute__((weak)) void memledger_own_file(int change);

namespace memledger {
namespace {

constexpr int kMostFilesOfOneName = 10000;
constexpr int kMostLinks = 40;
constexpr int kPatienceMs = 5000;  // for a full pipe that was opened without blocking

// Turns SIGPIPE and SIGXFSZ, which would end the program, into errors of write().
class NoSignals {
 public:
  NoSignals() noexcept {
    sigset_t blocked, pending;
    sigemptyset(&blocked);
    sigemptyset(&pending);
    sigemptyset(&ours_);
    sigpending(&pending);
    for (const int number : {SIGPIPE, SIGXFSZ}) {
      sigaddset(&blocked, number);
      if (sigismember(&pending, number) == 0) sigaddset(&ours_, number);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~NoSignals() {
    const int error = errno;
    const timespec at_once{};
    while (sigtimedwait(&ours_, nullptr, &at_once) > 0 || errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_, ours_;
};

// In a program that starts without standard error, descriptor 2 may become a file of its own.
bool had_standard_error = true;
__attribute__((constructor(101))) void look_at_standard_error() {
  had_standard_error = fcntl(STDERR_FILENO, F_GETFD) != -1 || errno != EBADF;
}

struct Written {
  size_t bytes = 0;
  int error = 0;
};

bool becomes_writable(int descriptor) noexcept {
  pollfd one{descriptor, POLLOUT, 0};
  const int ready = poll(&one, 1, kPatienceMs);
  return ready > 0 || (ready < 0 && errno == EINTR);
}

Written write_some(int descriptor, std::string_view text) noexcept {
  const NoSignals guard;
  Written written;
  while (written.bytes < text.size()) {
    const ssize_t count =
        ::write(descriptor, text.data() + written.bytes, text.size() - written.bytes);
    if (count > 0) {
      written.bytes += static_cast<size_t>(count);
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && becomes_writable(descriptor))
      continue;
    written.error = count < 0 ? errno : ENOSPC;
    break;
  }
  return written;
}

// While it lives, files that are opened and renamed are not noted as the program's.
class OwnFile {
 public:
  OwnFile() { change(1); }
  ~OwnFile() { change(-1); }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

 private:
  static void change(int change) {
    if (memledger_own_file != nullptr) memledger_own_file(change);
  }
};

// Keeps our files from taking the numbers of standard streams that the program has closed.
int away_from_standard(int descriptor) noexcept {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return moved;
}

int open_file(const std::string& path, int flags) noexcept {
  const OwnFile own;
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_WRONLY | O_CLOEXEC | O_NOCTTY, 0666);
  } while (descriptor < 0 && errno == EINTR);
  return away_from_standard(descriptor);
}

int open_exclusively(const std::string& path) noexcept {
  return open_file(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND);
}

// A stream buffer over a descriptor. Writes nothing more after the first failure.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor) : descriptor_(descriptor) {
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }
  int error() const { return error_; }

 protected:
  int_type overflow(int_type c) override {
    if (sync() != 0) return traits_type::eof();
    if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
    return traits_type::not_eof(c);
  }
  int sync() override {
    if (error_ == 0)
      error_ = write_all(descriptor_, {pbase(), static_cast<size_t>(pptr() - pbase())});
    setp(buffer_.data(), buffer_.data() + buffer_.size());
    return error_ == 0 ? 0 : -1;
  }

 private:
  const int descriptor_;
  int error_ = 0;
  std::array<char, 65536> buffer_;
};

absl::Status cannot_write(std::string_view what, const std::string& path, int error) {
  return absl::ErrnoToStatus(
      error,
      std::string("memledger: cannot write the ").append(what).append(" ").append(printable(path)));
}

// Writes, and closes the descriptor.
absl::Status write_and_close(int descriptor, std::string_view what, const std::string& path,
                             const Write& write) {
  absl::Status status;
  try {
    const auto buffer = std::make_unique<DescriptorBuffer>(descriptor);
    std::ostream out(buffer.get());
    write(out);
    out.flush();
    if (buffer->error() != 0) {
      status = cannot_write(what, path, buffer->error());
    } else if (!out) {
      status = cannot_write(what, path, EIO);
    }
  } catch (const std::exception& error) {
    status = absl::InternalError(std::string("memledger: cannot write the ")
                                     .append(what)
                                     .append(" ")
                                     .append(printable(path))
                                     .append(": ")
                                     .append(printable(first_line(error.what()))));
  }
  // Linux closes the descriptor even if close() fails. Some file systems report a full disk here.
  if (::close(descriptor) != 0 && errno != EINTR && status.ok())
    status = cannot_write(what, path, errno);
  return status;
}

// The file that a path leads to.
struct Target {
  std::string path;  // without links
  std::string folder;
  std::string name;
  struct stat status {};
  bool exists = false;
  int descriptor = -1;      // of this process: /dev/stdout, /dev/fd/N
  bool of_another = false;  // /proc/PID/fd/N

  bool in_place() const {
    return descriptor >= 0 || of_another || (exists && !S_ISREG(status.st_mode));
  }
};

bool real_path(const std::string& path, std::string& result) {
  std::array<char, PATH_MAX> real;
  if (::realpath(path.c_str(), real.data()) == nullptr) return false;
  result = real.data();
  return true;
}

bool is_of_descriptors(const std::string& folder) {
  return folder.compare(0, 6, "/proc/") == 0 && folder.size() > 9 &&
         folder.compare(folder.size() - 3, 3, "/fd") == 0;
}

// Entries of such a folder are open files: one cannot rename over them.
bool is_own_descriptor(const std::string& folder, const std::string& name, int& descriptor) {
  std::string own;
  if (name.empty() || name.size() > 9 || name.find_first_not_of("0123456789") != std::string::npos)
    return false;
  if (!real_path("/proc/self/fd", own) || own != folder) return false;
  descriptor = static_cast<int>(std::strtol(name.c_str(), nullptr, 10));
  return true;
}

// Whether another user may have put an entry into a folder of everybody's to lead us astray. In
// those with the sticky bit, such as /tmp, Linux follows no such link and writes no such file
// either, unless its sysctls protected_* are off.
bool is_planted(const struct stat& entry, const std::string& folder) {
  struct stat found;
  return entry.st_uid != ::geteuid() && ::stat(folder.c_str(), &found) == 0 &&
         (found.st_mode & S_IWOTH) != 0 && entry.st_uid != found.st_uid;
}

// Whether a link on the way to a folder, or the folder's own name, is planted.
bool leads_over_planted_link(std::string folder) {
  int links = 0;
  for (size_t end = 0; end != std::string::npos && links < kMostLinks;) {
    end = folder.find('/', end + 1);
    const std::string entry = folder.substr(0, end);
    struct stat found;
    if (entry.empty() || ::lstat(entry.c_str(), &found) != 0 || !S_ISLNK(found.st_mode)) continue;
    const size_t slash = entry.rfind('/');
    const std::string in = slash == std::string::npos ? "." : entry.substr(0, slash + 1);
    if (is_planted(found, in)) return true;
    std::array<char, PATH_MAX> link;
    const ssize_t length = ::readlink(entry.c_str(), link.data(), link.size());
    if (length <= 0) continue;
    const std::string rest = end == std::string::npos ? "" : folder.substr(end);
    folder = link[0] == '/' ? "" : in;
    if (link[0] != '/') folder += '/';
    folder.append(link.data(), static_cast<size_t>(length));
    folder += rest;
    end = 0;
    ++links;
  }
  return false;
}

// Returns errno, or 0.
int find_target(const std::string& spelt, Target& target) {
  std::string at = spelt;
  for (int links = 0; links < kMostLinks; ++links) {
    const size_t slash = at.rfind('/');
    target.name = slash == std::string::npos ? at : at.substr(slash + 1);
    if (target.name.empty() || target.name == "." || target.name == "..") return EISDIR;
    const std::string folder = slash == std::string::npos ? "."
                               : slash == 0               ? "/"
                                                          : at.substr(0, slash);
    if (leads_over_planted_link(folder)) return EACCES;
    if (!real_path(folder, target.folder)) return errno;
    if (is_of_descriptors(target.folder)) {
      target.path = target.folder + "/" + target.name;
      target.of_another = !is_own_descriptor(target.folder, target.name, target.descriptor);
      return 0;
    }
    target.path = target.folder == "/" ? "/" + target.name : target.folder + "/" + target.name;
    if (::lstat(target.path.c_str(), &target.status) != 0) return errno == ENOENT ? 0 : errno;
    if (is_planted(target.status, target.folder)) return EACCES;
    if (!S_ISLNK(target.status.st_mode)) {
      target.exists = true;
      return S_ISDIR(target.status.st_mode) ? EISDIR : 0;
    }
    std::array<char, PATH_MAX> link;
    const ssize_t length = ::readlink(target.path.c_str(), link.data(), link.size());
    if (length < 0) return errno;
    at.assign(link.data(), static_cast<size_t>(length));
    if (at.empty() || at[0] != '/') at.insert(0, target.folder + "/");
  }
  return ELOOP;
}

struct Note {
  char* place = nullptr;
  size_t size = 0;
} temporary_note;

void note_temporary(const std::string& path) noexcept {
  char* const to = temporary_note.place;
  if (path.size() >= temporary_note.size) return;
  // Others unlink what is noted if this process is killed meanwhile: they see all of it or nothing,
  // never the beginning of it, which is the path of a file that is not ours. The first byte is
  // last.
  __atomic_store_n(to, '\0', __ATOMIC_SEQ_CST);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (path.empty()) return;
  std::copy(path.begin() + 1, path.end(), to + 1);
  to[path.size()] = '\0';
  __atomic_store_n(to, path[0], __ATOMIC_RELEASE);
}

// Makes a file next to the target and returns its path; returns "" and sets errno if it cannot.
std::string make_temporary(const Target& target, int& descriptor) {
  std::string stem = target.name;
  for (int number = 0; number < kMostFilesOfOneName; ++number) {
    const std::string path = target.folder + "/" + stem + "." + std::to_string(::getpid()) + "-" +
                             std::to_string(number) + ".part";
    descriptor = open_exclusively(path);
    if (descriptor >= 0) {
      note_temporary(path);
      return path;
    }
    if (errno == ENAMETOOLONG && stem != "memledger") {
      stem = "memledger";
    } else if (errno != EEXIST) {
      return "";
    }
  }
  return "";
}

void remove_temporary(const std::string& path) noexcept {
  ::unlink(path.c_str());
  note_temporary("");
}

// Gives the new file the owner and mode of the file that it will replace.
void keep_mode(int descriptor, const struct stat& before) {
  struct stat now;
  if (::fstat(descriptor, &now) != 0) return;
  mode_t mode = before.st_mode & 07777;
  if (now.st_uid != before.st_uid || now.st_gid != before.st_gid) {
    if (::fchown(descriptor, before.st_uid, before.st_gid) != 0) mode &= 0777;
  }
  if (::fchmod(descriptor, mode) != 0) errno = 0;
}

absl::Status write_in_place(const Target& target, std::string_view what, const std::string& path,
                            const Write& write) {
  const int descriptor = target.descriptor >= 0
                             ? fcntl(target.descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)
                             : open_file(target.path, 0);
  if (descriptor < 0) return cannot_write(what, path, errno);
  return write_and_close(descriptor, what, path, write);
}

// Returns the complete temporary file. By then another user may have put a link at its path, where
// the folder lets him: `kept_open`, if not null, becomes a descriptor of the file itself, or -1.
absl::StatusOr<std::string> write_beside(const Target& target, std::string_view what,
                                         const std::string& path, const Write& write,
                                         int* kept_open = nullptr) {
  // rename() would replace a read-only file.
  if (target.exists && ::faccessat(AT_FDCWD, target.path.c_str(), W_OK, AT_EACCESS) != 0)
    return cannot_write(what, path, errno);
  int descriptor = -1;
  std::string temporary = make_temporary(target, descriptor);
  if (temporary.empty()) return cannot_write(what, path, errno);
  if (target.exists) keep_mode(descriptor, target.status);
  const int another =
      kept_open == nullptr ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (absl::Status status = write_and_close(descriptor, what, path, write); !status.ok()) {
    if (another >= 0) ::close(another);
    remove_temporary(temporary);
    return status;
  }
  if (kept_open != nullptr) *kept_open = another;
  return temporary;
}

absl::Status put_in_place(const std::string& temporary, const std::string& final_path,
                          std::string_view what, const std::string& path) {
  const OwnFile own;
  if (::rename(temporary.c_str(), final_path.c_str()) == 0) {
    note_temporary("");
    return absl::OkStatus();
  }
  const int error = errno;
  remove_temporary(temporary);
  return cannot_write(what, path, error);
}

int64_t nanoseconds(const timespec& time) {
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}
int64_t now_by(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return nanoseconds(now);
}

// Returns the start of this machine as 16 digits; empty: unknown.
std::string this_boot() {
  std::array<char, 64> id;
  const int descriptor = away_from_standard(
      ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (descriptor < 0) return "";
  const ssize_t size = ::read(descriptor, id.data(), id.size());
  ::close(descriptor);
  if (size <= 0) return "";
  // FNV-1a: files need not carry the machine's own number.
  uint64_t hash = 0xcbf29ce484222325;
  for (ssize_t i = 0; i < size; ++i)
    hash = (hash ^ static_cast<unsigned char>(id[static_cast<size_t>(i)])) * 0x100000001b3;
  std::array<char, 17> text;
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

// Splits into as many parts as are asked for; false: there are fewer.
template <size_t kParts>
bool split(std::string_view text, char separator, std::array<std::string, kParts>& parts) {
  for (size_t i = 0; i < kParts; ++i) {
    const size_t end = i + 1 < kParts ? text.find(separator) : text.size();
    if (end == std::string_view::npos) return false;
    parts[i] = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

int64_t number_in(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

// Which run wrote a file, and when.
struct RunStamp {
  std::string run, writer, boot;
  int64_t boot_ns = 0;
};
bool read_stamp(const std::string& path, RunStamp& stamp) {
  std::array<char, 256> text;
  std::array<std::string, 4> parts;
  const ssize_t size = ::getxattr(path.c_str(), kRunAttribute, text.data(), text.size());
  if (size <= 0 || !split({text.data(), static_cast<size_t>(size)}, ' ', parts)) return false;
  stamp = {parts[0], parts[1], parts[2], number_in(parts[3])};
  return true;
}

// Keeps other processes from taking a path between our look and our rename. Goes on without a lock
// where folders cannot be locked, and after a second of waiting.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : descriptor_(
            away_from_standard(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {
    constexpr int kTries = 200;
    for (int i = 0; descriptor_ >= 0 && i < kTries; ++i) {
      if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR))
        return;
      const timespec pause{0, 5000000};
      nanosleep(&pause, nullptr);
    }
  }
  ~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int descriptor_;
};

bool is_writable(const char* path, int mode) {
  return ::faccessat(AT_FDCWD, path, mode, AT_EACCESS) == 0;
}

// A folder such as /tmp lets only a file's owner replace it.
bool may_replace(const Target& target) {
  struct stat folder;
  if (::stat(target.folder.c_str(), &folder) != 0 || (folder.st_mode & S_ISVTX) == 0) return true;
  const uid_t user = ::geteuid();
  return user == 0 || user == folder.st_uid || user == target.status.st_uid;
}

}  // namespace

void note_temporary_in(char* place, size_t size) noexcept { temporary_note = {place, size}; }

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

void write_standard_error(std::string_view text) noexcept {
  if (had_standard_error) write_all(STDERR_FILENO, text);
}

void tell(std::initializer_list<std::string_view> parts) noexcept {
  try {
    std::string line;
    for (const std::string_view part : parts) line += printable(part);
    line += '\n';
    write_standard_error(line);
  } catch (const std::exception&) {  // no memory: write what fits, without escapes
    std::array<char, 1024> line;
    size_t size = 0;
    for (const std::string_view part : parts) {
      for (size_t i = 0; i < part.size() && size + 1 < line.size(); ++i) {
        const char c = part[i];
        line[size++] = c >= 0x20 && c < 0x7f ? c : '?';
      }
    }
    line[size++] = '\n';
    write_standard_error({line.data(), size});
  }
}

absl::Status write_standard_output(std::string_view text) noexcept {
  const int error = write_all(STDOUT_FILENO, text);
  return error == 0 ? absl::OkStatus()
                    : absl::ErrnoToStatus(error, "memledger: cannot write to standard output");
}

bool write_to(std::ostream& out, std::string_view text, std::string_view what) noexcept {
  bool failed_before = true;
  int error = 0;
  try {
    failed_before = !out;
    if (failed_before) return false;
    const NoSignals guard;
    errno = 0;
    out.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
    error = errno;
    if (out) return true;
  } catch (const std::exception&) {  // a stream that throws when it fails
    error = errno;
  }
  try {
    tell({"memledger: cannot write the ", what, error == 0 ? "" : ": ",
          error == 0 ? "" : std::generic_category().message(error)});
  } catch (const std::exception&) {
    tell({"memledger: cannot write the ", what});
  }
  return false;
}

int write_all(int descriptor, std::string_view text) noexcept {
  return write_some(descriptor, text).error;
}

int append_whole(int descriptor, std::string_view text) noexcept {
  const Written written = write_some(descriptor, text);
  struct stat status;
  if (written.error != 0 && written.bytes > 0 && ::fstat(descriptor, &status) == 0 &&
      S_ISREG(status.st_mode)) {
    if (::ftruncate(descriptor, status.st_size - static_cast<off_t>(written.bytes)) != 0) errno = 0;
  }
  return written.error;
}

absl::Status write_file(const std::string& path, std::string_view what, const Write& write) {
  Target target;
  if (const int error = find_target(path, target); error != 0)
    return cannot_write(what, path, error);
  if (target.in_place()) return write_in_place(target, what, path, write);
  const absl::StatusOr<std::string> temporary = write_beside(target, what, path, write);
  if (!temporary.ok()) return temporary.status();
  return put_in_place(*temporary, target.path, what, path);
}

absl::Status write_file(const std::string& path, std::string_view what, std::string_view text) {
  return write_file(path, what, [text](std::ostream& out) { out << text; });
}

// The nearest folder that exists decides where others will be made.
int why_folder_not_writable(std::string folder) {
  if (leads_over_planted_link(folder)) return EACCES;
  struct stat found;
  while (::stat(folder.c_str(), &found) != 0) {
    if (errno != ENOENT) return errno;
    if (::lstat(folder.c_str(), &found) == 0) return ENOENT;  // a link to nowhere
    const size_t end = folder.find_last_not_of('/');
    const size_t slash = end == std::string::npos ? end : folder.rfind('/', end);
    folder = slash == std::string::npos ? "." : slash == 0 ? "/" : folder.substr(0, slash);
  }
  if (!S_ISDIR(found.st_mode)) return ENOTDIR;
  return is_writable(folder.c_str(), W_OK | X_OK) ? 0 : errno;
}

int why_not_writable(const std::string& path, bool makes_folders) {
  Target target;
  if (const int error = find_target(path, target); error != 0) {
    if (error != ENOENT || !makes_folders) return error;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? error : why_folder_not_writable(path.substr(0, slash));
  }
  if (target.descriptor >= 0) {
    const int flags = ::fcntl(target.descriptor, F_GETFL);
    if (flags < 0) return errno;
    return (flags & O_ACCMODE) == O_RDONLY ? EBADF : 0;
  }
  if (target.exists && !is_writable(target.path.c_str(), W_OK)) return errno;
  if (target.in_place()) return 0;
  if (!is_writable(target.folder.c_str(), W_OK | X_OK)) return errno;
  return target.exists && !may_replace(target) ? EPERM : 0;
}

int make_new_file(const std::string& stem, std::string_view extension, NewFile& file) {
  const size_t slash = stem.rfind('/');
  if (slash != std::string::npos && leads_over_planted_link(stem.substr(0, slash))) {
    file.path = stem + std::string(extension);
    return EACCES;
  }
  for (int number = 1; number <= kMostFilesOfOneName; ++number) {
    file.path = stem + (number == 1 ? "" : "-" + std::to_string(number)) + std::string(extension);
    file.descriptor = open_exclusively(file.path);
    if (file.descriptor >= 0) return 0;
    if (errno != EEXIST) return errno;
  }
  return EEXIST;
}

absl::StatusOr<std::string> write_new_file(const std::string& stem, std::string_view extension,
                                           std::string_view what, const Write& write) {
  NewFile file;
  if (const int error = make_new_file(stem, extension, file); error != 0)
    return cannot_write(what, file.path, error);
  note_temporary(file.path);
  if (absl::Status status = write_and_close(file.descriptor, what, file.path, write);
      !status.ok()) {
    remove_temporary(file.path);
    return status;
  }
  note_temporary("");
  return std::move(file.path);
}

absl::StatusOr<std::string> write_new_file(const std::string& stem, std::string_view extension,
                                           std::string_view what, std::string_view text) {
  return write_new_file(stem, extension, what, [text](std::ostream& out) { out << text; });
}

int open_to_append(const std::string& path) noexcept {
  try {
    Target target;
    if (const int error = find_target(path, target); error != 0) {
      errno = error;
      return -1;
    }
    return target.in_place() ? open_file(path, O_CREAT | O_APPEND)
                             : open_file(target.path, O_CREAT | O_APPEND | O_NOFOLLOW);
  } catch (const std::exception&) {
    errno = ENOMEM;
    return -1;
  }
}

RunTime run_time() {
  return {now_by(CLOCK_REALTIME), now_by(CLOCK_REALTIME_COARSE), now_by(CLOCK_BOOTTIME)};
}

std::string run_that_begins_now(RunClock clock) {
  const RunTime now = clock();
  return std::to_string(now.file_ns) + "-" + this_boot() + "-" + std::to_string(now.boot_ns) + "-" +
         std::to_string(::getpid());
}

RunFile::RunFile(std::string path, RunClock clock)
    : path_(std::move(path)),
      clock_(clock),
      before_(identity_of(path_)),
      boot_(this_boot()),
      process_(::getpid()) {
  writer_ = std::to_string(process_) + "-" + std::to_string(clock().boot_ns);
  const char* const run = secure_getenv(kRunVariable);
  has_runner_ = run != nullptr && *run != '\0' && std::strchr(run, ' ') == nullptr;
  run_ = has_runner_ ? run : run_that_begins_now(clock);
  std::array<std::string, 4> parts;
  if (split(run_, '-', parts) && parts[1] == boot_ && !boot_.empty())
    began_boot_ns_ = number_in(parts[2]);
  if (has_runner_) began_file_ns_ = number_in(run_);
}

RunFile::Identity RunFile::identity_of(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return {};
  return {true, status.st_dev, status.st_ino, nanoseconds(status.st_ctim)};
}

RunFile::Taker RunFile::taker_of(const std::string& path) const {
  const Identity now = identity_of(path);
  if (!now.exists) return Taker::kNobody;
  const bool changed = now.device != before_.device || now.inode != before_.inode ||
                       now.changed_ns != before_.changed_ns;
  RunStamp stamp;
  if (read_stamp(path, stamp)) {
    if (stamp.run == run_) return stamp.writer == writer_ ? Taker::kNobody : Taker::kThisRun;
    const bool is_comparable = began_boot_ns_ != 0 && stamp.boot == boot_;
    if (is_comparable ? stamp.boot_ns >= began_boot_ns_ : changed)
      return has_runner_ ? Taker::kAnotherRun : Taker::kUnknown;
    return changed ? Taker::kUnknown : Taker::kNobody;
  }
  if (changed) return Taker::kUnknown;
  // A file from the future was made before the clock was set back.
  const bool seems_newer =
      began_file_ns_ != 0 && now.changed_ns > began_file_ns_ && now.changed_ns <= clock_().wall_ns;
  return seems_newer ? Taker::kUnknown : Taker::kNobody;
}

std::string RunFile::stamp() const {
  return run_ + " " + writer_ + " " + (boot_.empty() ? "?" : boot_) + " " +
         std::to_string(clock_().boot_ns);
}

absl::StatusOr<RunFile::Written> RunFile::write(std::string_view what, const Write& write) const {
  Target target;
  if (const int error = find_target(path_, target); error != 0)
    return cannot_write(what, path_, error);
  if (target.in_place()) {
    const absl::Status status = write_in_place(target, what, path_, write);
    if (!status.ok()) return status;
    return Written{path_};
  }
  int descriptor = -1;
  const absl::StatusOr<std::string> temporary =
      write_beside(target, what, path_, write, &descriptor);
  if (!temporary.ok()) return temporary.status();
  Taker taker;
  {
    const FolderLock lock(target.folder);
    const std::string stamp = this->stamp();
    if (::fsetxattr(descriptor, kRunAttribute, stamp.data(), stamp.size(), 0) != 0)
      errno = 0;  // some file systems have no attributes
    if (descriptor >= 0) ::close(descriptor);
    taker = taker_of(target.path);
    if (taker == Taker::kNobody) {
      const absl::Status status = put_in_place(*temporary, target.path, what, path_);
      if (!status.ok()) return status;
      return Written{path_};
    }
  }
  const size_t dot = target.name.rfind('.');
  const std::string stem = target.name.substr(0, dot == 0 ? std::string::npos : dot);
  const std::string extension = target.name.substr(stem.size());
  NewFile own;
  if (const int error = make_new_file(target.folder + "/" + stem + "." + std::to_string(process_),
                                      extension, own)) {
    remove_temporary(*temporary);
    return cannot_write(what, own.path, error);
  }
  ::close(own.descriptor);
  // Replaces our own empty file.
  const absl::Status status = put_in_place(*temporary, own.path, what, own.path);
  if (!status.ok()) {
    ::unlink(own.path.c_str());
    return status;
  }
  return Written{own.path, taker};
}

}  // namespace memledger
