#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "runner/inside/thread_visits.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runner/inside/kernel_signals.h"

namespace memledger::inside {
namespace {

std::atomic<int> first_visits{0}, second_visits{0};
void visit_first(ucontext_t& /*state*/) noexcept { ++first_visits; }
void visit_second(ucontext_t& /*state*/) noexcept { ++second_visits; }

void on_signal(int /*number*/, siginfo_t* /*info*/, void* /*state*/) {}

void prepare() {
  struct sigaction action {};
  action.sa_sigaction = &on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  KernelAction like;
  get_kernel_action(SIGUSR1, like);
  prepare_visits(like);
}

bool becomes(const std::atomic<int>& visits, int wanted) {
  for (int i = 0; i < 2'000 && visits.load() < wanted; ++i) {
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  return visits.load() == wanted;
}

// In a child, where nobody has been visited before and there is one thread. Returns its status.
int in_child(int (*work)()) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The C library sets its own handler of the signal when it makes the first thread.
int visit_before_and_after_first_thread() {
  prepare();
  visit_other_threads(&visit_first);
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) {
    }
  });
  visit_other_threads(&visit_second);
  const bool is_visited = becomes(second_visits, 1);
  is_over = true;
  other.join();
  return is_visited && first_visits == 0 ? 0 : 1;
}

// Both visit each other for the first time, at once.
int visit_each_other() {
  prepare();
  std::atomic<int> ready{0};
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    ++ready;
    while (ready < 2) {
    }
    visit_other_threads(&visit_first);
    while (!is_over) {
    }
  });
  ++ready;
  while (ready < 2) {
  }
  visit_other_threads(&visit_second);
  const bool are_visited = becomes(first_visits, 1) && becomes(second_visits, 1);
  is_over = true;
  other.join();
  return are_visited ? 0 : 1;
}

TEST_CASE("a thread is visited that was made after the first visit of all") {
  CHECK(in_child(&visit_before_and_after_first_thread) == 0);
}

TEST_CASE("threads that visit each other for the first time are both visited") {
  constexpr int kChildren = 300;
  int missed = 0;
  for (int i = 0; i < kChildren; ++i) missed += in_child(&visit_each_other) == 0 ? 0 : 1;
  CHECK(missed == 0);
}

}  // namespace
}  // namespace memledger::inside
