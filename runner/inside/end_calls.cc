// Part of libmemledger_preload.so, and of libmemledger.so for programs that link it. The functions
// here may be called in signal handlers and in children of vfork, so they take no lock and keep no
// state about what the program sets: whose an action is shows in its handler. Handlers that are
// called once (SA_RESETHAND) are the exception, as the kernel would set the default action itself.
#include "runner/inside/end_calls.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runner/inside/kernel_signals.h"
#include "runner/inside/real_function.h"

namespace {

using memledger::inside::bit_of;
using memledger::inside::ExitObserver;
using memledger::inside::kMaxSignal;
using memledger::inside::OwnActionObserver;
using memledger::inside::RealFunction;
using memledger::inside::SuddenExitObserver;

using Handler = void (*)(int);
using Sigaction = int (*)(int, const struct sigaction*, struct sigaction*);

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

// Calls the last one first, as atexit() does: libmemledger.so writes its report before the rest is
// called.
template <typename Observer, typename... Arguments>
void tell(Observer (&observers)[4], Arguments... arguments) {
  for (size_t i = sizeof observers / sizeof *observers; i-- > 0;) {
    const Observer observer = __atomic_load_n(&observers[i], __ATOMIC_ACQUIRE);
    if (observer != nullptr) observer(arguments...);
  }
}

// Set once, before `replaced`.
struct sigaction ours;
pid_t process = 0;
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
  return number > 0 && number <= kMaxSignal &&
         (__atomic_load_n(&replaced, __ATOMIC_ACQUIRE) & bit_of(number)) != 0;
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

// An action of the program's whose handler is called once. The kernel has call_once() in its place.
struct CalledOnce {
  struct sigaction action;
  bool is_due;
};
CalledOnce called_once[kMaxSignal + 1];

void call_once(int number, siginfo_t* info, void* context) {
  const struct sigaction& action = called_once[number].action;
  real_sigaction.get()(number, &ours, nullptr);
  // Another thread's signal may have come at once.
  if (!__atomic_exchange_n(&called_once[number].is_due, false, __ATOMIC_ACQ_REL)) {
    ours.sa_sigaction(number, info, context);
  } else if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(number, info, context);
  } else {
    action.sa_handler(number);
  }
}

// Children have nothing to report, and those of vfork have our memory.
bool is_called_once(const struct sigaction& action) {
  return (action.sa_flags & SA_RESETHAND) != 0 && is_handler(action.sa_handler) &&
         getpid() == process;
}

struct sigaction note_called_once(int number, const struct sigaction& action) {
  called_once[number].action = action;
  __atomic_store_n(&called_once[number].is_due, true, __ATOMIC_RELEASE);
  struct sigaction changed = action;
  changed.sa_sigaction = &call_once;
  changed.sa_flags = (action.sa_flags & ~SA_RESETHAND) | SA_SIGINFO;
  return changed;
}

// Makes of an action that the kernel has had what the program would have seen.
void show(struct sigaction& action, const struct sigaction& once) {
  if (is_ours(action.sa_handler)) {
    action = {};
  } else if (action.sa_sigaction == &call_once) {
    action.sa_handler = once.sa_handler;
    action.sa_flags = once.sa_flags;
  }
}

// For signals that are replaced. Sets ours, where the program sets the default action, without a
// moment in which the signal would end the process unseen.
int set_action(int number, const struct sigaction* action, struct sigaction* before) {
  const struct sigaction once = called_once[number].action;
  struct sigaction changed;
  if (action != nullptr && is_default(*action)) {
    action = &ours;
  } else if (action != nullptr && is_called_once(*action)) {
    changed = note_called_once(number, *action);
    action = &changed;
  }
  const int result = real_sigaction.get()(number, action, before);
  if (result == 0 && before != nullptr) show(*before, once);
  return result;
}

Handler set_default(int number) {
  struct sigaction before, by_default{};
  return set_action(number, &by_default, &before) == 0 ? before.sa_handler : SIG_ERR;
}

// The real functions set all else, as signal() knows what siginterrupt() has asked for.
Handler set_handler(RealFunction<SetHandler>& real, int number, Handler handler) {
  if (real.get() == nullptr) {
    errno = ENOSYS;
    return SIG_ERR;
  }
  if (!is_replaced(number)) return real.get()(number, handler);
  if (handler == SIG_DFL) return set_default(number);
  const struct sigaction once = called_once[number].action;
  struct sigaction before {};
  before.sa_handler = real.get()(number, handler);
  if (before.sa_handler == SIG_ERR) return SIG_ERR;
  if (handler != SIG_HOLD) tell_own_action(number);  // which sets no action
  show(before, once);
  return before.sa_handler;
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
  process = getpid();
  __atomic_store_n(&replaced, signals, __ATOMIC_RELEASE);
  for (int number = 1; number <= kMaxSignal; ++number) {
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
  const bool sets_own = action != nullptr && !is_default(*action);
  const int result = set_action(number, action, before);
  if (result == 0 && sets_own) tell_own_action(number);
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

// What signal() is in programs of strict standard C. Its handlers are all SA_NODEFER, and are
// called once.
MEMLEDGER_IN_FRONT Handler sysv_signal(int number, Handler handler) noexcept {
  note_flags(handler, SA_NODEFER);
  if (!is_replaced(number) || !is_handler(handler) || handler == SIG_HOLD)
    return set_handler(real_sysv_signal, number, handler);
  struct sigaction action {
  }, before;
  action.sa_handler = handler;
  action.sa_flags = SA_RESETHAND | SA_NODEFER | SA_INTERRUPT;
  return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
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
