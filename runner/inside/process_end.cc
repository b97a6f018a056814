#include "runner/inside/process_end.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "registry/hooks/close_books.h"
#include "runner/inside/demand_thread.h"
#include "runner/inside/exec_observers.h"
#include "runner/inside/in_front.h"
#include "runner/inside/interrupted_call.h"
#include "runner/inside/kernel_signals.h"
#include "runner/inside/thread_visits.h"
#include "runner/inside/write_in_copy.h"
#include "text/output.h"

namespace memledger::inside {
namespace {

// Signals whose default action ends a process; SIGKILL excepted.
constexpr std::array<const char*, 65> kNames = [] {
  std::array<const char*, 65> names{};
  names[SIGHUP] = "SIGHUP";
  names[SIGINT] = "SIGINT";
  names[SIGQUIT] = "SIGQUIT";
  names[SIGILL] = "SIGILL";
  names[SIGTRAP] = "SIGTRAP";
  names[SIGABRT] = "SIGABRT";
  names[SIGBUS] = "SIGBUS";
  names[SIGFPE] = "SIGFPE";
  names[SIGUSR1] = "SIGUSR1";
  names[SIGSEGV] = "SIGSEGV";
  names[SIGUSR2] = "SIGUSR2";
  names[SIGPIPE] = "SIGPIPE";
  names[SIGALRM] = "SIGALRM";
  names[SIGTERM] = "SIGTERM";
#ifdef SIGSTKFLT
  names[SIGSTKFLT] = "SIGSTKFLT";
#endif
  names[SIGXCPU] = "SIGXCPU";
  names[SIGXFSZ] = "SIGXFSZ";
  names[SIGVTALRM] = "SIGVTALRM";
  names[SIGPROF] = "SIGPROF";
  names[SIGIO] = "SIGIO";
  names[SIGPWR] = "SIGPWR";
  names[SIGSYS] = "SIGSYS";
  // 32 and 33 are the C library's own.
  constexpr const char* kRealTime[] = {
      "SIGRTMIN",    "SIGRTMIN+1",  "SIGRTMIN+2",  "SIGRTMIN+3",  "SIGRTMIN+4",  "SIGRTMIN+5",
      "SIGRTMIN+6",  "SIGRTMIN+7",  "SIGRTMIN+8",  "SIGRTMIN+9",  "SIGRTMIN+10", "SIGRTMIN+11",
      "SIGRTMIN+12", "SIGRTMIN+13", "SIGRTMIN+14", "SIGRTMIN+15", "SIGRTMAX-14", "SIGRTMAX-13",
      "SIGRTMAX-12", "SIGRTMAX-11", "SIGRTMAX-10", "SIGRTMAX-9",  "SIGRTMAX-8",  "SIGRTMAX-7",
      "SIGRTMAX-6",  "SIGRTMAX-5",  "SIGRTMAX-4",  "SIGRTMAX-3",  "SIGRTMAX-2",  "SIGRTMAX-1",
      "SIGRTMAX"};
  constexpr int kFirstRealTime = 34;
  for (size_t i = 0; i < std::size(kRealTime); ++i) names[kFirstRealTime + i] = kRealTime[i];
  return names;
}();

// At exit a large file may take long. Signals come with a deadline of others: SIGKILL follows a
// container's SIGTERM after ten seconds. So all parts together have less from the first signal that
// ends the process, and a report on demand leaves time for those of the end.
constexpr unsigned kSecondsOnDemand = 10;
constexpr unsigned kSecondsAtExit = 60;
constexpr unsigned kSecondsOnceSignalled = 8;
constexpr unsigned kSecondsOnceSignalledOnDemand = 4;

EndWriter writer{};
pid_t process = 0;
std::atomic<pid_t> writing{0};        // the thread that writes, or 0
std::atomic<int64_t> wrote_until{0};  // when one last ended to do so, by now_ns()

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void pause_ms(long milliseconds) {
  const timespec pause{0, milliseconds * 1'000'000};
  nanosleep(&pause, nullptr);
}

// What was sent is sent again, and comes when the handler has returned, on this thread, also where
// a call has let it in that the thread blocks otherwise; a fault comes again when its instruction
// does.
void end_by(int number, const siginfo_t* info, void* context) {
  set_kernel_action(number, {});  // sigaction() may be the one that keeps ours in its place
  if (is_fault(number, info)) return;
  auto& state = *static_cast<ucontext_t*>(context);
  block_afterwards(state, blocked_afterwards(state) & ~bit_of(number));
  syscall(SYS_tgkill, getpid(), this_thread(), number);
}

void on_signal(int number, siginfo_t* info, void* context);

// The first signal that ends this process, whoever has to write before.
class Signalled {
 public:
  // Lasts as long as the handler runs, which may return because the signal comes again.
  class Handler {
   public:
    Handler() noexcept {
      if (handlers_.fetch_add(1) == 0 && is_set_aside()) since_ns_.store(0);
      int64_t none = 0;
      since_ns_.compare_exchange_strong(none, now_ns());
    }
    ~Handler() {
      left_ns_.store(now_ns());
      handlers_.fetch_sub(1);
    }
    Handler(const Handler&) = delete;
    Handler& operator=(const Handler&) = delete;
  };
  // What this thread would let through if nothing were written.
  static void expect(uint64_t signals) noexcept {
    expected_ = signals;
    pending_since_ns_ = 0;
  }
  // The moment at which everything has to be written. Call it with the turn.
  static int64_t latest_ns() noexcept {
    if (pending_since_ns_ == 0 && is_pending()) pending_since_ns_ = now_ns();
    const int64_t came = handlers_.load() == 0 && is_set_aside() ? 0 : since_ns_.load();
    const int64_t since = came != 0 ? came : pending_since_ns_;
    return since == 0 ? INT64_MAX : since + int64_t{seconds_} * 1'000'000'000;
  }
  static void leave(unsigned seconds) noexcept { seconds_ = seconds; }
  static bool is_over() noexcept { return now_ns() > latest_ns(); }

