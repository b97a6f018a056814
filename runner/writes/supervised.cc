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

// What a process of ours takes from its queue in place of handling it.
class Queued {
 public:
  Queued() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
    // Where it is ignored, nobody learns how a child ended.
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, &on_child_before_);
  }
  // Returns SIGTERM or SIGCHLD.
  int next() const {
    int number = -1;
    while (number < 0) number = sigwaitinfo(&signals_, nullptr);
    return number;
  }
  void give_back() const {
    sigaction(SIGCHLD, &on_child_before_, nullptr);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signals_, before_;
  struct sigaction on_child_before_ {};
};

// Waits until `child` has ended, and reaps what else has. Returns its status as a shell has it.
int wait_for(pid_t child, const Queued& queued, void (*on_term)(pid_t child)) {
  for (;;) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
      if (ended == child) return shell_status(status);
    }
    if (ended < 0 && errno == ECHILD) return kCannotStart;
    if (queued.next() == SIGTERM) on_term(child);
  }
}

// Unless a call was told so, and noted that.
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
  const pid_t program = fork();
  if (program < 0) return fail(folder, "fork");
  if (program == 0) {
    queued.give_back();
    setpgid(0, 0);
    if (!files.open_again()) _exit(fail(folder, files.failed()));
    if (!root.enter_working_folder()) _exit(fail(folder, "the working folder"));
    _exit(become());
  }
  const int status = wait_for(program, queued, [](pid_t /*child*/) { ::kill(-1, SIGKILL); });
  ::kill(-1, SIGKILL);
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  // A write through a mapping has no other error than SIGBUS.
  if (root.are_layers_full()) note_full_layers(folder);
  const std::string record = to_record(root.writes());
  write_record(folder, kRecord, record.data(), record.size());
  return status;
}

}  // namespace

int run_supervised(PrivateRoot& root, InheritedFiles& files, const std::string& folder,
                   const std::function<int()>& become) {
  const int open_folder = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::array<int, 2> alive{};  // as long as this process is
  if (open_folder < 0 || pipe2(alive.data(), O_CLOEXEC) != 0) return kCannotStart;
  const Queued queued;
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
  return wait_for(first, queued, [](pid_t child) { ::kill(child, SIGTERM); });
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
