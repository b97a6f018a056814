#include "runner/inside/write_in_copy.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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
#include <cstdlib>
#include <cstring>
#include <new>

#include "registry/core/lock.h"
#include "registry/core/other_threads.h"
#include "runner/inside/interrupted_call.h"
#include "runner/inside/kernel_signals.h"
#include "text/output.h"

namespace memledger::inside {
namespace {

constexpr int kMaxCopies = 40;
constexpr int kMaxCrashes = 6;
constexpr int kMaxNotMade = 10;
constexpr long kBetweenNotMadeNs = 50'000'000;
// The copy's status where it met a held lock of memledger's.
constexpr int kLockedStatus = 77;

struct Deadly {
  int number;
  const char* name;
};
constexpr std::array kDeadly = {Deadly{SIGSEGV, "SIGSEGV"}, Deadly{SIGBUS, "SIGBUS"},
                                Deadly{SIGFPE, "SIGFPE"},   Deadly{SIGILL, "SIGILL"},
                                Deadly{SIGABRT, "SIGABRT"}, Deadly{SIGTERM, "SIGTERM"}};

std::array<struct sigaction, kDeadly.size()> actions_before;
std::atomic<void (*)(const char*) noexcept> noted_by{nullptr};

// The message from the copy to this process. In memory that both see.
struct Told {
  std::atomic<int> parts_done{0};
  std::atomic<bool> walks_stack{false};
  std::atomic<bool> in_handler{false};
  std::array<char, PATH_MAX> temporary{};  // a file that is not whole yet; empty: none

  void remove_temporary() noexcept {
    if (temporary[0] != '\0') unlink(temporary.data());
    temporary[0] = '\0';
  }
};

// The copy has it from this process.
struct Copy {
  CopyWork work;
  Told* told = nullptr;
  void* stack = nullptr;
  pid_t parent = 0;
  bool walks_stack = false;
  bool finishes_call = false;
  bool knows_threads = false;  // see OtherThreads::be_copy()
  Reach reach = Reach::kInnermost;
};

constexpr size_t kStackBytes = size_t{8} << 20;

std::atomic<bool> in_handler{false};

// Only the copy writes these. An interrupted call that is finished there overwrites the stack of
// whoever asked for the copy.
bool this_is_a_copy = false;
Copy this_copy;
int this_part = 0;

[[noreturn]] void end_copy(int status) {
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

void give_up() { end_copy(kLockedStatus); }

// What the copy is sent when the process is gone, by SIGKILL say.
constexpr int kOrphaned = SIGHUP;

void end_orphan(int /*number*/) {
  this_copy.told->remove_temporary();
  end_copy(1);
}

void do_parts() {
  prctl(PR_SET_PDEATHSIG, kOrphaned);
  change_blocked_signals(SIG_UNBLOCK, bit_of(kOrphaned));
  if (getppid() != this_copy.parent) end_orphan(0);
  const CopyWork& work = this_copy.work;
  std::atomic<int>& done = this_copy.told->parts_done;
  for (int part = done.load(); part < work.parts; ++part) {
    this_part = part;
    work.write(work.context, part);
    done.store(part + 1);
  }
  end_copy(0);
}

// No signal but a fault of its own and the one of orphans reaches the copy: all are blocked before
// it is made, and stay so. abort() unblocks its own, whose default action is set for that.
void leave_the_program() {
  for (int number = 1; number <= kMaxSignal; ++number) set_kernel_action(number, {});
  struct sigaction orphaned {};
  orphaned.sa_handler = &end_orphan;
  sigaction(kOrphaned, &orphaned, nullptr);
  setpgid(0, 0);
  // Its watcher ends it when it takes too long, and takes it along when it is killed itself. Until
  // it writes there is nothing to remove, and its signals are blocked.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != this_copy.parent) end_copy(1);
  // A limit of one byte: no core is written, nor piped to a program.
  rlimit core{};
  if (getrlimit(RLIMIT_CORE, &core) == 0) {
    core.rlim_cur = std::min<rlim_t>(1, core.rlim_max);
    setrlimit(RLIMIT_CORE, &core);
  }
}

[[noreturn]] void be_the_copy(const Copy& copy) {
  this_is_a_copy = true;
  this_copy = copy;
  leave_the_program();
  core::nobody_lets_go(&give_up);
  core::OtherThreads::be_copy(copy.knows_threads);
  note_temporary_in(copy.told->temporary.data(), copy.told->temporary.size());
  if (copy.walks_stack) {
    copy.told->walks_stack.store(true);
    const InterruptedCall call = find_interrupted_call(copy.reach);
    copy.told->walks_stack.store(false);
    copy.told->in_handler.store(call.in_handler);
    if (copy.finishes_call) finish_interrupted_call(call, copy.stack, kStackBytes, &do_parts);
  }
  // This thread may be on a small alternate stack, or have used its own up.
  static ucontext_t on_large_stack;
  getcontext(&on_large_stack);
  on_large_stack.uc_stack.ss_sp = copy.stack;
  on_large_stack.uc_stack.ss_size = kStackBytes;
  on_large_stack.uc_link = nullptr;
  makecontext(&on_large_stack, &do_parts, 0);
  setcontext(&on_large_stack);
  end_copy(1);
}

class Mapping {
 public:
  Mapping(size_t bytes, int flags) noexcept
      : memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0)),
        bytes_(bytes) {}
  ~Mapping() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  // Null: there is no memory.
  void* get() const { return memory_ == MAP_FAILED ? nullptr : memory_; }

