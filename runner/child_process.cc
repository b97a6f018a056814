#include "runner/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

constexpr int kCannotStart = 126;
constexpr int kUnknownStatus = 255;

// So much of what a program writes is kept at least, and twice as much at most.
constexpr size_t kKeptOutput = size_t{64} << 10;
// A program whose processes are ended in order has so long for it.
constexpr auto kMaxEnding = std::chrono::seconds(10);

bool read_from(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool is_done = dup2(file, STDIN_FILENO) == STDIN_FILENO;
  close(file);
  return is_done;
}

// Whether a process has `tag` in the environment that it was started with.
bool has_tag(const std::string& process, const std::string& tag) {
  std::ifstream file("/proc/" + process + "/environ", std::ios::binary);
  const std::string environment((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  const std::string entry = tag + '\0';
  return environment.compare(0, entry.size(), entry) == 0 ||
         environment.find('\0' + entry) != std::string::npos;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// Makes an empty file whose time of access is long ago, so that whoever reads it changes that.
bool make_input(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return false;
  // The time of its last change stays: to a dry run of a program that predicts, it is a new file.
  constexpr timespec kLongAgo[2] = {{1, 0}, {0, UTIME_OMIT}};
  const bool is_done = futimens(file, kLongAgo) == 0;
  close(file);
  return is_done;
}

bool was_read(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && status.st_atim.tv_sec > 1;
}

}  // namespace

void OutputTail::add(std::string_view text) {
  text_.append(text);
  if (text_.size() > 2 * kKeptOutput) text_.erase(0, text_.size() - kKeptOutput);
}

std::string OutputTail::last_lines(int lines) const {
  std::string_view text = text_;
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  size_t begin = text.size();
  for (int i = 0; i < lines && begin != 0; ++i) {
    const size_t newline = text.rfind('\n', begin - 1);
    if (newline == std::string_view::npos) return std::string(text);
    begin = newline;
  }
  return std::string(text.substr(std::min(begin + 1, text.size())));
}

absl::StatusOr<ChildProcess> ChildProcess::start(const std::string& input_file, std::string tag,
                                                 bool ends_itself,
                                                 const std::function<int()>& become) {
  if (!make_input(input_file))
    return absl::UnavailableError(absl::StrCat(input_file, ": ", std::strerror(errno)));
  std::array<int, 2> output{};
  if (pipe2(output.data(), O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) {
    const int error = errno;
    close(output[0]);
    close(output[1]);
    return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(error)));
  }
  if (process == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kCannotStart);
    if (!read_from(input_file.c_str()) || dup2(output[1], STDOUT_FILENO) < 0 ||
        dup2(output[1], STDERR_FILENO) < 0)
      _exit(kCannotStart);
    _exit(become());
  }
  setpgid(process, process);
  close(output[1]);
  fcntl(output[0], F_SETFL, O_NONBLOCK);
  return ChildProcess(process, output[0], input_file, std::move(tag), ends_itself);
}

ChildProcess::ChildProcess(pid_t process, int output, std::string input_file, std::string tag,
                           bool ends_itself)
    : process_(process),
      // Linux 5.3 and later have it.
      process_descriptor_(static_cast<int>(syscall(SYS_pidfd_open, process, 0))),
      output_descriptor_(output),
      input_file_(std::move(input_file)),
      tag_(std::move(tag)),
      ends_itself_(ends_itself) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : process_(std::exchange(other.process_, 0)),
      process_descriptor_(std::exchange(other.process_descriptor_, -1)),
      output_descriptor_(std::exchange(other.output_descriptor_, -1)),
      input_file_(std::move(other.input_file_)),
      tag_(std::move(other.tag_)),
      ends_itself_(other.ends_itself_),
      output_(std::move(other.output_)),
      end_(other.end_),
      began_(other.began_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(process_, other.process_);
  std::swap(process_descriptor_, other.process_descriptor_);
  std::swap(output_descriptor_, other.output_descriptor_);
  std::swap(input_file_, other.input_file_);
  std::swap(tag_, other.tag_);
  std::swap(ends_itself_, other.ends_itself_);
  std::swap(output_, other.output_);
  std::swap(end_, other.end_);
  std::swap(began_, other.began_);
  return *this;
}

ChildProcess::~ChildProcess() {
  kill();
  for (const int descriptor : {process_descriptor_, output_descriptor_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

void ChildProcess::read_output() {
  std::array<char, 65536> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  while (output_descriptor_ >= 0) {
    const ssize_t length = read(output_descriptor_, buffer.data(), buffer.size());
    if (length > 0) {
      output_.add({buffer.data(), static_cast<size_t>(length)});
    } else if (length < 0 && errno == EINTR) {
      continue;
    } else if (length < 0 && errno == EAGAIN) {
      return;
    } else {
      close(std::exchange(output_descriptor_, -1));
    }
  }
}

bool ChildProcess::poll() {
  if (process_ == 0) return true;
  read_output();
  int status = 0;
  const pid_t ended = waitpid(process_, &status, WNOHANG);
  if (ended < 0 && errno == ECHILD) {
    // A program that waits for all children, or ignores their ends, has it; predict() runs there.
    status = kUnknownStatus << 8;
  } else if (ended != process_) {
    return false;
  }
  if (!end_.timed_out)
    end_.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  end_.read_input = was_read(input_file_);
  ::kill(-process_, SIGKILL);
  process_ = 0;
  end_descendants();
  read_output();
  return true;
}

void ChildProcess::kill(bool timed_out) {
  if (process_ == 0) return;
  end_.timed_out = timed_out;
  end_.status = 128 + SIGKILL;
  end_.read_input = was_read(input_file_);
  const auto begin = std::chrono::steady_clock::now();
  if (ends_itself_) ::kill(process_, SIGTERM);
  while (ends_itself_ && std::chrono::steady_clock::now() - begin < kMaxEnding) {
    siginfo_t ended{};
    if (waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ended.si_pid != 0)
      break;
    wait_for_any({this}, std::chrono::milliseconds(20));
    read_output();
  }
  ::kill(-process_, SIGKILL);
  int status = 0;
  while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = 0;
  end_descendants();
  read_output();
}

void ChildProcess::wait_for_any(const std::vector<const ChildProcess*>& children,
                                std::chrono::milliseconds at_most) {
  std::vector<pollfd> events;
  for (const ChildProcess* const child : children) {
    for (const int descriptor : {child->process_descriptor_, child->output_descriptor_}) {
      if (descriptor >= 0) events.push_back({descriptor, POLLIN, 0});
    }
  }
  ::poll(events.data(), events.size(), static_cast<int>(at_most.count()));
}

// Launchers give the processes that they start groups of their own. In a namespace of processes all
// have ended with its first.
void ChildProcess::end_descendants() const {
  if (ends_itself_) return;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const std::string process = entry.path().filename();
    if (is_number(process) && has_tag(process, tag_)) ::kill(std::stoi(process), SIGKILL);
  }
}

}  // namespace memledger::runner
