// The table alone, without LibTorch: bytes of its own for each storage, a snapshot of a million of
// them and how long it makes an allocating thread wait, and what an allocation and its free cost
// with more and more threads.
//
//   ./bazelw run //tests/bench:ledger_scale

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "registry/core/ledger.h"
#include "registry/core/thread_context.h"

namespace memledger::core {
namespace {

using Clock = std::chrono::steady_clock;

constexpr DeviceKey kCpu{0, -1};
constexpr size_t kStorages = 1000000;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

size_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void bear(Ledger& ledger, uintptr_t address, int64_t nbytes) {
  Ledger::Birth birth;
  birth.address = address;
  birth.nbytes = nbytes;
  birth.device = kCpu;
  birth.birthplace.thread = this_thread().thread;
  ledger.note_birth(birth);
}

uintptr_t address_of(size_t i) { return 0x7f0000000000 + i * 192; }

// How long a thread that allocates waits while all that lives is copied.
void time_snapshots(Ledger& ledger, int snapshots) {
  std::atomic<bool> stop{false};
  std::vector<double> waits;
  waits.reserve(20000000);
  std::thread allocating([&] {
    std::mt19937_64 random(1);
    while (!stop.load(std::memory_order_relaxed)) {
      const uintptr_t address = 0x100000 + random() % 4096 * 64;
      const Clock::time_point start = Clock::now();
      bear(ledger, address, 64);
      ledger.note_death(address);
      if (waits.size() < waits.capacity()) waits.push_back(milliseconds_since(start));
    }
  });
  double slowest = 0;
  size_t rows = 0;
  for (int i = 0; i < snapshots; ++i) {
    const Clock::time_point start = Clock::now();
    rows = ledger.snapshot().records.size();
    slowest = std::max(slowest, milliseconds_since(start));
  }
  stop.store(true);
  allocating.join();
  std::sort(waits.begin(), waits.end());
  fmt::print("snapshot of {} storages: {:.1f} ms at most of {}\n", rows / 1000 * 1000, slowest,
             snapshots);
  fmt::print("an allocation and free meanwhile: {:.3f} us median, {:.3f} ms at most of {}\n",
             1000 * waits[waits.size() / 2], waits.back(), waits.size());
}

// Own bytes with a million storages; then who was alive at the peak while all of them are freed: a
// tombstone each.
void own_memory_and_snapshots() {
  {
    Ledger few;
    for (size_t i = 0; i < 10000; ++i) bear(few, address_of(i), 512);
    time_snapshots(few, 200);
  }
  Ledger ledger;
  size_t before = bytes_in_use();
  const int64_t shape[] = {64, 3, 7, 7};
  for (size_t i = 0; i < kStorages; ++i) {
    bear(ledger, address_of(i), 512);
    ledger.describe(address_of(i), this_thread().thread, 0, shape, 4, 6);
  }
  fmt::print("own bytes per live storage: {:.1f}\n",
             static_cast<double>(bytes_in_use() - before) / kStorages);

  time_snapshots(ledger, 5);
  ledger.reset_peak(kCpu);
  for (size_t i = 0; i < kStorages; ++i) ledger.note_death(address_of(i));
  fmt::print("own bytes per tombstone, all freed since the peak: {:.1f} ({} tombstones)\n",
             static_cast<double>(bytes_in_use() - before) / kStorages, ledger.tombstones());
  const Clock::time_point start = Clock::now();
  const LedgerPeak peak = ledger.peak(kCpu);
  fmt::print("who was alive at the peak: {} rows in {:.0f} ms\n", peak.records.size(),
             milliseconds_since(start));
}

double nanoseconds_per_pair(int threads, size_t pairs, bool keep_peaks) {
  Ledger ledger;
  ledger.keep_peaks(keep_peaks);
  std::vector<std::thread> all;
  std::atomic<int> ready{0};
  const Clock::time_point start = Clock::now();
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      const uintptr_t base = (static_cast<uintptr_t>(t) + 1) << 40;
      ready.fetch_add(1);
      for (size_t i = 0; i < pairs; ++i) {
        const uintptr_t address = base + random() % 1024 * 64;
        bear(ledger, address, 1024);
        ledger.note_death(address);
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  return milliseconds_since(start) * 1e6 /
         static_cast<double>(pairs * static_cast<size_t>(threads));
}

int run() {
  own_memory_and_snapshots();
  for (const int threads : {1, 2, 8, 64}) {
    const size_t pairs = 4000000 / static_cast<size_t>(threads);
    const double off = nanoseconds_per_pair(threads, pairs, false);
    const double on = nanoseconds_per_pair(threads, pairs, true);
    fmt::print("{:>3} threads: {:.0f} ns per allocation and free, {:.0f} ns with peaks kept\n",
               threads, off, on);
  }
  return 0;
}

}  // namespace
}  // namespace memledger::core

int main() { return memledger::core::run(); }