 private:
  // Whether one waits that this thread does not take now.
  static bool is_pending() noexcept {
    const uint64_t pending = pending_signals() & expected_;
    for (int number = 1; pending != 0 && number <= kMaxSignal; ++number) {
      if ((pending & bit_of(number)) != 0 && ends_process(number)) return true;
    }
    return false;
  }
  // A program's own handler of those by which others end it may do so, too.
  static bool ends_process(int number) noexcept {
    KernelAction now;
    if (number == writer.on_demand || kNames[static_cast<size_t>(number)] == nullptr ||
        !get_kernel_action(number, now))
      return false;
    if (now.handler == nullptr) return process != 1;
    const bool is_polite =
        number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT;
    return now.handler == &on_signal || (is_polite && !is_ignored(now));
  }

  // It has not come again: the program has set another action meanwhile.
  static bool is_set_aside() noexcept {
    constexpr int64_t kAgainNs = 1'000'000'000;
    const int64_t left = left_ns_.load();
    return left != 0 && now_ns() - left > kAgainNs;
  }

  static std::atomic<int64_t> since_ns_;  // 0: none has come
  static std::atomic<int64_t> left_ns_;   // when a handler last returned; 0: none has
  static std::atomic<int> handlers_;      // that run
  static uint64_t expected_;
  static int64_t pending_since_ns_;
  static unsigned seconds_;
};
std::atomic<int64_t> Signalled::since_ns_{0};
std::atomic<int64_t> Signalled::left_ns_{0};
std::atomic<int> Signalled::handlers_{0};
uint64_t Signalled::expected_ = 0;
int64_t Signalled::pending_since_ns_ = 0;
unsigned Signalled::seconds_ = kSecondsOnceSignalled;

const char* why_too_late(const EndOfProcess& end) {
  if (Signalled::is_over()) {
    return end.goes_on() ? "it was not done four seconds after a signal that ends the process"
                         : "it was not done eight seconds after a signal that ends the process";
  }
  return end.goes_on() ? "it took longer than ten seconds" : "it took longer than sixty seconds";
}

const char* why_not(const EndOfProcess& end, CopyResult result) {
  switch (result) {
    case CopyResult::kDone:
      return nullptr;
    case CopyResult::kFailed:
      return "it cannot be made of memory in this state";
    case CopyResult::kLocked:
      return "a lock that it needs stays held";
    case CopyResult::kTooLate:
      return why_too_late(end);
    case CopyResult::kNotMade:
      return "the process cannot be copied";
    case CopyResult::kElsewhere:
      return "its copy would begin the namespace of processes that it has made for its children";
  }
  return nullptr;
}

// A process that may not have another one writes at exit itself.
void leave_out(void* the_end, int part, CopyResult reason) noexcept {
  const auto& end = *static_cast<const EndOfProcess*>(the_end);
  const bool is_orderly =
      end.kind == EndOfProcess::Kind::kExit || end.kind == EndOfProcess::Kind::kQuickExit;
  const bool is_made = reason != CopyResult::kNotMade && reason != CopyResult::kElsewhere;
  if (!is_made && is_orderly) {
    writer.write(end, part);
  } else {
    writer.tell_why_not(end, part, why_not(end, reason));
  }
}

// The other threads of a process that a signal or _exit() ends would go on until the report is
// written, maybe on memory that is broken. So each waits in a handler of ours.
class OtherThreads {
 public:
  static void stop() noexcept {
    stopped_.store(1);
    visit_other_threads(&wait_here);
  }
  static void go_on() noexcept {
    if (stopped_.exchange(0) != 0)
      syscall(SYS_futex, &stopped_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  // Also where they have not been stopped.
  static void begin() noexcept { moment_ms_ = 1; }
  // For a moment, in which they leave locks that a copy needs: longer each time, as on a busy
  // machine they may not run at once.
  static void go_on_for_a_moment() noexcept {
    constexpr long kMaxMomentMs = 32;
    const bool are_stopped = stopped_.load() != 0;
    if (are_stopped) go_on();
    pause_ms(moment_ms_);
    moment_ms_ = std::min(2 * moment_ms_, kMaxMomentMs);
    if (are_stopped) stop();
  }

 private:
  // A thread whose call has ended would see an end that bare there is not. It holds no lock of a
  // heap or of the books, so it waits until the process is gone. A process may go on all the same:
  // the program has set another action before the signal came again. So nobody waits for long once
  // nobody writes.
  static void wait_here(ucontext_t& state) noexcept {
    constexpr int64_t kMaxQuietNs = 2'000'000'000;
    const bool for_good = has_ended_call(state);
    while ((for_good || stopped_.load() != 0) &&
           (writing.load() != 0 || now_ns() - wrote_until.load() < kMaxQuietNs))
      wait_for_change(for_good ? never_ : stopped_);
  }
  static void wait_for_change(const std::atomic<int>& place) noexcept {
    constexpr timespec kBetweenLooks{0, 250'000'000};
    syscall(SYS_futex, &place, FUTEX_WAIT_PRIVATE, 1, &kBetweenLooks, nullptr, 0);
  }

  static std::atomic<int> stopped_;
  static std::atomic<int> never_;  // 1 for ever
  static long moment_ms_;
};
std::atomic<int> OtherThreads::stopped_{0};
std::atomic<int> OtherThreads::never_{1};
long OtherThreads::moment_ms_ = 1;

// Call it with the turn. `blocked`: what the program itself blocks on this thread.
CopyResult write_now(const EndOfProcess& end, uint64_t blocked, int copies_if_locked = 0) {
  static EndOfProcess this_end;
  this_end = end;
  OtherThreads::begin();
  Signalled::expect(~blocked);
  Signalled::leave(end.goes_on() ? kSecondsOnceSignalledOnDemand : kSecondsOnceSignalled);
  CopyWork work;
  work.write = [](void* the_end, int part) {
    writer.write(*static_cast<const EndOfProcess*>(the_end), part);
  };
  work.context = &this_end;
  work.parts = end.goes_on() ? 1 : writer.parts;
  work.seconds_per_part = end.goes_on() ? kSecondsOnDemand : kSecondsAtExit;
  work.latest_ns = &Signalled::latest_ns;
  work.process_goes_on = end.goes_on();
  work.is_last =
      end.kind == EndOfProcess::Kind::kSignal || end.kind == EndOfProcess::Kind::kSuddenExit;
  work.finishes_calls = !is_demand_thread();
  work.copies_if_locked = copies_if_locked;
  work.left_out = &leave_out;
  work.between_copies = &OtherThreads::go_on_for_a_moment;
  return write_in_copy(work);
}

// Holds other threads that end, too, until what was begun is written; a process that is ended by
// one of them would leave it half done.
class Turn {
 public:
  enum class IfTaken : uint8_t { kWait, kLeave };
  explicit Turn(IfTaken if_taken = IfTaken::kWait) {
    while (true) {
      pid_t none = 0;
      if (writing.compare_exchange_strong(none, this_thread())) {
        mine_ = true;
        return;
      }
      if (none == this_thread()) return;
      is_taken_ = if_taken == IfTaken::kLeave;
      if (is_taken_) return;
      pause_ms(2);
    }
  }
  ~Turn() {
    if (!mine_) return;
    wrote_until.store(now_ns());
    writing.store(0);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return mine_; }
  // By another thread, for which this one does not wait.
  bool is_taken() const { return is_taken_; }

 private:
  bool mine_ = false;
  bool is_taken_ = false;
};

// The kernel drops what is sent to the first process of a namespace, unless that has a handler.
bool is_dropped(int number, const siginfo_t* info) {
  return process == 1 && number != writer.on_demand && !is_fault(number, info);
}

// Lets this thread go on for a moment, as it may hold a lock that other threads wait for: the
// signal comes again. A call that it waits in may return with EINTR: but then it holds none.
class ComesAgain {
 public:
  static constexpr int kMaxTimes = 16;
  static int times(int number) noexcept { return times_[index(number)].load(); }
  static void forget(int number) noexcept {
    forget_timer(number);
    times_[index(number)].store(0);
  }
  // Returns whether it will.
  static bool soon(int number) noexcept {
    forget_timer(number);
    times_[index(number)].fetch_add(1);
    const int timer = start_timer(number, nullptr);
    timers_[index(number)].store(timer + 1);
    return timer >= 0;
  }
  // Returns whether it will. Has no limit of times.
  static bool after_others(int number) noexcept { return start_timer(number, &timers_) >= 0; }
  // Call it for each signal that has come.
  static void delete_timer(const siginfo_t& info) noexcept {
    if (info.si_code == SI_TIMER && info.si_value.sival_ptr == &timers_)
      syscall(SYS_timer_delete, info.si_timerid);
  }

 private:
  // To the process: what is sent to a thread is lost if that ends. Returns the kernel's number, or
  // -1.
  static int start_timer(int number, void* mark) noexcept {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = number;
    event.sigev_value.sival_ptr = mark;
    int timer = -1;
    itimerspec in_a_moment{};
    in_a_moment.it_value.tv_nsec = 3'000'000;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) != 0) return -1;
    if (syscall(SYS_timer_settime, timer, 0, &in_a_moment, nullptr) == 0) return timer;
    syscall(SYS_timer_delete, timer);
    return -1;
  }
  static size_t index(int number) { return static_cast<size_t>(number); }
  static void forget_timer(int number) noexcept {
    if (const int timer = timers_[index(number)].exchange(0); timer != 0)
      syscall(SYS_timer_delete, timer - 1);
  }
  static std::array<std::atomic<int>, kNames.size()> times_;
  static std::array<std::atomic<int>, kNames.size()> timers_;  // the kernel's number + 1; 0: none
};
std::array<std::atomic<int>, kNames.size()> ComesAgain::times_;
std::array<std::atomic<int>, kNames.size()> ComesAgain::timers_;

// Whether this thread may go on for a moment, so that it leaves what it holds. Not from a call that
// the signal has ended, or by which it was sent: no lock is held there, and bare it never returns.
// Nor where the signal would not come again, as only that call has let it in.
bool may_go_on_from(int number, const siginfo_t& info, const ucontext_t& state) {
  const bool is_own =
      info.si_pid == process && (info.si_code == SI_TKILL || info.si_code == SI_USER);
  return (blocked_afterwards(state) & bit_of(number)) == 0 && !has_ended_call(state) &&
         !(is_own && result_of_call(state, 1) == 0);
}

enum class AtSignal : uint8_t { kTold, kLocked, kTaken };

// `may_go_on`: whether this thread may go on for a moment, after which the signal comes again.
AtSignal write_at_signal(int number, const ucontext_t& state, bool may_go_on, Turn::IfTaken taken) {
  constexpr int kCopiesEachTime = 4;
  EndOfProcess end;
  end.kind =
      number == writer.on_demand ? EndOfProcess::Kind::kOnDemand : EndOfProcess::Kind::kSignal;
  end.signal = kNames[static_cast<size_t>(number)];
  const Turn turn(taken);
  if (turn.is_taken()) return AtSignal::kTaken;
  if (!turn || !writer.take(end)) return AtSignal::kTold;
  if (!end.goes_on()) {
    bury_copies();
    OtherThreads::stop();
  }
  may_go_on = may_go_on && ComesAgain::times(number) < ComesAgain::kMaxTimes;
  const int copies_if_locked = may_go_on ? kCopiesEachTime : 0;
  if (write_now(end, blocked_afterwards(state), copies_if_locked) != CopyResult::kLocked ||
      !may_go_on)
    return AtSignal::kTold;
  OtherThreads::go_on();
  writer.give_back(end);
  return AtSignal::kLocked;
}

void write_or_come_again(int number, const siginfo_t* info, void* context) {
  const auto& state = *static_cast<const ucontext_t*>(context);
  const bool may_go_on = !is_fault(number, info) && number != SIGABRT &&
                         (number == writer.on_demand || may_go_on_from(number, *info, state));
  // The writing thread may need a lock that this thread holds, and would never get it if this one
  // waited.
  auto result = write_at_signal(number, state, may_go_on,
                                may_go_on ? Turn::IfTaken::kLeave : Turn::IfTaken::kWait);
  if (result == AtSignal::kTaken) {
    if (ComesAgain::after_others(number)) return;
    result = write_at_signal(number, state, may_go_on, Turn::IfTaken::kWait);
  }
  if (result == AtSignal::kLocked) {
    if (ComesAgain::soon(number)) return;
    write_at_signal(number, state, false, Turn::IfTaken::kWait);
  }
  ComesAgain::forget(number);
  if (number != writer.on_demand) end_by(number, info, context);
}

void on_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  // A child of fork or vfork has our handlers, and nothing to report.
  if (getpid() != process) {
    end_by(number, info, context);
  } else if (!is_dropped(number, info)) {
    std::optional<Signalled::Handler> ends;
    if (number != writer.on_demand) ends.emplace();
    ComesAgain::delete_timer(*info);
    write_or_come_again(number, info, context);
  }
  errno = error;
}

void report_now(const EndOfProcess& end) noexcept {
  if (getpid() != process) return;
  const int error = errno;
  const Turn turn;
  if (turn && writer.take(end)) {
    bury_copies();
    if (end.kind == EndOfProcess::Kind::kSuddenExit) OtherThreads::stop();
    write_now(end, blocked_signals());
  }
  errno = error;
}

void on_sudden_exit(int status) noexcept {
  EndOfProcess end;
  end.kind = EndOfProcess::Kind::kSuddenExit;
  end.status = status;
  report_now(end);
}

struct Exit {
  void (*function)(int) = nullptr;
  int status = 0;
  uint64_t blocked = 0;
} exit_in_handler;

// exit() never returns to the handler that calls it. So the call that the handler has interrupted
// is finished first: destructors of static objects would find a torn heap, and wait for locks of
// the books. Where it is another call, the books are closed.
void on_exit_begins(void (*function)(int), int status) noexcept {
  if (getpid() != process || function == nullptr || !runs_in_signal_handler()) return;
  exit_in_handler = {function, status, blocked_signals()};
  constexpr size_t kStackBytes = size_t{8} << 20;
  void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack != MAP_FAILED) {
    finish_interrupted_call(find_interrupted_call(Reach::kInnermost), stack, kStackBytes, [] {
      change_blocked_signals(SIG_SETMASK, exit_in_handler.blocked);
      exit_in_handler.function(exit_in_handler.status);
    });
  }
  close_books();
}

