// Measures the table alone, without LibTorch: its own bytes for each storage, and the cost of an
// allocation and its free with more and more threads. Also a snapshot of a million storages, and
// how long it makes an allocating thread wait.
//
//   ./bazelw run //tests/bench:ledger_scale

#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
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

// Says whether the system took the calling thread's processor away since the last call.
class Interruptions {
 public:
  bool any() {
    const long now = count();
    return std::exchange(seen_, now) != now;
  }

 private:
  static long count() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
  }
  long seen_ = count();
};

struct Span {
  Clock::time_point begin, end;
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(end - begin).count();
  }
};

// How long a thread waits that makes one event after the other while all that lives in a table is
// copied. Where the system takes the processor of either thread away nothing can help it, so the
// longest wait is also said without these.
template <typename Event>
void time_snapshots(const char* what, const Event& make_event, Ledger& copied, int snapshots) {
  constexpr double kNotable = 0.1;  // milliseconds
  std::atomic<bool> stop{false};
  size_t count = 0;
  std::vector<double> some;  // every 64th, for the median
  std::vector<Span> interrupted, waits, interrupted_snapshots;
  std::thread waiting([&] {
    some.reserve(1 << 20);
    std::mt19937_64 random(1);
    Interruptions interruptions;
    for (Clock::time_point start = Clock::now(); !stop.load(std::memory_order_relaxed); ++count) {
      make_event(random());
      const Span span = {start, Clock::now()};
      start = span.end;  // every moment belongs to one wait
      if (span.milliseconds() > kNotable)
        (interruptions.any() ? interrupted : waits).push_back(span);
      if (count % 64 == 0 && some.size() < some.capacity()) some.push_back(span.milliseconds());
    }
  });
  double slowest = 0;
  Interruptions interruptions;
  for (int i = 0; i < snapshots; ++i) {
    const Clock::time_point begin = Clock::now();
    copied.snapshot();
    const Span span = {begin, Clock::now()};
    slowest = std::max(slowest, span.milliseconds());
    if (interruptions.any()) interrupted_snapshots.push_back(span);
  }
  stop.store(true);
  waiting.join();
  const auto begins_in_none =
      std::stable_partition(waits.begin(), waits.end(), [&](const Span& wait) {
        return std::any_of(interrupted_snapshots.begin(), interrupted_snapshots.end(),
                           [&](const Span& snapshot) {
                             return wait.begin < snapshot.end && snapshot.begin < wait.end;
                           });
      });
  interrupted.insert(interrupted.end(), waits.begin(), begins_in_none);
  waits.erase(waits.begin(), begins_in_none);
  const auto longest = [](const std::vector<Span>& spans) {
    double most = 0;
    for (const Span& span : spans) most = std::max(most, span.milliseconds());
    return most;
  };
  std::sort(some.begin(), some.end());
  fmt::print(
      "  {}: snapshots {:.1f} ms at most; {:.2f} us median; of {}, {} above 0.1 ms, {:.3f} ms at "
      "most, and {}, {:.3f} ms at most, where a processor was taken away\n",
      what, slowest, 1000 * some[some.size() / 2], count, waits.size(), longest(waits),
      interrupted.size(), longest(interrupted));
}

// With another's table a thread waits for the processor alone: what the machine makes of two busy
// threads.
void time_snapshots(Ledger& copied, int snapshots) {
  Ledger other;
  const auto allocate_in = [](Ledger& used) {
    return [&used](uint64_t random) {
      const uintptr_t address = 0x100000 + random % 4096 * 64;
      bear(used, address, 64);
      used.note_death(address);
    };
  };
  // Maps and unmaps memory, as malloc does for large blocks, and so for large tensors.
  const auto map = [](uint64_t) {
    constexpr size_t kBytes = size_t{1} << 20;
    void* const memory = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) munmap(memory, kBytes);
  };
  for (int round = 0; round < 2; ++round) {
    time_snapshots("an allocation and free in another's table", allocate_in(other), copied,
                   snapshots);
    time_snapshots("an allocation and free in its own table  ", allocate_in(copied), copied,
                   snapshots);
    time_snapshots("memory mapped and unmapped               ", map, copied, snapshots);
  }
}

// Own bytes with a million storages; then who was alive at the peak while all of them are freed: a
// tombstone each.
void own_memory_and_snapshots() {
  {
    fmt::print("snapshots of 10000 storages beside a thread\n");
    Ledger few;
    for (size_t i = 0; i < 10000; ++i) bear(few, address_of(i), 512);
    time_snapshots(few, 1000);
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

  fmt::print("snapshots of a million storages beside a thread\n");
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
