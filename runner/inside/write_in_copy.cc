#include "runner/inside/write_in_copy.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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

struct Work {
  void (*write)(void*);
  void* context;
};

// Whatever happens, the copy ends: it has no business of its own.
int be_the_copy(void* work) {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  sigset_t all;
  sigfillset(&all);
  for (const Deadly& deadly : kDeadly) sigaction(deadly.number, &by_default, nullptr);
  sigaction(SIGALRM, &by_default, nullptr);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  alarm(kMostSeconds);
  const auto& [write, context] = *static_cast<const Work*>(work);
  write(context);
  syscall(SYS_exit_group, 0);
  __builtin_unreachable();
}

// Mapped for a copy: the thread may be on a small alternate stack, or have used its own up.
class Stack {
 public:
  Stack() noexcept
      : bottom_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0)) {}
  ~Stack() {
    if (bottom_ != MAP_FAILED) munmap(bottom_, kBytes);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  // Null: there is none.
  void* top() const {
    return bottom_ == MAP_FAILED ? nullptr : static_cast<char*>(bottom_) + kBytes;
  }

 private:
  static constexpr size_t kBytes = size_t{8} << 20;
  void* const bottom_;
};

// A process that is looked at from outside, with what may be called in a signal handler.
class CopyProcess {
 public:
  explicit CopyProcess(pid_t process) : process_(process) {}

  // Returns whether it has ended.
  bool has_ended(int& status) const {
    const pid_t ended = waitpid(process_, &status, __WCLONE | WNOHANG);
    return ended == process_ || (ended < 0 && errno != EINTR);
  }
  int64_t cpu_ns() const {
    timespec time{};
    clockid_t clock = 0;
    if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
  // False where the system does not tell.
  bool waits_for_lock() const {
    std::array<char, 40> path{"/proc/"};
    std::array<char, 12> digits;
    size_t count = 0;
    for (pid_t rest = process_; rest > 0; rest /= 10)
      digits[count++] = static_cast<char>('0' + rest % 10);
    size_t at = sizeof "/proc/" - 1;
    while (count > 0) path[at++] = digits[--count];
    constexpr char kSyscall[] = "/syscall";
    std::memcpy(&path[at], kSyscall, sizeof kSyscall);
    const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    std::array<char, 8> text{};
    const ssize_t size = read(file, text.data(), text.size() - 1);
    close(file);
    return size > 0 && std::strtol(text.data(), nullptr, 10) == SYS_futex && text[0] != '-';
  }
  void kill() const {
    ::kill(process_, SIGKILL);
    waitpid(process_, nullptr, __WCLONE);
  }

 private:
  const pid_t process_;
};

CopyResult wait_for(const CopyProcess& copy) {
  constexpr int64_t kPollNs = 2'000'000;
  constexpr int64_t kLockedNs = 300'000'000;
  constexpr int64_t kMostNs = 1'000'000'000 * int64_t{kMostSeconds + 2};
  const timespec pause{0, kPollNs};
  int64_t locked_since = 0, cpu_ns = 0;
  for (int64_t waited = 0; waited < kMostNs; waited += kPollNs) {
    int status = 0;
    if (copy.has_ended(status)) {
      const bool in_time = !WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM;
      return status == 0 ? CopyResult::kDone : in_time ? CopyResult::kFailed : CopyResult::kTooLate;
    }
    // Who waits for a brief lock looks at it now and then.
    const int64_t now = copy.cpu_ns();
    if (!copy.waits_for_lock() || (now - cpu_ns) * 20 > waited - locked_since + kPollNs) {
      locked_since = waited;
      cpu_ns = now;
    }
    if (waited - locked_since >= kLockedNs) {
      copy.kill();
      return CopyResult::kLocked;
    }
    nanosleep(&pause, nullptr);
  }
  copy.kill();
  return CopyResult::kTooLate;
}

void on_deadly_signal(int number, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  size_t i = 0;
  while (i + 1 < kDeadly.size() && kDeadly[i].number != number) ++i;
  if (const auto note = noted_by.exchange(nullptr)) note(kDeadly[i].name);
  // A fault comes again when its instruction does; what was sent has to be sent again.
  sigaction(number, &actions_before[i], nullptr);
  if (!is_fault(number, info)) raise(number);
  errno = error;
}

}  // namespace

bool is_fault(int number, const siginfo_t* info) noexcept {
  const bool may_be = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
  return may_be && info != nullptr && info->si_code > 0;
}

CopyResult write_in_copy(void (*write)(void*), void* context, int most_copies) noexcept {
  const Stack stack;
  Work work{write, context};
  if (stack.top() == nullptr) return CopyResult::kNotMade;
  CopyResult result = CopyResult::kNotMade;
  for (int i = 0; i < most_copies; ++i) {
    // Not fork(): that calls handlers of the program's and takes locks. Without a signal at its
    // end, the copy is not among the children that the program sees.
    const pid_t copy = clone(&be_the_copy, stack.top(), 0, &work);
    if (copy < 0) return CopyResult::kNotMade;
    result = wait_for(CopyProcess(copy));
    if (result != CopyResult::kLocked) return result;
  }
  return result;
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
