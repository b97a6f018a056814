#include "runner/inside/demand_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "registry/core/other_threads.h"
#include "runner/inside/end_calls.h"
#include "runner/inside/in_front.h"
#include "runner/inside/interrupted_call.h"
#include "runner/inside/kernel_signals.h"
#include "runner/inside/thread_calls.h"
#include "runner/inside/thread_visits.h"

namespace memledger::inside {
namespace {

int number = 0;
pid_t process = 0;
pthread_t thread;
std::atomic<pid_t> thread_id{0};
decltype(&memledger_hide_blocked) hide_blocked = nullptr;
decltype(&memledger_asks_to_block) asks_to_block = nullptr;
std::atomic<bool> is_programs{false};  // the program has a use of its own
std::atomic<bool> ends{false};

// The system call itself: sigwait() is one of those that report the program's own use.
siginfo_t wait_for_signal() {
  siginfo_t info{};
  const uint64_t only_it = bit_of(number);
  while (syscall(SYS_rt_sigtimedwait, &only_it, &info, nullptr, sizeof only_it) != number) {
  }
  return info;
}

// Not pthread_kill(), which may be the one in front (thread_calls.h).
void send_to(pid_t its_thread) noexcept { syscall(SYS_tgkill, process, its_thread, number); }

void* take(void* /*unused*/) {
  pthread_setname_np(pthread_self(), "memledger");
  thread_id.store(static_cast<pid_t>(syscall(SYS_gettid)));
  while (true) {
    const siginfo_t info = wait_for_signal();
    if (info.si_code == SI_TKILL && ends.load()) return nullptr;
    // The handler runs here.
    send_to(thread_id.load());
    change_blocked_signals(SIG_UNBLOCK, bit_of(number));
    change_blocked_signals(SIG_BLOCK, bit_of(number));
  }
}

void pause() noexcept {
  const timespec moment{0, 100'000};
  nanosleep(&moment, nullptr);
}

bool make_thread() noexcept {
  ends.store(false);
  thread_id.store(0);
  core::OtherThreads::add_own(&take);
  const uint64_t before = change_blocked_signals(SIG_SETMASK, ~uint64_t{0});
  const bool is_made = pthread_create(&thread, nullptr, &take, nullptr) == 0;
  change_blocked_signals(SIG_SETMASK, is_made ? before | bit_of(number) : before);
  if (!is_made) ends.store(true);
  return is_made;
}

void end_thread() noexcept {
  if (ends.exchange(true)) return;
  while (thread_id.load() == 0) pause();  // it has just been made
  send_to(thread_id.load());
}

void unblock_here(ucontext_t& state) noexcept {
  if (!asks_to_block()) block_afterwards(state, blocked_afterwards(state) & ~bit_of(number));
}

void unblock() noexcept {
  if (!asks_to_block()) change_blocked_signals(SIG_UNBLOCK, bit_of(number));
}

void give_back() noexcept {
  if (getpid() != process || is_programs.exchange(true)) return;
  if (!ends.load()) pthread_detach(thread);
  end_thread();
  hide_blocked(0);
  expect_blocked(0);
  unblock();
  visit_other_threads(&unblock_here);
}
void note_action(int of_action) noexcept {
  if (of_action == number) give_back();
}

void be_a_child() noexcept {
  if (is_programs.load()) return;
  hide_blocked(0);
  unblock();
}

// Whether there is no thread but the calling one and ours: else it would be of no use to end ours.
bool is_alone() noexcept {
  struct stat tasks;
  return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 4;
}

// Returns whether the thread was ended, and is gone for the kernel, too.
bool leave_alone() noexcept {
  if (is_programs.load() || !is_alone() || ends.load()) return false;
  end_thread();
  const pid_t id = thread_id.load();
  pthread_join(thread, nullptr);
  while (syscall(SYS_tgkill, process, id, 0) == 0) pause();
  return true;
}

// In a new namespace of processes there can be no other thread.
void come_back() noexcept {
  if (!make_thread()) give_back();
}

// Whether the program had an action of its own before memledger was there, or blocks the signal.
// The sigaction() that it calls shows it its own actions only.
bool has_programs_use() noexcept {
  const auto ask =
      find_in_front<int (*)(int, const struct sigaction*, struct sigaction*)>("sigaction");
  struct sigaction now;
  return (blocked_signals() & bit_of(number)) != 0 || ask == nullptr ||
         ask(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL;
}

}  // namespace

void take_on_own_thread(int signal) noexcept {
  const auto observe_actions =
      find_in_front<decltype(&memledger_observe_own_actions)>("memledger_observe_own_actions");
  const auto observe_waits =
      find_in_front<decltype(&memledger_observe_waits)>("memledger_observe_waits");
  const auto observe_lone_calls =
      find_in_front<decltype(&memledger_observe_lone_calls)>("memledger_observe_lone_calls");
  hide_blocked = find_in_front<decltype(&memledger_hide_blocked)>("memledger_hide_blocked");
  asks_to_block = find_in_front<decltype(&memledger_asks_to_block)>("memledger_asks_to_block");
  if (signal == 0 || observe_actions == nullptr || observe_waits == nullptr ||
      observe_lone_calls == nullptr || hide_blocked == nullptr || asks_to_block == nullptr)
    return;
  number = signal;
  process = getpid();
  if (has_programs_use()) return;
  if (pthread_atfork(nullptr, nullptr, &be_a_child) != 0 || !make_thread()) return;
  hide_blocked(signal);
  expect_blocked(signal);
  observe_actions(&note_action);
  observe_waits(&give_back);
  observe_lone_calls(&leave_alone, &come_back);
}

bool is_demand_thread() noexcept {
  return thread_id.load() == static_cast<pid_t>(syscall(SYS_gettid));
}

}  // namespace memledger::inside
