// Many threads that allocate, and free what others allocated, with snapshots and peaks read meanwhile; at each quiet point the table,
// the counter and a count of the test's own agree. Ten million operations with MEMLEDGER_FULL=1.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "registry/core/ledger.h"

namespace memledger::core {
namespace {

constexpr DeviceKey kCpu{0, -1};
constexpr int kThreads = 64;
constexpr int kRounds = 4;
constexpr size_t kPlaces = 4096;  // shared: who finds a place taken frees it, whoever took it

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

TEST_CASE("64 threads free each other's storages") {
  const size_t operations = std::getenv("MEMLEDGER_FULL") != nullptr ? 10000000 : 400000;
  const size_t per_thread_and_round = operations / kThreads / kRounds;
  Ledger ledger;
  std::array<std::atomic<int64_t>, kPlaces> bytes_at{};  // 0: nobody, -1: in between
  std::atomic<int64_t> own_count{0};
  std::atomic<int> alive{kThreads};
  Barrier quiet(kThreads + 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int round = 0; round < kRounds; ++round) {
        for (size_t i = 0; i < per_thread_and_round; ++i) {
          const size_t place = random() % kPlaces;
          const uintptr_t address = (place + 1) * 64;
          int64_t found = bytes_at[place].load();
          if (found < 0 || !bytes_at[place].compare_exchange_strong(found, -1)) continue;
          if (found == 0) {
            Ledger::Birth birth;
            birth.address = address;
            birth.nbytes = 1 + static_cast<int64_t>(random() % 4096);
            birth.device = kCpu;
            birth.peak_labels = LabelSet{1} << (t % 4);
            ledger.note_birth(birth);
            own_count.fetch_add(birth.nbytes);
            bytes_at[place].store(birth.nbytes);
          } else {
            const auto death = ledger.note_death(address);
            own_count.fetch_sub(death ? death->nbytes : 0);
            bytes_at[place].store(0);
          }
        }
        quiet.wait();  // the main thread looks
        quiet.wait();
      }
      --alive;
    });
  }
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    const uint64_t cursor = ledger.open_cursor();
    while (!stop.load()) {
      int64_t bytes = 0;
      const LedgerSnapshot snapshot = ledger.snapshot();
      for (const StorageRecord& record : snapshot.records) bytes += record.nbytes;
      if (!snapshot.devices.empty()) CHECK(bytes == snapshot.devices[0].counters.current_bytes);
      bytes = 0;
      const LedgerPeak peak = ledger.peak(kCpu);
      for (const StorageRecord& record : peak.records) bytes += record.nbytes;
      CHECK(bytes == peak.bytes);
      ledger.changes_since(cursor);
    }
    ledger.close_cursor(cursor);
  });
  for (int round = 0; round < kRounds; ++round) {
    quiet.wait();
    const LedgerSnapshot snapshot = ledger.snapshot();
    int64_t bytes = 0;
    for (const StorageRecord& record : snapshot.records) bytes += record.nbytes;
    CHECK(bytes == own_count.load());
    CHECK(ledger.counters(kCpu).current_bytes == own_count.load());
    CHECK(snapshot.records.size() == static_cast<size_t>(ledger.counters(kCpu).current_count));
    quiet.wait();
  }
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  reader.join();
  CHECK(alive.load() == 0);
  CHECK(ledger.dropped_records() == 0);
  const LedgerPeak peak = ledger.peak(kCpu);
  CHECK(ledger.tombstones() <= 2 * peak.records.size() * 5 + Ledger::kShards * 17);
}

}  // namespace
}  // namespace memledger::core
