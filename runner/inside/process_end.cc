#include "runner/inside/process_end.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "runner/inside/write_in_copy.h"
#include "text/output.h"

namespace memledger::inside {
namespace {

struct Deadly {
  int number;
  const char* name;
};
constexpr std::array kDeadly = {
    Deadly{SIGHUP, "SIGHUP"},   Deadly{SIGINT, "SIGINT"},   Deadly{SIGQUIT, "SIGQUIT"},
    Deadly{SIGILL, "SIGILL"},   Deadly{SIGABRT, "SIGABRT"}, Deadly{SIGBUS, "SIGBUS"},
    Deadly{SIGFPE, "SIGFPE"},   Deadly{SIGUSR1, "SIGUSR1"}, Deadly{SIGSEGV, "SIGSEGV"},
    Deadly{SIGUSR2, "SIGUSR2"}, Deadly{SIGPIPE, "SIGPIPE"}, Deadly{SIGALRM, "SIGALRM"},
    Deadly{SIGTERM, "SIGTERM"}, Deadly{SIGXCPU, "SIGXCPU"}, Deadly{SIGXFSZ, "SIGXFSZ"}};

// Where this thread may hold a lock itself, it goes on for a moment between any two copies.
constexpr int kMostAttempts = 17;

EndWriter writer{};
pid_t process = 0;
std::atomic<pid_t> writing{0};  // the thread that writes, or 0
std::atomic<int> attempts{0};
std::atomic<pid_t> alarm_clock{0};  // see send_again_soon()

const char* name_of(int number) {
  const auto* const found = std::find_if(
      kDeadly.begin(), kDeadly.end(), [number](const Deadly& one) { return one.number == number; });
  return found == kDeadly.end() ? "a signal" : found->name;
}

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void pause_ms(long milliseconds) {
  const timespec pause{0, milliseconds * 1'000'000};
  nanosleep(&pause, nullptr);
}

// Sets the default action itself: sigaction() may be the one that keeps ours in its place.
void set_default_action(int number) {
  struct {
    void* handler = nullptr;
    unsigned long flags = 0;
    void* restorer = nullptr;
    uint64_t mask = 0;
  } const by_default;
  syscall(SYS_rt_sigaction, number, &by_default, nullptr, sizeof by_default.mask);
}

// What was sent is sent again, and comes when the handler has returned, on this thread; a fault
// comes again when its instruction does.
void end_by(int number, const siginfo_t* info) {
  set_default_action(number);
  if (!is_fault(number, info)) syscall(SYS_tgkill, getpid(), this_thread(), number);
}

int send_signal(void* number) {
  pause_ms(3);
  kill(process, *static_cast<const int*>(number));
  syscall(SYS_exit_group, 0);
  __builtin_unreachable();
}

// Lets this thread go on for a moment, as it may hold a lock that the report needs. A call that it
// waits in may return with EINTR: but then it holds none.
bool send_again_soon(int number) {
  alignas(16) static std::array<char, 16384> stack;
  if (const pid_t former = alarm_clock.exchange(0)) waitpid(former, nullptr, __WCLONE);
  const pid_t clock =
      clone(&send_signal, stack.data() + stack.size(), 0, const_cast<int*>(&number));
  if (clock > 0) alarm_clock.store(clock);
  return clock > 0;
}

CopyResult write_now(const SuddenEnd& end, int most_copies) {
  return write_in_copy([](void* the_end) { writer.write(*static_cast<const SuddenEnd*>(the_end)); },
                       const_cast<SuddenEnd*>(&end), most_copies);
}

const char* why_not(CopyResult result) {
  switch (result) {
    case CopyResult::kDone:
      return nullptr;
    case CopyResult::kFailed:
      return "it cannot be made of memory in this state";
    case CopyResult::kLocked:
      return "a lock that it needs stays held";
    case CopyResult::kTooLate:
      return "it took longer than ten seconds";
    case CopyResult::kNotMade:
      return "the process cannot be copied";
  }
  return nullptr;
}

void tell_result(const SuddenEnd& end, CopyResult result) {
  if (const char* const reason = why_not(result)) writer.tell_why_not(end, reason);
}

// Holds other threads that end, too, until what was begun is written; a process that is ended by
// one of them would leave it half done.
class Turn {
 public:
  Turn() {
    constexpr long kMostMs = 12'000;
    for (long waited = 0; waited < kMostMs; waited += 2) {
      pid_t none = 0;
      if (writing.compare_exchange_strong(none, this_thread())) {
        mine_ = true;
        return;
      }
      if (none == this_thread()) return;
      pause_ms(2);
    }
  }
  ~Turn() {
    if (mine_) writing.store(0);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return mine_; }

