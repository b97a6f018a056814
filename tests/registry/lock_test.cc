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

#include "registry/core/biased_lock.h"
#include "registry/core/fork_safe_mutex.h"

namespace memledger {
namespace {

using core::BiasedLock;
using core::BiasedLockHolder;
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

// Takes the lock until it has the bias; returns whether it has.
bool take_bias(BiasedLock& lock, uint32_t thread) {
  for (int i = 0; i < 1 << 18; ++i) {
    const BiasedLock::Way way = lock.lock(thread);
    lock.unlock(way);
    if (way != BiasedLock::Way::kSlow) return true;
  }
  return false;
}

TEST_CASE("a biased lock is taken without a locked instruction by who takes it alone") {
  BiasedLock::allow_bias();
  BiasedLock lock;
  CHECK(lock.lock(1) == BiasedLock::Way::kSlow);
  lock.unlock(BiasedLock::Way::kSlow);
  REQUIRE(take_bias(lock, 1));
  // Another one takes the bias away, for as long as the first does not take it many times again.
  CHECK(lock.lock(2) == BiasedLock::Way::kSlow);
  lock.unlock(BiasedLock::Way::kSlow);
  CHECK(lock.lock(1) == BiasedLock::Way::kSlow);
  lock.unlock(BiasedLock::Way::kSlow);
  REQUIRE(take_bias(lock, 2));
  // The owner takes it among many, and stays the owner.
  CHECK_FALSE(lock.lock_all_but_owner(2));
  lock.wait_for_owner();
  lock.unlock(BiasedLock::Way::kSlow);
  const BiasedLock::Way way = lock.lock(2);
  CHECK(way != BiasedLock::Way::kSlow);
  lock.unlock(way);
  // Each owner has a place of its own for good, and there are no more than these.
  CHECK(take_bias(lock, 3));
  CHECK(take_bias(lock, 4));
  CHECK_FALSE(take_bias(lock, 5));
  CHECK(take_bias(lock, 1));
}

TEST_CASE("a biased lock is held by one thread at a time, whoever has the bias") {
  BiasedLock::allow_bias();
  constexpr int kThreads = 4;
  BiasedLock lock;
  int64_t sum = 0;  // not atomic: what the lock is for
  std::atomic<int64_t> biased{0}, changes{0};
  uint32_t last_biased = 0;
  std::vector<std::thread> threads;
  for (uint32_t t = 1; t <= kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int run = 0; run < 300; ++run) {
        // So many in a row that the bias is had, and others that come in between.
        for (int i = 0; i < (t == 1 ? 3000 : 40); ++i) {
          const BiasedLock::Way way = lock.lock(t);
          const int64_t before = sum;
          std::atomic_signal_fence(std::memory_order_seq_cst);
          sum = before + 1;
          if (way != BiasedLock::Way::kSlow) {
            biased.fetch_add(1, std::memory_order_relaxed);
            changes.fetch_add(last_biased != t, std::memory_order_relaxed);
            last_biased = t;
          }
          lock.unlock(way);
        }
        if (t != 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(sum == 300 * (3000 + (kThreads - 1) * 40));
  CHECK(biased.load() > 0);
  CHECK(changes.load() > 0);
}

TEST_CASE("many biased locks are taken with one barrier, and nobody is inside then") {
  BiasedLock::allow_bias();
  constexpr size_t kLocks = 8;
  std::vector<std::unique_ptr<BiasedLock>> locks;
  std::vector<int64_t> sums(2 * kLocks);  // the two of a lock are equal when it is free
  for (size_t i = 0; i < kLocks; ++i) locks.push_back(std::make_unique<BiasedLock>());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
        const size_t mine = t * kLocks / 2 + i % (kLocks / 2);
        const BiasedLockHolder hold(*locks[mine], t + 1);
        ++sums[2 * mine];
        std::atomic_signal_fence(std::memory_order_seq_cst);
        ++sums[2 * mine + 1];
      }
    });
  }
  int torn = 0, barriers = 0;
  for (int round = 0; round < 2000; ++round) {
    bool takes_bias = false;
    for (auto& lock : locks) takes_bias |= lock->lock_all_but_owner(9);
    if (takes_bias) BiasedLock::barrier_in_all_threads();
    for (auto& lock : locks) lock->wait_for_owner();
    barriers += takes_bias;
    for (size_t i = 0; i < kLocks; ++i) torn += sums[2 * i] != sums[2 * i + 1];
    for (auto& lock : locks) lock->unlock(BiasedLock::Way::kSlow);
    std::this_thread::sleep_for(std::chrono::microseconds(round % 4 == 0 ? 200 : 0));
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == 0);
  CHECK(barriers > 0);
}

