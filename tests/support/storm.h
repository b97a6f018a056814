#pragma once

// 64 threads that work on what is everybody's, somebody who reads meanwhile, and quiet points at
// which books are compared.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace memledger::testing {

constexpr int kStormThreads = 64;
constexpr int kStormRounds = 4;
constexpr size_t kStormPlaces =
    4096;  // shared: who finds something there frees it, whoever put it there

// 400 000, ten million with MEMLEDGER_FULL=1.
inline size_t storm_operations() {
  return std::getenv("MEMLEDGER_FULL") != nullptr ? 10000000 : 400000;
}

// All wait for all.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait() {
    std::unique_lock<std::mutex> hold(lock_);
    const int round = round_;
    if (++waiting_ == count_) {
      waiting_ = 0;
      ++round_;
      all_here_.notify_all();
      return;
    }
    all_here_.wait(hold, [&] { return round_ != round; });
  }

 private:
  std::mutex lock_;
  std::condition_variable all_here_;
  const int count_;
  int waiting_ = 0;
  int round_ = 0;
};

// On each thread `enter(number)` gives the function of a random engine that is one operation, which
// lives until the thread ends. `read` is called over and over on a thread of its own, `look` on the
// calling one at the end of each round, while nobody works.
template <typename Enter, typename Read, typename Look>
void storm(const Enter& enter, const Read& read, const Look& look) {
  const size_t per_thread_and_round = storm_operations() / kStormThreads / kStormRounds;
  Barrier quiet(kStormThreads + 1);
  std::vector<std::thread> threads;
  for (int number = 0; number < kStormThreads; ++number) {
    threads.emplace_back([&, number] {
      const auto operate = enter(number);
      std::mt19937 random(static_cast<uint32_t>(number));
      for (int round = 0; round < kStormRounds; ++round) {
        for (size_t i = 0; i < per_thread_and_round; ++i) operate(random);
        quiet.wait();  // the calling thread looks
        quiet.wait();
      }
    });
  }
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop.load()) read();
  });
  for (int round = 0; round < kStormRounds; ++round) {
    quiet.wait();
    look();
    quiet.wait();
  }
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  reader.join();
}

}  // namespace memledger::testing