 private:
  bool mine_ = false;
};

// Returns false if the signal will come again.
bool write_at_signal(int number, const siginfo_t* info) {
  const SuddenEnd end{name_of(number), 0, number == writer.on_demand};
  const Turn turn;
  if (!turn) return true;
  if (attempts.load() == 0 && !writer.take(end)) return true;
  const bool may_go_on = !is_fault(number, info) && number != SIGABRT;
  const CopyResult result = write_now(end, may_go_on ? 1 : kMostCopies);
  if (result == CopyResult::kLocked && may_go_on && attempts.fetch_add(1) < kMostAttempts &&
      send_again_soon(number))
    return false;
  attempts.store(0);
  tell_result(end, result);
  return true;
}

void on_signal(int number, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  // A child of fork or vfork has our handlers, and nothing to tell.
  const bool is_told = getpid() != process || write_at_signal(number, info);
  if (is_told && (number != writer.on_demand || getpid() != process)) end_by(number, info);
  errno = error;
}

void on_sudden_exit(int status) noexcept {
  if (getpid() != process) return;
  const int error = errno;
  SuddenEnd end;
  end.status = status;
  const Turn turn;
  if (turn && writer.take(end)) tell_result(end, write_now(end, kMostCopies));
  errno = error;
}

// So that a stack that has overflowed can be told. Other threads have none, unless the program gave
// them one.
void give_alternate_stack() {
  stack_t now{};
  if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
  const size_t bytes = (size_t{64} << 10) + getauxval(AT_MINSIGSTKSZ);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  now = {};
  now.ss_sp = memory;
  now.ss_size = bytes;
  sigaltstack(&now, nullptr);
}

// Where the program was not started by the runner.
void set_handlers(uint64_t signals, const struct sigaction& action) {
  for (const Deadly& deadly : kDeadly) {
    struct sigaction now;
    if ((signals >> deadly.number & 1) != 0 && sigaction(deadly.number, nullptr, &now) == 0 &&
        now.sa_handler == SIG_DFL)
      sigaction(deadly.number, &action, nullptr);
  }
}

// Finds a function of the library that stands first in the process. RTLD_DEFAULT would find
// libmemledger.so's own, as that is linked with -Bsymbolic.
template <typename F>
F find_in_front(const char* name) noexcept {
  void* const program = dlopen(nullptr, RTLD_NOW);
  return program == nullptr ? nullptr : reinterpret_cast<F>(dlsym(program, name));
}

}  // namespace

void observe_sudden_exit(SuddenExitObserver observer) noexcept {
  const auto observe =
      find_in_front<decltype(&memledger_observe_sudden_exit)>("memledger_observe_sudden_exit");
  if (observe != nullptr) observe(observer);
}

void watch_sudden_ends(const EndWriter& its_writer) noexcept {
  writer = its_writer;
  process = getpid();
  struct sigaction action {};
  action.sa_sigaction = &on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigfillset(&action.sa_mask);
  uint64_t signals = 0;
  for (const Deadly& deadly : kDeadly) signals |= uint64_t{1} << deadly.number;
  give_alternate_stack();
  const auto replace = find_in_front<decltype(&memledger_replace_default_actions)>(
      "memledger_replace_default_actions");
  if (replace != nullptr) {
    replace(signals, &action);
  } else {
    set_handlers(signals, action);
  }
  observe_sudden_exit(&on_sudden_exit);
}

std::string uncaught_exception() {
  try {
    if (const std::exception_ptr exception = std::current_exception())
      std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    // what() would symbolize a whole stack first, which takes seconds.
    return std::string(first_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return std::string(first_line(error.what()));
  } catch (...) {
    return "of an unknown type";
  }
  return "";
}

int signal_on_demand(const char* name) noexcept {
  const std::string_view text = name;
  if (text == "SIGUSR1") return SIGUSR1;
  if (text == "SIGUSR2") return SIGUSR2;
  return 0;
}

}  // namespace memledger::inside
