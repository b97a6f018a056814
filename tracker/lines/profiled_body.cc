// MEMLEDGER_PROFILE() and MEMLEDGER_PROFILE_EVERY(): the profiler of the whole process, and when it
// prints.

#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "text/output.h"
#include "tracker/line_profiler.h"

namespace memledger {
namespace {

LineProfiler& global_profiler() {
  static auto* const profiler = new LineProfiler;
  return *profiler;
}

std::atomic<int64_t> clearings{0};
std::once_flag printed;
pid_t owner = 0;
int wake_up[2] = {-1, -1};
struct sigaction action_before;

void write_profile(const LineProfiler& profiler, const std::vector<std::string>& columns) {
  std::ostringstream text;
  profiler.print_stats(text, columns).IgnoreError();
  write_to(std::cout, text.str(), "line profile to standard output");
}

void print() noexcept {
  try {
    write_profile(global_profiler(), {});
  } catch (const std::exception& error) {
    tell({"memledger: no line profile: ", first_line(error.what())});
  }
}

// Ctrl-C and the program's end may come together: the second waits for the first. A forked child
// would wait for a thread that it does not have.
void print_once() noexcept {
  if (getpid() == owner) std::call_once(printed, &print);
}

// A signal handler may do little more than wake the thread that prints, which a forked child lacks.
void on_interrupt(int) {
  const int error = errno;
  if (getpid() != owner || write(wake_up[1], "", 1) != 1) {
    sigaction(SIGINT, &action_before, nullptr);
    raise(SIGINT);
  }
  errno = error;
}

void print_and_end() {
  char byte;
  while (read(wake_up[0], &byte, 1) != 1) {
  }
  print_once();
  // Ends the program as the signal would have without us.
  sigaction(SIGINT, &action_before, nullptr);
  kill(getpid(), SIGINT);
}

// Leaves a program's own handler in place.
void print_on_interrupt() {
  if (sigaction(SIGINT, nullptr, &action_before) != 0 || action_before.sa_handler != SIG_DFL ||
      pipe(wake_up) != 0)
    return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(&print_and_end).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  struct sigaction action = {};
  action.sa_handler = &on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

void print_at_the_end() {
  static const bool arranged = [] {
    owner = getpid();
    std::atexit(&print_once);
    print_on_interrupt();
    return true;
  }();
  static_cast<void>(arranged);
}

}  // namespace

void clear_global_line_profiler() {
  global_profiler().clear();
  global_profiler().clear_functions();
  // Last: a body that sees the old number has not added its function since.
  ++clearings;
}

namespace internal {

struct ProfiledBody::State {
  bool enabled = true;
  int64_t interval = 0;  // in runs; 0: printed at the end
  std::vector<std::string> columns;
  LineProfiler* profiler = nullptr;      // never deleted
  std::atomic<int64_t> known_since{-1};  // value of `clearings`
  std::atomic<int64_t> runs{0};
};

ProfiledBody::ProfiledBody() : state_(new State) {
  state_->profiler = &global_profiler();
  print_at_the_end();
}

ProfiledBody::ProfiledBody(int64_t interval, bool enable,
                           std::initializer_list<const char*> columns)
    : state_(new State) {
  TORCH_CHECK(interval > 0, "memledger: MEMLEDGER_PROFILE_EVERY(", interval,
              "): the interval is a number of runs, 1 or more");
  state_->interval = interval;
  state_->enabled = enable;
  state_->columns.assign(columns.begin(), columns.end());
  const auto parsed = parse_line_columns(state_->columns);
  TORCH_CHECK(parsed.ok(), std::string(parsed.status().message()));
  state_->profiler = new LineProfiler;
}

ProfiledRun::ProfiledRun(ProfiledBody& body) : body_(body) {
  ProfiledBody::State& state = *body_.state_;
  if (!state.enabled) return;
  const int64_t now = state.interval == 0 ? clearings.load() : 0;
  if (state.known_since.load() != now && state.known_since.exchange(now) != now)
    state.profiler->add_function(static_cast<const char*>(__builtin_return_address(0)) - 1);
  state.profiler->enable().release();
}

ProfiledRun::~ProfiledRun() {
  ProfiledBody::State& state = *body_.state_;
  if (!state.enabled) return;
  state.profiler->disable();
  if (state.interval == 0 || ++state.runs % state.interval != 0) return;
  try {
    write_profile(*state.profiler, state.columns);
  } catch (const std::exception& error) {
    tell({"memledger: no line profile: ", first_line(error.what())});
  }
}

}  // namespace internal
}  // namespace memledger
