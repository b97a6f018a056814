#pragma once

// For those who want to know that exec replaces this process' program. Async-signal-safe, and cheap
// in children of fork and vfork, which are not observed.

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace memledger::inside {

// Called on the thread that calls exec: before, if there is such a program and this process may run
// it; and after, if it was not run all the same.
using ExecObserver = void (*)(const char* program) noexcept;

struct ExecObservers {
  ExecObserver before = nullptr;
  ExecObserver after = nullptr;
  pid_t process = 0;
};
// Those of the library that has the wrappers (exec_calls.cc).
extern ExecObservers exec_observers;

// Programs try one path after another, so one that cannot be run is no end.
inline bool may_run(int folder, const char* path, int flags) {
  struct stat status;
  return fstatat(folder, path, &status, flags & AT_EMPTY_PATH) == 0 && S_ISREG(status.st_mode) &&
         (*path == '\0' || faccessat(folder, path, X_OK, AT_EACCESS) == 0);
}

// Looks along PATH as execvp() does.
inline bool is_found(const char* file) {
  if (strchr(file, '/') != nullptr) return may_run(AT_FDCWD, file, 0);
  const char* path = getenv("PATH");
  if (path == nullptr) path = "/bin:/usr/bin";
  const size_t name_size = strlen(file);
  while (true) {
    const char* const end = strchrnul(path, ':');
    const auto size = static_cast<size_t>(end - path);
    char whole[4096];
    if (size + name_size + 2 <= sizeof whole) {
      memcpy(whole, path, size);
      whole[size] = '/';
      memcpy(whole + size + 1, file, name_size + 1);
      if (may_run(AT_FDCWD, size == 0 ? file : whole, 0)) return true;
    }
    if (*end == '\0') return false;
    path = end + 1;
  }
}

// Tells of an exec while it lives. Its function returns only if nothing was run.
class ObservedExec {
 public:
  // A child of fork or vfork looks for nothing.
  template <typename MayRun>
  ObservedExec(const char* program, const MayRun& may_run) : program_(program) {
    observed_ = __atomic_load_n(&exec_observers.before, __ATOMIC_ACQUIRE) != nullptr &&
                getpid() == exec_observers.process && may_run();
    if (observed_) exec_observers.before(program);
  }
  ~ObservedExec() {
    const int error = errno;
    if (observed_) exec_observers.after(program_);
    errno = error;
  }
  ObservedExec(const ObservedExec&) = delete;
  ObservedExec& operator=(const ObservedExec&) = delete;

 private:
  const char* const program_;
  bool observed_ = false;
};

}  // namespace memledger::inside

// Sets the observers for this process; of one caller.
extern "C" void memledger_observe_exec(memledger::inside::ExecObserver before,
                                       memledger::inside::ExecObserver after);

// From now on programs that are started have this signal as the process has it that starts them,
// but not blocked.
extern "C" void memledger_unblock_at_exec(int signal);
