// The locks, compiled with the check that debug and sanitizer builds have (registry/core/lock.h).
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "registry/core/lock.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "registry/core/fork_safe_mutex.h"

namespace memledger {
namespace {

using core::BriefLock;
using core::BriefLockHolder;
using core::Lock;
using core::LockHolder;

// How a child that does this ends, and what it says.
template <typename Act>
std::pair<int, std::string> child_that(const Act& act) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a lock that nobody holds any more would end here
    dup2(pipe_ends[1], STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);
    act();
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string said;
  char text[256];
  for (ssize_t got; (got = read(pipe_ends[0], text, sizeof text)) > 0;)
    said.append(text, static_cast<size_t>(got));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), said};
}

TEST_CASE("a brief lock is held by one thread at a time, and had by who waits long") {
  BriefLock lock;
  int64_t sum = 0;
  std::atomic<int> inside{0};
  std::atomic<bool> overlaps{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        const BriefLockHolder hold(lock);
        if (inside.fetch_add(1) != 0) overlaps = true;
        ++sum;
        // Now and then as long as a thread that waits does not spin.
        if (i % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        inside.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(sum == 20000);
  CHECK_FALSE(overlaps);
  CHECK(child_that([] {
          BriefLock held;
          const BriefLockHolder hold(held);
          core::calling_out();
        }).first == -SIGABRT);
}

TEST_CASE("a thread that calls out with a lock held ends, and the place is told") {
  const auto [status, said] = child_that([] {
    Lock lock;
    const LockHolder hold(lock);
    core::calling_out();
  });
  CHECK(status == -SIGABRT);
  CHECK_MESSAGE(said.find("lock_test.cc") != std::string::npos, said);
  CHECK(child_that([] {
          ForkSafeMutex lock;
          const std::lock_guard<ForkSafeMutex> hold(lock);
          core::calling_out();
        }).first == -SIGABRT);
  CHECK(child_that([] {
          Lock lock;
          if (lock.try_lock()) core::calling_out();
        }).first == -SIGABRT);
}

TEST_CASE("a thread without locks may call out, whatever others hold") {
  const auto [status, said] = child_that([] {
    Lock lock, another;
    core::calling_out();
    {
      const LockHolder hold(lock);
      const LockHolder hold_another(another);
      if (lock.try_lock()) _exit(1);
    }
    core::calling_out();
    lock.lock();
    std::thread([] { core::calling_out(); }).join();
    lock.unlock();
    core::calling_out();
  });
  CHECK(status == 0);
  CHECK(said.empty());
}

TEST_CASE("children of fork find fork-safe mutexes free, and what they guard whole") {
  auto ends_early = std::make_unique<ForkSafeMutex>();
  ForkSafeMutex one, other;
  int twice_the_same[2][2] = {};
  std::atomic<bool> stop{false};
  const auto work = [&](ForkSafeMutex& lock, int(&numbers)[2]) {
    while (!stop.load()) {
      const std::lock_guard<ForkSafeMutex> hold(lock);
      ++numbers[0];
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      ++numbers[1];
    }
  };
  std::thread first(work, std::ref(one), std::ref(twice_the_same[0]));
  std::thread second(work, std::ref(other), std::ref(twice_the_same[1]));
  ends_early.reset();
  for (int i = 0; i < 20; ++i) {
    CHECK(child_that([&] {
            if (!one.try_lock() || !other.try_lock()) _exit(1);
            for (const auto& numbers : twice_the_same) {
              if (numbers[0] != numbers[1]) _exit(2);
            }
            one.unlock();
            other.unlock();
            core::calling_out();
          }).first == 0);
  }
  stop.store(true);
  first.join();
  second.join();
}

}  // namespace
}  // namespace memledger