// The thread sanitizer keeps a signal back until the program comes to a blocking call.
#if !MEMLEDGER_THREAD_SANITIZER
TEST_CASE("a signal handler that wants the lock its thread is in waits, and can be seen to") {
  BiasedLock::allow_bias();
  const auto [status, said] = child_that([] {
    BiasedLock lock;
    if (!take_bias(lock, 1)) _exit(3);
    static BiasedLock* held = &lock;
    std::signal(SIGUSR1, [](int) {
      std::signal(SIGALRM, [](int) { _exit(7); });
      alarm(1);
      held->unlock(held->lock(1));
    });
    const BiasedLock::Way way = lock.lock(1);
    if (way == BiasedLock::Way::kSlow) _exit(4);
    raise(SIGUSR1);
    _exit(5);
  });
  CHECK(status == 7);
  CHECK(said.empty());
}
#endif

// How a child ends whose signal handler takes the lock while its thread has it by `take`: 7 where
// the handler waits.
template <typename Take>
int end_of_handler_inside(const Take& take) {
  return child_that([&] {
           BiasedLock lock;
           static BiasedLock* held = &lock;
           std::signal(SIGUSR1, [](int) {
             std::signal(SIGALRM, [](int) { _exit(7); });
             alarm(1);
             held->unlock(held->lock(1));
           });
           take(lock);
           raise(SIGUSR1);
           _exit(5);
         })
      .first;
}

#if !MEMLEDGER_THREAD_SANITIZER
TEST_CASE("a signal handler does not enter by the bias what its thread holds the slow way") {
  BiasedLock::allow_bias();
  CHECK(end_of_handler_inside([](BiasedLock& lock) {
          if (!take_bias(lock, 1)) _exit(3);
          lock.lock_all_but_owner(1);
          lock.wait_for_owner();
        }) == 7);
  // By the lock that makes its thread the owner.
  int before = 0;
  {
    BiasedLock lock;
    BiasedLock::Way way{};
    for (; (way = lock.lock(1)) == BiasedLock::Way::kSlow; ++before) lock.unlock(way);
    lock.unlock(way);
  }
  CHECK(end_of_handler_inside([&](BiasedLock& lock) {
          for (int i = 1; i < before; ++i) lock.unlock(lock.lock(1));
          if (lock.lock(1) != BiasedLock::Way::kSlow) _exit(4);
        }) == 7);
  // Afterwards the bias is there as before.
  BiasedLock lock;
  REQUIRE(take_bias(lock, 1));
  lock.lock_all_but_owner(1);
  lock.wait_for_owner();
  lock.unlock(BiasedLock::Way::kSlow);
  const BiasedLock::Way way = lock.lock(1);
  CHECK(way != BiasedLock::Way::kSlow);
  lock.unlock(way);
}
#endif

// An explicit instantiation may name a private member.
using Busy = std::array<std::atomic<uint32_t>, BiasedLock::kMaxOwners>;
template <Busy BiasedLock::*busy>
struct PrivateBusy {
  friend Busy& busy_of(BiasedLock& lock) { return lock.*busy; }
};
Busy& busy_of(BiasedLock& lock);
template struct PrivateBusy<&BiasedLock::busy_>;

TEST_CASE("a child of fork does not wait for a thread of its parent that was about to look") {
  BiasedLock::allow_bias();
  BiasedLock lock;
  REQUIRE(take_bias(lock, 2));
  lock.unlock(lock.lock(1));
  lock.lock_all_but_owner(1);
  lock.wait_for_owner();
  busy_of(lock)[0].store(1);  // thread 2 has read that it is the owner, and looks again
  CHECK(child_that([&] {
          alarm(5);
          lock.forget_other_threads();
          lock.unlock(BiasedLock::Way::kSlow);
          lock.unlock(lock.lock(3));
          if (!take_bias(lock, 1)) _exit(1);
        }).first == 0);
  busy_of(lock)[0].store(0);
  lock.unlock(BiasedLock::Way::kSlow);
}

TEST_CASE("a child of fork takes a lock that was biased towards a thread it does not have") {
  BiasedLock::allow_bias();
  BiasedLock lock;
  std::thread([&] { CHECK(take_bias(lock, 2)); }).join();
  CHECK(child_that([&] {
          lock.unlock(lock.lock(1));
          if (!take_bias(lock, 1)) _exit(1);
        }).first == 0);
}

TEST_CASE("a thread that calls out with a biased lock held ends") {
  BiasedLock::allow_bias();
  CHECK(child_that([] {
          BiasedLock lock;
          take_bias(lock, 1);
          const BiasedLockHolder hold(lock, 1);
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