EndOfProcess end_by_exec(const char* program) {
  EndOfProcess end;
  end.kind = EndOfProcess::Kind::kExec;
  end.program = program;
  return end;
}
void before_exec(const char* program) noexcept { report_now(end_by_exec(program)); }
void after_exec(const char* program) noexcept {
  if (getpid() == process) writer.give_back(end_by_exec(program));
}

// So that a stack that has overflowed can be reported. Other threads have none, unless the program
// gave them one.
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
  for (int number = 1; number < static_cast<int>(kNames.size()); ++number) {
    struct sigaction now;
    if ((signals & bit_of(number)) != 0 && sigaction(number, nullptr, &now) == 0 &&
        now.sa_handler == SIG_DFL)
      sigaction(number, &action, nullptr);
  }
}

// Makes ready to stop threads by a handler that has the C library's way back from handlers, as it
// has put it into one of ours.
void prepare_visits(uint64_t signals) {
  for (int number = 1; number < static_cast<int>(kNames.size()); ++number) {
    KernelAction now;
    if ((signals & bit_of(number)) != 0 && get_kernel_action(number, now) &&
        now.handler == &on_signal)
      return prepare_visits(now);
  }
}

// The first process of a namespace is ended by its own faults only.
uint64_t deadly_signals() {
  uint64_t signals = 0;
  for (int number = 1; number < static_cast<int>(kNames.size()); ++number) {
    const bool may_be_fault =
        number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
    if (kNames[static_cast<size_t>(number)] != nullptr &&
        (process != 1 || may_be_fault || number == writer.on_demand))
      signals |= bit_of(number);
  }
  return signals;
}

}  // namespace

