// Part of libmemledger_preload.so, and of libmemledger.so for programs that link it. The functions
// here may be called in signal handlers and in children of vfork.
#include "runner/inside/thread_calls.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runner/inside/kernel_signals.h"
#include "runner/inside/real_function.h"

namespace {

using memledger::inside::bit_of;
using memledger::inside::change_blocked_signals;
using memledger::inside::RealFunction;

using SetMask = int (*)(int, const sigset_t*, sigset_t*);
RealFunction<SetMask> real_sigprocmask("sigprocmask"), real_pthread_sigmask("pthread_sigmask");
RealFunction<int (*)(const sigset_t*, int*)> real_sigwait("sigwait");
RealFunction<int (*)(const sigset_t*, siginfo_t*)> real_sigwaitinfo("sigwaitinfo");
RealFunction<int (*)(const sigset_t*, siginfo_t*, const timespec*)> real_sigtimedwait(
    "sigtimedwait");
RealFunction<int (*)(int, const sigset_t*, int)> real_signalfd("signalfd");
RealFunction<int (*)(int)> real_raise("raise");
RealFunction<int (*)(pthread_t, int)> real_pthread_kill("pthread_kill");
RealFunction<int (*)(pthread_t, int, sigval)> real_pthread_sigqueue("pthread_sigqueue");
RealFunction<int (*)(pid_t, pid_t, int)> real_tgkill("tgkill");
RealFunction<int (*)(int)> real_unshare("unshare");
RealFunction<int (*)(int, int)> real_setns("setns");

__attribute__((constructor)) void find_thread_functions() {
  real_sigprocmask.get();
  real_pthread_sigmask.get();
  real_sigwait.get();
  real_sigwaitinfo.get();
  real_sigtimedwait.get();
  real_signalfd.get();
  real_raise.get();
  real_pthread_kill.get();
  real_pthread_sigqueue.get();
  real_tgkill.get();
  real_unshare.get();
  real_setns.get();
}

int hidden = 0;  // the signal; 0: none
pid_t process = 0;
void (*wait_observer)() noexcept = nullptr;
bool (*before_lone_call)() noexcept = nullptr;
void (*after_lone_call)() noexcept = nullptr;

// Threads inherit the mask of those that make them.
enum class Asks : unsigned char { kUnknown, kYes, kNo };
__thread Asks asks = Asks::kUnknown;
bool has_any_asked = false;

bool asks_to_block() {
  if (asks != Asks::kUnknown) return asks == Asks::kYes;
  return __atomic_load_n(&has_any_asked, __ATOMIC_ACQUIRE);
}

void note_asks(bool does) {
  asks = does ? Asks::kYes : Asks::kNo;
  if (does) __atomic_store_n(&has_any_asked, true, __ATOMIC_RELEASE);
}

// Children block nothing for us, and those of vfork have our memory.
int hidden_here() {
  const int number = __atomic_load_n(&hidden, __ATOMIC_ACQUIRE);
  return number != 0 && getpid() == process ? number : 0;
}

// What waits for this thread because of us alone comes now.
void let_through(int number) {
  const uint64_t before = change_blocked_signals(SIG_UNBLOCK, bit_of(number));
  change_blocked_signals(SIG_SETMASK, before);
}

int set_mask(SetMask real, int how, const sigset_t* set, sigset_t* before) {
  const int number = hidden_here();
  if (number == 0) return real(how, set, before);
  const bool asked = asks_to_block();
  const bool has_it = set != nullptr && sigismember(set, number) == 1;
  const bool is_about_it = has_it || (set != nullptr && how == SIG_SETMASK);
  sigset_t ours;
  if (is_about_it) {
    ours = *set;
    if (how == SIG_UNBLOCK) {
      sigdelset(&ours, number);
    } else {
      sigaddset(&ours, number);
    }
    set = &ours;
  }
  const int result = real(how, set, before);
  if (result == 0 && is_about_it) {
    const bool asks_now = has_it && how != SIG_UNBLOCK;
    note_asks(asks_now);
    if (asked && !asks_now) let_through(number);
  }
  if (result == 0 && before != nullptr && !asked) sigdelset(before, number);
  return result;
}

void tell_wait(const sigset_t* set) {
  const int number = hidden_here();
  const auto observer = __atomic_load_n(&wait_observer, __ATOMIC_ACQUIRE);
  if (number != 0 && observer != nullptr && set != nullptr && sigismember(set, number) == 1)
    observer();
}

template <typename Function, typename... Arguments>
int run_real(RealFunction<Function>& function, Arguments... arguments) {
  if (function.get() != nullptr) return function.get()(arguments...);
  errno = ENOSYS;
  return -1;
}

// Calls what sends a signal to a thread. `send` gets the signal, zero to send none.
template <typename Send>
int send_to_thread(bool to_self, int number, Send send) {
  if (number == 0 || number != hidden_here()) return send(number);
  if (!to_self) {
    // It takes the signal on a thread of ours.
    const int result = send(0);
    if (result == 0) syscall(SYS_kill, process, number);
    return result;
  }
  const int result = send(number);
  if (result == 0 && !asks_to_block()) let_through(number);
  return result;
}

template <typename Call>
int call_alone(bool needs_it, Call call) {
  const auto before = needs_it && hidden_here() != 0
                          ? __atomic_load_n(&before_lone_call, __ATOMIC_ACQUIRE)
                          : nullptr;
  if (before == nullptr || !before()) return call();
  const int result = call();
  const int error = errno;
  after_lone_call();
  errno = error;
  return result;
}

}  // namespace

