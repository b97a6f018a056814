// Checks who was alive at the peak against a reference that remembers every event.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "registry/core/ledger.h"
#include "registry/core/ledger_events.h"
#include "registry/core/thread_context.h"
#include "tests/registry/records.h"

namespace memledger::core {
namespace {

// Copies everything that is alive whenever the sum is higher than ever.
class Reference {
 public:
  void born(uint64_t id, int64_t nbytes) {
    live_[id] = nbytes;
    bytes_ += nbytes;
    most_ = std::max(most_, live_.size());
    if (bytes_ > peak_) {
      maker_ = id;
      copy();
    }
  }
  void died(uint64_t id) {
    bytes_ -= live_[id];
    live_.erase(id);
  }
  void restart() {
    most_ = live_.size();
    maker_ = 0;
    copy();
  }
  void check(const LedgerPeak& peak) const {
    REQUIRE(peak.bytes == peak_);
    REQUIRE(peak.complete);
    REQUIRE(peak.maker == maker_);
    std::vector<uint64_t> expected;
    for (const auto& [id, nbytes] : at_peak_) expected.push_back(id);
    REQUIRE(ids(peak.records) == expected);
    REQUIRE(sum(peak.records) == peak_);
  }
  void check(const Counters& counters) const {
    REQUIRE(counters.current_bytes == bytes_);
    REQUIRE(counters.current_count == static_cast<int64_t>(live_.size()));
    REQUIRE(counters.peak_bytes == peak_);
    REQUIRE(counters.peak_count == static_cast<int64_t>(most_));
  }
  size_t alive_at_peak() const { return at_peak_.size(); }

 private:
  void copy() {
    peak_ = bytes_;
    at_peak_ = live_;
  }