 private:
  void* const memory_;
  const size_t bytes_;
};

// All signals are blocked on this thread.
class NoSignals {
 public:
  NoSignals() noexcept : before_(change_blocked_signals(SIG_SETMASK, ~uint64_t{0})) {}
  ~NoSignals() { change_blocked_signals(SIG_SETMASK, before_); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  const uint64_t before_;
};

// A process that is looked at from outside, with what may be called in a signal handler.
class CopyProcess {
 public:
  explicit CopyProcess(pid_t process) : process_(process) {}

  // Returns whether it has ended, and leaves it to be waited for. The status is 1 where another
  // thread of the program's has waited for it, or a signal ended it.
  bool has_ended(int& status) const {
    siginfo_t ended{};
    if (waitid(P_PID, static_cast<id_t>(process_), &ended,
               WEXITED | WNOHANG | WNOWAIT | __WCLONE) != 0) {
      status = 1;
      return errno != EINTR;
    }
    status = ended.si_code == CLD_EXITED ? ended.si_status : 1;
    return ended.si_pid == process_;
  }
  int64_t cpu_ns() const {
    timespec time{};
    clockid_t clock = 0;
    if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }

  enum class Wait : uint8_t { kNone, kLock, kLockForGood };
  // kNone where the system does not say.
  Wait waits() const {
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
    if (file < 0) return Wait::kNone;
    std::array<char, 160> text{};
    const ssize_t size = read(file, text.data(), text.size() - 1);
    close(file);
    // Its number in decimal and six arguments, or `running`.
    if (size <= 0 || text[0] < '0' || text[0] > '9') return Wait::kNone;
    char* next = text.data();
    if (std::strtol(next, &next, 10) != SYS_futex) return Wait::kNone;
    constexpr int kTimeout = 3;
    uint64_t argument = 0;
    for (int i = 0; i <= kTimeout; ++i) argument = std::strtoull(next, &next, 16);
    return argument == 0 ? Wait::kLockForGood : Wait::kLock;
  }
  void kill() const {
    ::kill(process_, SIGKILL);
    siginfo_t ended{};
    while (waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOWAIT | __WCLONE) != 0 &&
           errno == EINTR) {
    }
  }

 private:
  const pid_t process_;
};

// Copies that have ended and are not waited for yet; 0: a free place.
std::array<std::atomic<pid_t>, 64> ended_copies;

void bury(pid_t process) {
  if (process != 0) waitpid(process, nullptr, __WCLONE);
}

// Call it for one copy after the other.
void bury_later(pid_t process) {
  static std::atomic<size_t> next{0};
  bury(ended_copies[next.fetch_add(1) % ended_copies.size()].exchange(process));
}

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Nobody in the copy could wake it.
class LockWatch {
 public:
  explicit LockWatch(int64_t now) : since_(now) {}
  bool is_locked(const CopyProcess& copy, int64_t now) {
    constexpr int64_t kForGoodNs = 20'000'000;
    constexpr int64_t kNs = 300'000'000;
    const auto waits = copy.waits();
    const int64_t cpu_ns = copy.cpu_ns();
    // A thread that waits for a brief lock looks at it now and then.
    const bool moves = (cpu_ns - cpu_ns_) * 20 > now - since_ + 2'000'000;
    if (waits == CopyProcess::Wait::kNone || moves) {
      since_ = now;
      cpu_ns_ = cpu_ns;
    }
    return now - since_ >= (waits == CopyProcess::Wait::kLockForGood ? kForGoodNs : kNs);
  }

