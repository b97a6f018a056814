#include "runner/scratch_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace memledger::runner {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "/memledger-XXXXXX";

// $TMPDIR if it is a folder, else /tmp; without links, as a run's own mounts know no other paths.
std::string temporary_folder() {
  const char* const wanted = std::getenv("TMPDIR");
  std::error_code error;
  for (const char* const folder : {wanted, "/tmp"}) {
    if (folder == nullptr || *folder != '/') continue;
    const fs::path path = fs::canonical(folder, error);
    if (!error && fs::is_directory(path, error)) return path;
  }
  return "/tmp";
}

// Leaves `a` as descriptor 0, `b` as 1, and no other.
bool keep_only(int a, int b) {
  const int high = fcntl(b, F_DUPFD, 2);
  if (high < 0 || dup2(a, 0) != 0 || dup2(high, 1) != 1) return false;
  if (syscall(SYS_close_range, 2, ~0U, 0) == 0) return true;
  for (int number = 2; number < 65536; ++number) close(number);
  return true;
}

// Makes the folder, passes on its path, waits until all processes that hold the other end of
// `alive` have ended, and becomes `rm`. The folder is made here, where no signal comes that its
// maker's group is sent. May be called in a child of a process with threads.
[[noreturn]] void make_and_remove(int alive, int told, char* path, size_t length) {
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  if (!keep_only(alive, told) || chdir("/") != 0) _exit(1);
  int error = 0;
  if (mkdtemp(path) == nullptr) error = errno;
  const char* const answer = error == 0 ? path : reinterpret_cast<const char*>(&error);
  if (write(1, answer, error == 0 ? length : sizeof error) < 0 && errno != EPIPE) _exit(1);
  if (error != 0) _exit(0);
  close(1);
  char byte = 0;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  close(0);
  // Messages would come when nobody reads them.
  for (int i = 0; i < 3; ++i) open("/dev/null", O_RDWR);
  for (const char* const rm : {"/bin/rm", "/usr/bin/rm"})
    execl(rm, "rm", "-rf", "--", path, static_cast<char*>(nullptr));
  _exit(1);
}

// Starts the process that makes the folder and removes it. It is no child of ours, which the
// program could wait for. Returns the pipe's end that keeps the folder there, or -1; `path` becomes
// the folder's.
int start_remover(std::string& path) {
  std::array<int, 2> alive{}, told{};
  if (pipe2(alive.data(), O_CLOEXEC) != 0) return -1;
  if (pipe2(told.data(), O_CLOEXEC) != 0) {
    close(alive[0]);
    close(alive[1]);
    return -1;
  }
  const pid_t between = fork();
  if (between == 0) {
    close(alive[1]);
    close(told[0]);
    const pid_t remover = fork();
    if (remover == 0) make_and_remove(alive[0], told[1], path.data(), path.size());
    _exit(remover < 0);
  }
  close(alive[0]);
  close(told[1]);
  int status = 0;
  while (between > 0 && waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  std::string answer(path.size(), '\0');
  ssize_t length = 0;
  do {
    length = read(told[0], answer.data(), answer.size());
  } while (length < 0 && errno == EINTR);
  close(told[0]);
  if (length == static_cast<ssize_t>(path.size())) {
    path = answer;
    return alive[1];
  }
  close(alive[1]);
  int error = EAGAIN;
  if (length == sizeof error) std::memcpy(&error, answer.data(), sizeof error);
  errno = error;
  return -1;
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::string path = temporary_folder() + kName;
  alive_ = start_remover(path);
  if (alive_ >= 0) path_ = std::move(path);
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
  if (alive_ >= 0) close(alive_);
}

}  // namespace memledger::runner