  std::map<uint64_t, int64_t> live_, at_peak_;
  int64_t bytes_ = 0, peak_ = 0;
  uint64_t maker_ = 0;
  size_t most_ = 0;
};

TEST_CASE("born before the peak, freed after it, reborn at the same address") {
  Ledger ledger;
  CHECK(ledger.peak(kCpu).records.empty());
  const uint64_t a = bear(ledger, 0x1000, 100);
  const uint64_t b = bear(ledger, 0x2000, 50);
  ledger.note_death(0x2000);
  const uint64_t c = bear(ledger, 0x2000, 40);
  ledger.note_death(0x1000);
  LedgerPeak peak = ledger.peak(kCpu);
  CHECK(peak.bytes == 150);
  CHECK(ids(peak.records) == std::vector<uint64_t>{a, b});
  // A tie is no new peak.
  const uint64_t d = bear(ledger, 0x3000, 110);
  CHECK(ids(ledger.peak(kCpu).records) == std::vector<uint64_t>{a, b});
  const uint64_t e = bear(ledger, 0x4000, 1);
  peak = ledger.peak(kCpu);
  CHECK(peak.bytes == 151);
  CHECK(ids(peak.records) == std::vector<uint64_t>{c, d, e});
  ledger.note_death(0x3000);
  ledger.reset_peak(kCpu);
  CHECK(ids(ledger.peak(kCpu).records) == std::vector<uint64_t>{c, e});
}

TEST_CASE("adopted storages were alive at the peak, a missed free is not at later ones") {
  Ledger ledger;
  const uint64_t a = bear(ledger, 0x1000, 100);
  ledger.note_death(0x1000);
  Ledger::Birth adopted;
  adopted.address = 0x2000;
  adopted.nbytes = 30;
  adopted.device = kCpu;
  adopted.adopted = true;
  const uint64_t b = ledger.note_birth(adopted);
  CHECK(ledger.peak(kCpu).bytes == 130);
  CHECK(ids(ledger.peak(kCpu).records) == std::vector<uint64_t>{a, b});
  ledger.note_death(0x2000);
  CHECK(sum(ledger.peak(kCpu).records) == 130);
  // 200 bytes whose free nobody reported; at the next peak they are counted, and nobody's.
  bear(ledger, 0x3000, 200);
  bear(ledger, 0x3000, 10);
  CHECK(ledger.peak(kCpu).bytes == 210);
  CHECK(sum(ledger.peak(kCpu).records) == 10);
}

TEST_CASE("what was freed while peaks were not kept is said to be missing") {
  Ledger ledger;
  bear(ledger, 0x1000, 100);
  ledger.keep_peaks(false);
  ledger.note_death(0x1000);
  LedgerPeak peak = ledger.peak(kCpu);
  CHECK(peak.bytes == 100);
  CHECK_FALSE(peak.complete);
  CHECK(ledger.tombstones() == 0);
  ledger.keep_peaks(true);
  bear(ledger, 0x2000, 101);
  ledger.note_death(0x2000);
  peak = ledger.peak(kCpu);
  CHECK(peak.complete);
  CHECK(sum(peak.records) == 101);
}

TEST_CASE("a label's peak is known again once it begins without what has no known path") {
  Ledger ledger;
  Ledger::Birth birth;
  birth.address = 0x1000;
  birth.nbytes = 100;
  birth.device = kCpu;
  birth.peak_labels = kUnknownPath;
  ledger.note_birth(birth);
  CHECK_FALSE(ledger.peak(kCpu, 0).labels_known);
  ledger.reset_peak(kCpu);
  CHECK_FALSE(ledger.peak(kCpu, 0).labels_known);
  ledger.note_death(0x1000);
  CHECK_FALSE(ledger.peak(kCpu, 0).labels_known);  // it was there meanwhile
  ledger.reset_peak(kCpu);
  CHECK(ledger.peak(kCpu, 0).labels_known);
}

TEST_CASE(
    "random programs: row for row as the reference, for two devices and labels, with few "
    "tombstones") {
  const unsigned programs = std::getenv("MEMLEDGER_FULL") != nullptr ? 1000 : 60;
  for (unsigned seed = 0; seed < programs; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Ledger ledger;
    std::array<Reference, 2> devices;
    std::array<Reference, 3> labels;  // of the CPU
    struct Live {
      uint64_t id;
      LabelSet labels;
      int device;
    };
    std::map<uintptr_t, Live> live;
    const size_t addresses = 1 + random() % 500;
    // The thread, by number alone: one thread plays them all, in an order that the reference knows.
    const uint32_t threads = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 2 + random() % 4 : 70;
    const bool has_labels = seed % 2 == 0;
    // Slowly up and down, so that there are peaks far back and peaks just now.
    double wish = 0.5;
    for (int step = 0; step < 3000; ++step) {
      if (random() % 200 == 0) wish = static_cast<double>(random() % 100) / 100;
      const uintptr_t address = (random() % addresses + 1) * 64;
      const auto there = live.find(address);
      const bool bear_it = static_cast<double>(random() % 100) / 100 < wish;
      if (there == live.end() && bear_it) {
        const int device = random() % 4 == 0;
        const LabelSet set = device == 0 && has_labels ? random() % 8 : 0;
        const auto nbytes = static_cast<int64_t>(random() % 1000);
        const uint64_t id =
            bear(ledger, address, nbytes, device == 0 ? kCpu : kCuda0, set, 1 + random() % threads);
        live[address] = {id, set, device};
        devices[device].born(id, nbytes);
        for (size_t label = 0; label < labels.size(); ++label) {
          if ((set >> label & 1) != 0) labels[label].born(id, nbytes);
        }
      } else if (there != live.end() && !bear_it) {
        REQUIRE(ledger
                    .note_death(address, {this_thread().thread,
                                          1 + static_cast<uint32_t>(random() % threads)})
                    .has_value());
        devices[there->second.device].died(there->second.id);
        for (size_t label = 0; label < labels.size(); ++label) {
          if ((there->second.labels >> label & 1) != 0) labels[label].died(there->second.id);
        }
        live.erase(there);
      }
      if (random() % 1000 == 0) {
        ledger.reset_peak(kCpu);
        devices[0].restart();
        for (Reference& label : labels) label.restart();
      }
      if (random() % 500 == 0) devices[0].check(ledger.counters(kCpu));
      if (random() % 50 != 0) continue;
      devices[0].check(ledger.peak(kCpu));
      devices[1].check(ledger.peak(kCuda0));
      size_t wanted = devices[0].alive_at_peak() + devices[1].alive_at_peak();
      for (size_t label = 0; label < labels.size(); ++label) {
        labels[label].check(ledger.peak(kCpu, label));
        wanted += labels[label].alive_at_peak();
      }
      REQUIRE(ledger.tombstones() <= 2 * wanted + 2 * Ledger::kShards * 17);
    }
  }
}

TEST_CASE("who was alive on one device is found without room for what lives on the others") {
  constexpr size_t kOthers = 200000;
  const auto most_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  Ledger ledger;
  for (size_t i = 0; i < kOthers; ++i) bear(ledger, 0x1000 + 64 * i, 8);
  for (size_t i = 0; i < 10; ++i) bear(ledger, 0x900000000 + 64 * i, 8, kCuda0);
  const int64_t before = most_kib();
  CHECK(ledger.peak(kCuda0).records.size() == 10);
  CHECK(most_kib() - before < static_cast<int64_t>(kOthers * sizeof(StorageRecord) / 1024 / 4));
}

// With labels each event takes the device's lock; without, hardly any does.
TEST_CASE("threads: the rows add up to the peak at any time") {
  bool has_labels = false;
  SUBCASE("labels") { has_labels = true; }
  SUBCASE("no labels") {}
  Ledger ledger;
  constexpr int kThreads = 4;
  constexpr int kSteps = 20000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&ledger, &running, has_labels, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      std::vector<uintptr_t> mine;
      for (int step = 0; step < kSteps; ++step) {
        // More and more of them, so that peaks go on coming, with times between in which none does.
        const size_t most = 10 + static_cast<size_t>(step) / 1000 * 10;
        if (mine.size() < most && random() % 2 == 0) {
          mine.push_back((static_cast<uintptr_t>(t + 1) << 40) + static_cast<uintptr_t>(step) * 64);
          bear(ledger, mine.back(), 1 + static_cast<int64_t>(random() % 100), kCpu,
               has_labels ? LabelSet{1} << t : 0);
        } else if (!mine.empty()) {
          std::swap(mine[random() % mine.size()], mine.back());
          ledger.note_death(mine.back());
          mine.pop_back();
        }
      }
      for (const uintptr_t address : mine) ledger.note_death(address);
      --running;
    });
  }
  int64_t last = 0;
  while (running.load() > 0) {
    const LedgerPeak peak = ledger.peak(kCpu);
    REQUIRE(peak.complete);
    REQUIRE(sum(peak.records) == peak.bytes);
    REQUIRE(peak.bytes >= last);
    last = peak.bytes;
    const LedgerPeak of_label = ledger.peak(kCpu, 2);
    REQUIRE(sum(of_label.records) == of_label.bytes);
  }
  for (std::thread& thread : threads) thread.join();
  const LedgerPeak peak = ledger.peak(kCpu);
  CHECK(sum(peak.records) == peak.bytes);
  CHECK(peak.bytes == ledger.counters(kCpu).peak_bytes);
  CHECK(ledger.counters(kCpu).current_bytes == 0);
}

}  // namespace
}  // namespace memledger::core
