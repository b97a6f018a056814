// Part of libmemledger_preload.so, and of libmemledger.so for programs that link it. The functions
// here may be called in signal handlers and in children of vfork, so they take no lock and keep no
// state about what the program sets: whose an action is shows in its handler.
#include "runner/inside/end_calls.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runner/inside/real_function.h"

namespace {

using memledger::inside::ExitObserver;
using memledger::inside::OwnActionObserver;
using memledger::inside::RealFunction;
using memledger::inside::SuddenExitObserver;

using Handler = void (*)(int);
using Sigaction = int (*)(int, const struct sigaction*, struct sigaction*);

constexpr int kMostSignals = 64;

OwnActionObserver action_observer = nullptr;
SuddenExitObserver sudden_exit_observers[4];
ExitObserver exit_observers[4];

template <typename Observer>
void add(Observer (&observers)[4], Observer observer) {
  for (Observer& place : observers) {
    Observer none = nullptr;
    if (__atomic_compare_exchange_n(&place, &none, observer, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
      return;
  }
}

template <typename Observer, typename... Arguments>
void tell(Observer (&observers)[4], Arguments... arguments) {
  for (Observer& place : observers) {
    const Observer observer = __atomic_load_n(&place, __ATOMIC_ACQUIRE);
    if (observer != nullptr) observer(arguments...);
  }
}

// Set once, before `replaced`.
struct sigaction ours;
uint64_t replaced = 0;

bool has_nodefer_handler = false;

RealFunction<Sigaction> real_sigaction("sigaction");
using SetHandler = Handler (*)(int, Handler);
RealFunction<SetHandler> real_signal("signal"), real_sysv_signal("sysv_signal"),
    real_sigset("sigset");
RealFunction<void (*)(int)> real_exit("exit");
RealFunction<void (*)(int)> real_quick_exit("quick_exit");
RealFunction<void (*)(int)> real__exit("_exit");

// They are called in signal handlers and in children of vfork, where nothing may be looked up.
__attribute__((constructor)) void find_real_functions() {
  real_sigaction.get();
  real_signal.get();
  real_sysv_signal.get();
  real_sigset.get();
  real_exit.get();
  real_quick_exit.get();
  real__exit.get();
}

bool is_replaced(int number) {
  return number > 0 && number <= kMostSignals &&
         (__atomic_load_n(&replaced, __ATOMIC_ACQUIRE) >> (number - 1) & 1) != 0;
}

bool is_default(const struct sigaction& action) { return action.sa_handler == SIG_DFL; }

bool is_ours(Handler handler) { return handler == ours.sa_handler; }

void tell_own_action(int number) {
  const OwnActionObserver observer = __atomic_load_n(&action_observer, __ATOMIC_ACQUIRE);
  if (observer != nullptr) observer(number);
}

bool is_handler(Handler handler) { return handler != SIG_DFL && handler != SIG_IGN; }

void note_flags(Handler handler, int flags) {
  if (is_handler(handler) && (flags & SA_NODEFER) != 0)
    __atomic_store_n(&has_nodefer_handler, true, __ATOMIC_RELEASE);
}

// Sets ours without a moment in which the signal would end the process unseen.
Handler set_default(int number) {
  struct sigaction before;
  if (real_sigaction.get()(number, &ours, &before) != 0) return SIG_ERR;
  return is_ours(before.sa_handler) ? SIG_DFL : before.sa_handler;
}

// The real functions set all else, as signal() knows what siginterrupt() has asked for.
Handler set_handler(RealFunction<SetHandler>& real, int number, Handler handler) {
  if (real.get() == nullptr) {
    errno = ENOSYS;
    return SIG_ERR;
  }
  if (!is_replaced(number)) return real.get()(number, handler);
  if (handler == SIG_DFL) return set_default(number);
  const Handler before = real.get()(number, handler);
  if (before == SIG_ERR) return before;
  if (handler != SIG_HOLD) tell_own_action(number);  // which sets no action
  return is_ours(before) ? SIG_DFL : before;
}

}  // namespace

extern "C" {

#define MEMLEDGER_IN_FRONT __attribute__((visibility("default")))

MEMLEDGER_IN_FRONT void memledger_observe_sudden_exit(SuddenExitObserver observer) {
  add(sudden_exit_observers, observer);
}
MEMLEDGER_IN_FRONT void memledger_observe_exit(ExitObserver observer) {
  add(exit_observers, observer);
}

MEMLEDGER_IN_FRONT void memledger_observe_own_actions(OwnActionObserver observer) {
  __atomic_store_n(&action_observer, observer, __ATOMIC_RELEASE);
}

MEMLEDGER_IN_FRONT void memledger_replace_default_actions(uint64_t signals,
                                                          const struct sigaction* action) {
  if (__atomic_load_n(&replaced, __ATOMIC_ACQUIRE) != 0) return;
  ours = *action;
  __atomic_store_n(&replaced, signals, __ATOMIC_RELEASE);
  for (int number = 1; number <= kMostSignals; ++number) {
    struct sigaction now;
    if (is_replaced(number) && real_sigaction.get()(number, nullptr, &now) == 0 && is_default(now))
      real_sigaction.get()(number, &ours, nullptr);
  }
}

MEMLEDGER_IN_FRONT bool memledger_has_nodefer_handler() {
  return __atomic_load_n(&has_nodefer_handler, __ATOMIC_ACQUIRE);
}

MEMLEDGER_IN_FRONT int sigaction(int number, const struct sigaction* action,
                                 struct sigaction* before) noexcept {
  if (real_sigaction.get() == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  if (action != nullptr) note_flags(action->sa_handler, action->sa_flags);
  if (!is_replaced(number)) return real_sigaction.get()(number, action, before);
  const bool sets_default = action != nullptr && is_default(*action);
  const int result = real_sigaction.get()(number, sets_default ? &ours : action, before);
  if (result == 0 && before != nullptr && is_ours(before->sa_handler)) *before = {};
  if (result == 0 && action != nullptr && !sets_default) tell_own_action(number);
  return result;
}

MEMLEDGER_IN_FRONT Handler signal(int number, Handler handler) noexcept {
  return set_handler(real_signal, number, handler);
}
MEMLEDGER_IN_FRONT Handler bsd_signal(int number, Handler handler) noexcept {
  return signal(number, handler);
}
MEMLEDGER_IN_FRONT Handler ssignal(int number, Handler handler) noexcept {
  return signal(number, handler);
}

// What signal() is in programs of strict standard C. Its handlers are all SA_NODEFER.
MEMLEDGER_IN_FRONT Handler sysv_signal(int number, Handler handler) noexcept {
  note_flags(handler, SA_NODEFER);
  return set_handler(real_sysv_signal, number, handler);
}
MEMLEDGER_IN_FRONT Handler __sysv_signal(int number, Handler handler) noexcept {
  return sysv_signal(number, handler);
}

MEMLEDGER_IN_FRONT Handler sigset(int number, Handler handler) noexcept {
  if (handler != SIG_DFL || !is_replaced(number)) return set_handler(real_sigset, number, handler);
  const Handler before = set_default(number);
  sigset_t set, blocked;
  sigemptyset(&set);
  sigaddset(&set, number);
  if (before == SIG_ERR || sigprocmask(SIG_UNBLOCK, &set, &blocked) != 0) return SIG_ERR;
  return sigismember(&blocked, number) == 1 ? SIG_HOLD : before;
}

MEMLEDGER_IN_FRONT void _exit(int status) {
  tell(sudden_exit_observers, status);
  if (real__exit.get() != nullptr) real__exit.get()(status);
  while (true) syscall(SYS_exit_group, status);
}
MEMLEDGER_IN_FRONT void _Exit(int status) { _exit(status); }

MEMLEDGER_IN_FRONT void exit(int status) noexcept {
  tell(exit_observers, real_exit.get(), status);
  if (real_exit.get() != nullptr) real_exit.get()(status);
  _exit(status);
}
MEMLEDGER_IN_FRONT void quick_exit(int status) noexcept {
  tell(exit_observers, real_quick_exit.get(), status);
  if (real_quick_exit.get() != nullptr) real_quick_exit.get()(status);
  _exit(status);
}

}  // extern "C"
