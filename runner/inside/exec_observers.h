#pragma once

// For those who want to know that exec replaces this process' program. Async-signal-safe, and cheap
// in children of fork and vfork, which are not observed.

#include <errno.h>
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

// Observes calls of exec while it lives. Its function returns only if nothing was run.
class ObservedExec {
 public:
  // Programs try one path after another, so one that cannot be run is no end. A child of fork or
  // vfork looks for nothing.
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
