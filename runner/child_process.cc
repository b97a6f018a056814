#include "runner/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

constexpr int kCannotStart = 126;
constexpr int kUnknownStatus = 255;

bool redirect(const char* path, int flags, int descriptor) {
  const int file = open(path, flags | O_CLOEXEC, 0600);
  if (file < 0) return false;
  const bool is_done = dup2(file, descriptor) == descriptor;
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

absl::StatusOr<ChildProcess> ChildProcess::start(const std::string& input_file,
                                                 const std::string& output_file, std::string tag,
                                                 const std::function<int()>& become) {
  if (!make_input(input_file))
    return absl::UnavailableError(absl::StrCat(input_file, ": ", std::strerror(errno)));
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(errno)));
  if (process == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kCannotStart);
    if (!redirect(input_file.c_str(), O_RDONLY, STDIN_FILENO) ||
        !redirect(output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, STDOUT_FILENO) ||
        dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
      _exit(kCannotStart);
    _exit(become());
  }
  setpgid(process, process);
  return ChildProcess(process, input_file, std::move(tag));
}

bool ChildProcess::poll() {
  if (process_ == 0) return true;
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
  kill_descendants();
  return true;
}

void ChildProcess::kill(bool timed_out) {
  if (process_ == 0) return;
  end_.timed_out = timed_out;
  end_.status = 128 + SIGKILL;
  end_.read_input = was_read(input_file_);
  ::kill(-process_, SIGKILL);
  int status = 0;
  while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = 0;
  kill_descendants();
}

// Launchers give the processes that they start groups of their own.
void ChildProcess::kill_descendants() const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const std::string process = entry.path().filename();
    if (is_number(process) && has_tag(process, tag_)) ::kill(std::stoi(process), SIGKILL);
  }
}

std::string last_lines(const std::string& path, int lines) {
  std::ifstream file(path);
  std::deque<std::string> kept;
  for (std::string line; std::getline(file, line);) {
    kept.push_back(line);
    if (kept.size() > static_cast<size_t>(lines)) kept.pop_front();
  }
  return absl::StrJoin(kept, "\n");
}

}  // namespace memledger::runner