void observe_sudden_exit(SuddenExitObserver observer) noexcept {
  const auto observe =
      find_in_front<decltype(&memledger_observe_sudden_exit)>("memledger_observe_sudden_exit");
  if (observe != nullptr) observe(observer);
}

void watch_ends(const EndWriter& its_writer) noexcept {
  writer = its_writer;
  process = getpid();
  prepare_copies();
  struct sigaction action {};
  action.sa_sigaction = &on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigfillset(&action.sa_mask);
  const uint64_t signals = deadly_signals();
  give_alternate_stack();
  const auto replace = find_in_front<decltype(&memledger_replace_default_actions)>(
      "memledger_replace_default_actions");
  if (replace != nullptr) {
    replace(signals, &action);
  } else {
    set_handlers(signals, action);
  }
  prepare_visits(signals);
  observe_sudden_exit(&on_sudden_exit);
  if (const auto observe =
          find_in_front<decltype(&memledger_observe_exit)>("memledger_observe_exit"))
    observe(&on_exit_begins);
  const auto observe_exec =
      find_in_front<decltype(&memledger_observe_exec)>("memledger_observe_exec");
  if (observe_exec != nullptr) observe_exec(&before_exec, &after_exec);
}

void report_exit(const EndOfProcess& end) noexcept {
  report_now(end);
  if (getpid() == process && ran_in_signal_handler()) close_books();
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
