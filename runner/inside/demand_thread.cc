#include "runner/inside/demand_thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "runner/inside/end_calls.h"
#include "runner/inside/exec_observers.h"
#include "runner/inside/interrupted_call.h"

namespace memledger::inside {
namespace {

int number = 0;
pid_t process = 0;
pthread_t thread;
decltype(&memledger_unblock_at_exec) unblock_at_exec = nullptr;
std::atomic<bool> is_programs{false};  // the program has an action of its own

sigset_t only_it() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  return set;
}

void* take(void* /*unused*/) {
  pthread_setname_np(pthread_self(), "memledger");
  const sigset_t set = only_it();
  while (true) {
    int taken = 0;
    if (sigwait(&set, &taken) != 0) continue;
    if (is_programs.load()) return nullptr;
    // The handler runs here.
    pthread_kill(pthread_self(), number);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
  }
}

void unblock() noexcept {
  const sigset_t set = only_it();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void give_back(int of_action) noexcept {
  if (of_action != number || getpid() != process || is_programs.exchange(true)) return;
  pthread_kill(thread, number);  // ends it
  unblock_at_exec(0);
  expect_blocked(0);
  unblock();
}

// The library that stands first in the process has the functions that the program calls.
template <typename F>
F find_in_front(const char* name) noexcept {
  void* const program = dlopen(nullptr, RTLD_NOW);
  return program == nullptr ? nullptr : reinterpret_cast<F>(dlsym(program, name));
}

// Whether the program had an action of its own before memledger was there. It is told of its own
// actions only.
bool has_programs_action() noexcept {
  const auto ask =
      find_in_front<int (*)(int, const struct sigaction*, struct sigaction*)>("sigaction");
  struct sigaction now;
  return ask == nullptr || ask(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL;
}

bool make_thread() noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool is_made = pthread_create(&thread, nullptr, &take, nullptr) == 0;
  if (is_made) {
    pthread_detach(thread);
    sigaddset(&before, number);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_made;
}

}  // namespace

void take_on_own_thread(int signal) noexcept {
  const auto observe_actions =
      find_in_front<decltype(&memledger_observe_own_actions)>("memledger_observe_own_actions");
  unblock_at_exec =
      find_in_front<decltype(&memledger_unblock_at_exec)>("memledger_unblock_at_exec");
  if (signal == 0 || observe_actions == nullptr || unblock_at_exec == nullptr) return;
  number = signal;
  process = getpid();
  if (has_programs_action()) return;
  if (pthread_atfork(nullptr, nullptr, &unblock) != 0 || !make_thread()) return;
  unblock_at_exec(signal);
  expect_blocked(signal);
  observe_actions(&give_back);
}

}  // namespace memledger::inside
