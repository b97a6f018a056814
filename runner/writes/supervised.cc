#include "runner/writes/supervised.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "prediction/measure_variables.h"
#include "runner/writes/layer_files.h"
#include "text/file_text.h"

namespace memledger::runner {
namespace {

constexpr char kRecord[] = "files";
constexpr char kFailure[] = "no_layers";
constexpr int kCannotStart = 126;

int shell_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void write_record(int folder, const char* name, const char* text, size_t length) {
  const int file = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  while (length > 0) {
    const ssize_t written = write(file, text, length);
    if (written <= 0) break;
    text += written;
    length -= static_cast<size_t>(written);
  }
  close(file);
}

// Allocates nothing.
int fail(int folder, const char* at) {
  std::array<char, 512> text{};
  const int length = std::snprintf(text.data(), text.size(), "%s: %s", at, std::strerror(errno));
  write_record(folder, kFailure, text.data(),
               std::min(text.size() - 1, static_cast<size_t>(std::max(length, 0))));
  return kNoPrivateRoot;
}

void end_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

// What a process of ours takes from its queue instead of handling it.
class Queued {
 public:
  explicit Queued(const Foreground* foreground) : foreground_(foreground) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGCHLD);
    if (foreground != nullptr) sigfillset(&signals_);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
    // Where it is ignored, nobody learns how a child ended.
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, &on_child_before_);
  }
  siginfo_t next() const {
    siginfo_t info{};
    while (sigwaitinfo(&signals_, &info) < 0) {
    }
    return info;
  }
  void give_back() const {
    sigaction(SIGCHLD, &on_child_before_, nullptr);
    if (foreground_ != nullptr) {
      foreground_->become_program();
    } else {
      sigprocmask(SIG_SETMASK, &before_, nullptr);
    }
  }
  const Foreground* foreground() const { return foreground_; }

 private:
  const Foreground* const foreground_;
  sigset_t signals_, before_;
  struct sigaction on_child_before_ {};
};

// A process of ours that waits for its child, and reaps what else has ended.
struct Waiting {
  pid_t child;
  bool is_program;          // the child
  bool is_witness = false;  // see foreground.h
  // Called once SIGTERM has come, or its own parent has ended.
  void (*end)(pid_t child) = nullptr;
  pid_t parent = 0;  // 0: whatever it does
};

// Reports what has become of the program while it goes on. Returns whether it does.
bool goes_on(int status, const Foreground* foreground) {
  if (WIFSTOPPED(status) && foreground != nullptr)
    foreground->tell(Foreground::Event::kStopped, WSTOPSIG(status));
  if (WIFCONTINUED(status) && foreground != nullptr)
    foreground->tell(Foreground::Event::kContinued);
  return WIFSTOPPED(status) || WIFCONTINUED(status);
}

// Returns the child's status as waitpid() has it.
int wait_for(const Waiting& waiting, const Queued& queued) {
  const Foreground* const foreground = queued.foreground();
  const int options = foreground != nullptr && waiting.is_program ? WUNTRACED | WCONTINUED : 0;
  for (;;) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(-1, &status, WNOHANG | options)) > 0) {
      if (ended != waiting.child || goes_on(status, foreground)) continue;
      if (foreground != nullptr && waiting.is_program)
        foreground->tell(Foreground::Event::kEnded, status);
      return status;
    }
    if (ended < 0 && errno == ECHILD) return kCannotStart << 8;
    const siginfo_t signal = queued.next();
    const bool is_orphan = waiting.parent != 0 && getppid() != waiting.parent;
    if (is_orphan || (foreground == nullptr && signal.si_signo == SIGTERM))
      waiting.end(waiting.child);
    if (foreground != nullptr && waiting.is_witness && signal.si_signo != SIGCHLD)
      foreground->tell(Foreground::Event::kWitnessed, signal.si_signo);
  }
}

// Kills the caller's children as the kernel lists them. Returns whether there were any; false where
// it has no list. Allocates nothing.
bool kill_children() {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/task/%d/children", getpid());
  const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::array<char, 4096> text{};  // of more, the rest has its turn when these have ended
  const ssize_t length = read(file, text.data(), text.size() - 1);
  close(file);
  pid_t child = 0;
  for (ssize_t i = 0; i < length; ++i) {
    const char at = text[static_cast<size_t>(i)];
    if (at >= '0' && at <= '9') {
      child = child * 10 + (at - '0');
    } else if (child != 0) {
      ::kill(child, SIGKILL);
      child = 0;
    }
  }
  return length > 0;
}

