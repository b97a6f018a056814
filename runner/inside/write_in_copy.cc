#include "runner/inside/write_in_copy.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

namespace memledger::inside {
namespace {

constexpr unsigned kMostSeconds = 10;

struct Deadly {
  int number;
  const char* name;
};
constexpr std::array kDeadly = {Deadly{SIGSEGV, "SIGSEGV"}, Deadly{SIGBUS, "SIGBUS"},
                                Deadly{SIGFPE, "SIGFPE"},   Deadly{SIGILL, "SIGILL"},
                                Deadly{SIGABRT, "SIGABRT"}, Deadly{SIGTERM, "SIGTERM"}};

std::array<struct sigaction, kDeadly.size()> actions_before;
std::atomic<void (*)(const char*) noexcept> noted_by{nullptr};

[[noreturn]] void be_the_copy(void (*write)(void*), void* context) {
  // Whatever happens, the copy ends: it has no business of its own.
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  sigset_t all;
  sigfillset(&all);
  for (const Deadly& deadly : kDeadly) sigaction(deadly.number, &by_default, nullptr);
  sigaction(SIGALRM, &by_default, nullptr);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  alarm(kMostSeconds);
  write(context);
  syscall(SYS_exit_group, 0);
  __builtin_unreachable();
}

void on_deadly_signal(int number, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  size_t i = 0;
  while (i + 1 < kDeadly.size() && kDeadly[i].number != number) ++i;
  if (const auto note = noted_by.exchange(nullptr)) note(kDeadly[i].name);
  // A fault comes again when its instruction does; what was sent has to be sent again.
  sigaction(number, &actions_before[i], nullptr);
  if (info == nullptr || info->si_code <= 0) raise(number);
  errno = error;
}

}  // namespace

bool write_in_copy(void (*write)(void*), void* context) noexcept {
  // Not fork(): that calls handlers of the program's and takes locks. Without a signal at its end,
  // the copy is not among the children that the program sees.
  const long copy = syscall(SYS_clone, 0L, nullptr, nullptr, nullptr, nullptr);
  if (copy < 0) return false;
  if (copy == 0) be_the_copy(write, context);
  const auto process = static_cast<pid_t>(copy);
  constexpr long kPollNs = 2'000'000;
  const timespec pause{0, kPollNs};
  for (long waited = 0; waited < 1'000'000'000L * (kMostSeconds + 2); waited += kPollNs) {
    const pid_t ended = waitpid(process, nullptr, __WCLONE | WNOHANG);
    if (ended == process || (ended < 0 && errno != EINTR)) return true;
    nanosleep(&pause, nullptr);
  }
  kill(process, SIGKILL);
  waitpid(process, nullptr, __WCLONE);
  return true;
}

void note_deadly_signals(void (*note)(const char*) noexcept) noexcept {
  noted_by.store(note);
  struct sigaction ours {};
  ours.sa_sigaction = &on_deadly_signal;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  for (size_t i = 0; i < kDeadly.size(); ++i) {
    if (sigaction(kDeadly[i].number, nullptr, &actions_before[i]) != 0) continue;
    if (actions_before[i].sa_handler != SIG_IGN) sigaction(kDeadly[i].number, &ours, nullptr);
  }
}

}  // namespace memledger::inside