extern "C" {

#define MEMLEDGER_IN_FRONT __attribute__((visibility("default")))

MEMLEDGER_IN_FRONT void memledger_hide_blocked(int signal) {
  process = getpid();
  if (signal != 0) note_asks(false);
  __atomic_store_n(&hidden, signal, __ATOMIC_RELEASE);
}

MEMLEDGER_IN_FRONT int memledger_hidden_signal() {
  return __atomic_load_n(&hidden, __ATOMIC_ACQUIRE);
}

MEMLEDGER_IN_FRONT bool memledger_asks_to_block() { return asks_to_block(); }

MEMLEDGER_IN_FRONT void memledger_observe_waits(void (*observer)() noexcept) {
  __atomic_store_n(&wait_observer, observer, __ATOMIC_RELEASE);
}

MEMLEDGER_IN_FRONT void memledger_observe_lone_calls(bool (*before)() noexcept,
                                                     void (*after)() noexcept) {
  after_lone_call = after;
  __atomic_store_n(&before_lone_call, before, __ATOMIC_RELEASE);
}

MEMLEDGER_IN_FRONT int sigprocmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  if (real_sigprocmask.get() != nullptr) return set_mask(real_sigprocmask.get(), how, set, before);
  errno = ENOSYS;
  return -1;
}
MEMLEDGER_IN_FRONT int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  if (real_pthread_sigmask.get() == nullptr) return ENOSYS;
  return set_mask(real_pthread_sigmask.get(), how, set, before);
}

MEMLEDGER_IN_FRONT int sigwait(const sigset_t* set, int* taken) {
  tell_wait(set);
  return real_sigwait.get() == nullptr ? ENOSYS : real_sigwait.get()(set, taken);
}
MEMLEDGER_IN_FRONT int sigwaitinfo(const sigset_t* set, siginfo_t* info) {
  tell_wait(set);
  return run_real(real_sigwaitinfo, set, info);
}
MEMLEDGER_IN_FRONT int sigtimedwait(const sigset_t* set, siginfo_t* info,
                                    const timespec* patience) {
  tell_wait(set);
  return run_real(real_sigtimedwait, set, info, patience);
}
MEMLEDGER_IN_FRONT int signalfd(int file, const sigset_t* set, int flags) noexcept {
  tell_wait(set);
  return run_real(real_signalfd, file, set, flags);
}

MEMLEDGER_IN_FRONT int raise(int number) noexcept {
  return send_to_thread(/*to_self=*/true, number,
                        [](int one) { return run_real(real_raise, one); });
}
MEMLEDGER_IN_FRONT int gsignal(int number) noexcept { return raise(number); }
MEMLEDGER_IN_FRONT int pthread_kill(pthread_t thread, int number) noexcept {
  if (real_pthread_kill.get() == nullptr) return ENOSYS;
  return send_to_thread(pthread_equal(thread, pthread_self()) != 0, number,
                        [thread](int one) { return real_pthread_kill.get()(thread, one); });
}
MEMLEDGER_IN_FRONT int pthread_sigqueue(pthread_t thread, int number, const sigval value) noexcept {
  if (real_pthread_sigqueue.get() == nullptr) return ENOSYS;
  return send_to_thread(pthread_equal(thread, pthread_self()) != 0, number,
                        [&](int one) { return real_pthread_sigqueue.get()(thread, one, value); });
}
MEMLEDGER_IN_FRONT int tgkill(pid_t group, pid_t thread, int number) {
  const auto send = [=](int one) { return run_real(real_tgkill, group, thread, one); };
  if (group != getpid()) return send(number);
  return send_to_thread(thread == syscall(SYS_gettid), number, send);
}

MEMLEDGER_IN_FRONT int unshare(int flags) noexcept {
  constexpr int kOfOneThread = CLONE_NEWUSER | CLONE_THREAD | CLONE_VM | CLONE_SIGHAND;
  return call_alone((flags & kOfOneThread) != 0, [&] { return run_real(real_unshare, flags); });
}
MEMLEDGER_IN_FRONT int setns(int file, int kind) noexcept {
  constexpr int kOfOneThread = CLONE_NEWUSER | CLONE_NEWNS | 0x80;  // and of time
  return call_alone(kind == 0 || (kind & kOfOneThread) != 0,
                    [&] { return run_real(real_setns, file, kind); });
}

}  // extern "C"