// Unless a call got that error, and noted it.
void note_full_layers(int folder) {
  constexpr char kFull[] = "write: ENOSPC\0the layers of the run";
  const int file =
      openat(folder, prediction::kRefusedFiles, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  std::array<char, 65536> noted;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  const ssize_t length = read(file, noted.data(), noted.size());
  if (length > 0 && memmem(noted.data(), static_cast<size_t>(length), "ENOSPC", 6) != nullptr) {
    close(file);
    return;
  }
  [[maybe_unused]] const ssize_t written = write(file, kFull, sizeof kFull);
  close(file);
}

// The first process of the namespace.
int supervise(PrivateRoot& root, InheritedFiles& files, int folder, const Queued& queued,
              const std::function<int()>& become) {
  if (!root.make_mounts()) return fail(folder, root.failed());
  const Foreground* const foreground = queued.foreground();
  const pid_t program = fork();
  if (program < 0) return fail(folder, "fork");
  if (program == 0) {
    queued.give_back();
    if (foreground == nullptr) setpgid(0, 0);
    if (!files.open_again()) _exit(fail(folder, files.failed()));
    if (!root.enter_working_folder()) _exit(fail(folder, "the working folder"));
    _exit(become());
  }
  if (foreground != nullptr) foreground->leave_streams();
  Waiting waiting{program, /*is_program=*/true};
  waiting.end = [](pid_t /*child*/) { ::kill(-1, SIGKILL); };
  const int status = wait_for(waiting, queued);
  ::kill(-1, SIGKILL);
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  // A write through a mapping has no other error than SIGBUS.
  if (root.are_layers_full()) note_full_layers(folder);
  const std::string record = to_record(root.writes());
  write_record(folder, kRecord, record.data(), record.size());
  return shell_status(status);
}

}  // namespace

int run_supervised(PrivateRoot& root, InheritedFiles& files, const std::string& folder,
                   const std::function<int()>& become, const Foreground* foreground) {
  const int open_folder = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::array<int, 2> alive{};  // as long as this process is
  if (open_folder < 0 || pipe2(alive.data(), O_CLOEXEC) != 0) return kCannotStart;
  const Queued queued(foreground);
  if (!root.enter_namespaces()) return fail(open_folder, root.failed());
  end_with_parent();  // a change of credentials takes that back
  const pid_t first = fork();
  if (first < 0) return fail(open_folder, "fork");
  if (first == 0) {
    close(alive[1]);
    end_with_parent();
    pollfd parent{alive[0], POLLIN, 0};
    if (poll(&parent, 1, 0) != 0) _exit(kCannotStart);
    _exit(supervise(root, files, open_folder, queued, become));
  }
  if (foreground != nullptr) foreground->leave_streams();
  Waiting waiting{first, /*is_program=*/false, /*is_witness=*/true};
  waiting.end = [](pid_t child) { ::kill(child, SIGTERM); };
  return shell_status(wait_for(waiting, queued));
}

int run_beside(const std::function<int()>& become, const Foreground* foreground) {
  const Queued queued(foreground);
  const pid_t parent = getppid();
  // Each process that has lost its parent becomes a child of this one.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const pid_t program = fork();
  if (program < 0) return kCannotStart;
  if (program == 0) {
    end_with_parent();
    queued.give_back();
    if (foreground == nullptr) setpgid(0, 0);
    _exit(become());
  }
  if (foreground != nullptr) foreground->leave_streams();
  Waiting waiting{program, /*is_program=*/true, /*is_witness=*/true};
  waiting.end = [](pid_t child) { ::kill(child, SIGKILL); };
  waiting.parent = parent;
  const int status = wait_for(waiting, queued);
  while (kill_children() && (waitpid(-1, nullptr, 0) > 0 || errno == EINTR)) {
  }
  return shell_status(status);
}

int note_failure(const std::string& folder, const std::string& why) {
  std::ofstream(folder + "/" + kFailure) << why;
  return kNoPrivateRoot;
}

SupervisorsRecord read_supervisors_record(const std::string& folder) {
  SupervisorsRecord record;
  record.failure = file_text(folder + "/" + kFailure);
  record.writes = writes_of_record(file_text(folder + "/" + kRecord));
  return record;
}

}  // namespace memledger::runner