 private:
  int64_t since_;
  int64_t cpu_ns_ = 0;
};

bool is_over(const CopyWork& work, int64_t now) {
  return work.latest_ns != nullptr && now > work.latest_ns();
}

CopyResult wait_for(const CopyProcess& copy, const CopyWork& work, const Told& told) {
  constexpr long kMaxPauseNs = 2'000'000;
  int64_t part_began = now_ns();
  int part = told.parts_done.load();
  LockWatch lock(part_began);
  timespec pause{0, 100'000};
  while (true) {
    int status = 0;
    if (copy.has_ended(status)) {
      if (told.parts_done.load() == work.parts) return CopyResult::kDone;
      return status == kLockedStatus ? CopyResult::kLocked : CopyResult::kFailed;
    }
    const int64_t now = now_ns();
    if (const int done = told.parts_done.load(); done != part) {
      part = done;
      part_began = now;
    }
    if (lock.is_locked(copy, now)) {
      copy.kill();
      return CopyResult::kLocked;
    }
    if (now - part_began > int64_t{work.seconds_per_part} * 1'000'000'000 || is_over(work, now)) {
      copy.kill();
      return CopyResult::kTooLate;
    }
    nanosleep(&pause, nullptr);
    pause.tv_nsec = std::min(2 * pause.tv_nsec, kMaxPauseNs);
  }
}

// Has the calling thread make processes in this process's own namespace of processes, where a call
// of the program's has chosen another one for its children.
class OwnNamespace {
 public:
  explicit OwnNamespace(bool is_last) noexcept {
    constexpr char kOwn[] = "/proc/thread-self/ns/pid";
    constexpr char kOfChildren[] = "/proc/thread-self/ns/pid_for_children";
    struct stat own, of_children;
    if (stat(kOwn, &own) != 0) return;  // it is not known
    // It has no name before its first process is there.
    const bool has_begun = stat(kOfChildren, &of_children) == 0;
    if (has_begun && own.st_ino == of_children.st_ino) return;
    if (has_begun) of_children_ = open(kOfChildren, O_RDONLY | O_CLOEXEC);
    const bool may_leave = of_children_ >= 0 || is_last;
    if (may_leave && enter(kOwn)) return;
    go_back();
    place_ = has_begun ? Place::kOther : Place::kFirstOfOther;
  }
  ~OwnNamespace() { go_back(); }
  OwnNamespace(const OwnNamespace&) = delete;
  OwnNamespace& operator=(const OwnNamespace&) = delete;

  // Where a process is made now.
  enum class Place : uint8_t { kOwn, kOther, kFirstOfOther };
  Place place() const { return place_; }

 private:
  // System calls instead of functions that the program may have a watch on (thread_calls.h).
  static bool enter(const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool is_there = syscall(SYS_setns, file, CLONE_NEWPID) == 0;
    close(file);
    return is_there;
  }
  void go_back() noexcept {
    if (of_children_ < 0) return;
    syscall(SYS_setns, of_children_, CLONE_NEWPID);
    close(of_children_);
    of_children_ = -1;
  }

  int of_children_ = -1;
  Place place_ = Place::kOwn;
};

// Not fork(): that calls handlers of the program's and takes locks. Without a signal at its end,
// the copy is not among the children that the program sees; no debugger follows it.
pid_t clone_into_copy(Copy& copy, CopyResult& why_not) {
  const OwnNamespace where(copy.work.is_last);
  why_not = CopyResult::kElsewhere;
  if (where.place() == OwnNamespace::Place::kFirstOfOther) return -1;
  why_not = CopyResult::kNotMade;
  // From another namespace no parent is seen.
  copy.parent = where.place() == OwnNamespace::Place::kOther ? 0 : getpid();
  const auto process =
      static_cast<pid_t>(syscall(SYS_clone, CLONE_UNTRACED, nullptr, nullptr, nullptr, nullptr));
  if (process == 0) be_the_copy(copy);
  return process;
}

CopyResult make_copy(Copy& copy) {
  if (is_over(copy.work, now_ns())) return CopyResult::kTooLate;
  CopyResult why_not{};
  const bool knows_threads = core::OtherThreads::begin_copy();
  copy.knows_threads = copy.knows_threads && knows_threads;
  const pid_t process = clone_into_copy(copy, why_not);
  if (knows_threads) core::OtherThreads::end_copy();
  if (process < 0) return why_not;
  const CopyResult result = wait_for(CopyProcess(process), copy.work, *copy.told);
  copy.told->remove_temporary();
  if (copy.work.process_goes_on) {
    bury_later(process);
  } else {
    bury(process);
  }
  return result;
}

// How often a part has been tried, and whether to try again.
class Tries {
 public:
  // `last`: how the part before came out.
  Tries(unsigned seconds, CopyResult last)
      : not_made_(last == CopyResult::kNotMade ? kMaxNotMade - 1 : 0),
        deadline_(now_ns() + int64_t{seconds} * 1'000'000'000) {}
  int copies() const { return copies_; }
  int crashes() const { return crashes_; }
  bool again(CopyResult result) {
    ++copies_;
    if (result == CopyResult::kFailed) ++crashes_;
    if (result == CopyResult::kNotMade && ++not_made_ < kMaxNotMade) pause();
    return result != CopyResult::kDone && result != CopyResult::kTooLate &&
           result != CopyResult::kElsewhere && copies_ < kMaxCopies && crashes_ < kMaxCrashes &&
           not_made_ < kMaxNotMade && now_ns() < deadline_;
  }
  // A torn heap would have the C library say so, so a call is finished first.
  bool finishes_call(bool process_goes_on) const { return (copies_ % 2 == 1) == process_goes_on; }
  Reach reach() const { return copies_ % 4 < 2 ? Reach::kInnermost : Reach::kOutermost; }

 private:
  // Another process may end meanwhile: the system counts them.
  static void pause() {
    const timespec pause{0, kBetweenNotMadeNs};
    nanosleep(&pause, nullptr);
  }

  int copies_ = 0;
  int crashes_ = 0;
  int not_made_;
  const int64_t deadline_;
};

void on_deadly_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  size_t i = 0;
  while (i + 1 < kDeadly.size() && kDeadly[i].number != number) ++i;
  if (const auto note = noted_by.exchange(nullptr)) note(kDeadly[i].name);
  // A fault comes again when its instruction does; what was sent has to be sent again, also where a
  // call has let it in that the thread blocks otherwise.
  sigaction(number, &actions_before[i], nullptr);
  if (!is_fault(number, info)) {
    auto& state = *static_cast<ucontext_t*>(context);
    if (actions_before[i].sa_handler == SIG_DFL)
      block_afterwards(state, blocked_afterwards(state) & ~bit_of(number));
    raise(number);
  }
  errno = error;
}

}  // namespace

bool is_fault(int number, const siginfo_t* info) noexcept {
  const bool may_be = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
  if (!may_be || info == nullptr) return false;
  // Memory that has failed may be reported before an instruction reads it.
  return info->si_code > 0 && !(number == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

CopyResult write_in_copy(const CopyWork& work) noexcept {
  const int error = errno;
  const Mapping stack(kStackBytes, MAP_PRIVATE | MAP_NORESERVE | MAP_STACK);
  const Mapping shared(sizeof(Told), MAP_SHARED);
  if (stack.get() == nullptr || shared.get() == nullptr) {
    if (work.left_out != nullptr) work.left_out(work.context, 0, CopyResult::kNotMade);
    return CopyResult::kNotMade;
  }
  const NoSignals blocked;
  Told& told = *new (shared.get()) Told;
  Copy copy;
  copy.work = work;
  copy.told = &told;
  copy.stack = stack.get();
  copy.walks_stack = true;
  CopyResult last = CopyResult::kDone;
  for (int part = 0; part < work.parts; part = told.parts_done.load()) {
    Tries tries(work.seconds_per_part, last);
    CopyResult result = CopyResult::kDone;
    do {
      copy.finishes_call = work.finishes_calls && tries.finishes_call(work.process_goes_on);
      copy.reach = tries.reach();
      // What this thread itself was writing when it was interrupted may be torn, too.
      copy.knows_threads = tries.crashes() < kMaxCrashes / 2;
      result = make_copy(copy);
      if (told.walks_stack.exchange(false)) copy.walks_stack = false;
      if (result == CopyResult::kLocked && told.parts_done.load() == 0 &&
          tries.copies() + 1 == work.copies_if_locked) {
        errno = error;
        return result;
      }
      if (work.between_copies != nullptr && result == CopyResult::kLocked) work.between_copies();
    } while (told.parts_done.load() == part && tries.again(result));
    if (told.parts_done.load() != part) continue;
    if (work.left_out != nullptr) work.left_out(work.context, part, result);
    told.parts_done.store(part + 1);
    last = result;
  }
  in_handler.store(told.in_handler.load());
  errno = error;
  return last;
}

CopyResult write_in_copy(void (*write)(void*), void* context) noexcept {
  struct One {
    void (*write)(void*);
    void* context;
  };
  const Mapping memory(sizeof(One), MAP_PRIVATE);
  if (memory.get() == nullptr) return CopyResult::kNotMade;
  CopyWork work;
  work.write = [](void* the_one, int /*part*/) {
    const One& one = *static_cast<const One*>(the_one);
    one.write(one.context);
  };
  work.context = new (memory.get()) One{write, context};
  work.is_last = true;
  return write_in_copy(work);
}

void prepare_copies() noexcept { prepare_interrupted_calls(); }

bool is_copy() noexcept { return this_is_a_copy; }

void part_is_written() noexcept {
  if (this_is_a_copy) this_copy.told->parts_done.store(this_part + 1);
}

void bury_copies() noexcept {
  for (auto& process : ended_copies) bury(process.exchange(0));
}

bool ran_in_signal_handler() noexcept { return in_handler.load(); }

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
