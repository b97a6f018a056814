// Many threads that allocate, and free what others allocated, with snapshots and peaks read
// meanwhile; at each quiet point the table, the counter and a count of the test's own agree. Ten
// million operations with MEMLEDGER_FULL=1.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <random>

#include "registry/core/ledger.h"
#include "tests/support/storm.h"

namespace memledger::core {
namespace {

constexpr DeviceKey kCpu{0, -1};

TEST_CASE("64 threads free each other's storages") {
  Ledger ledger;
  std::array<std::atomic<int64_t>, testing::kStormPlaces> bytes_at{};  // 0: nobody, -1: in between
  std::atomic<int64_t> own_count{0};
  const auto enter = [&](int number) {
    return [&, number](std::mt19937& random) {
      const size_t place = random() % testing::kStormPlaces;
      const uintptr_t address = (place + 1) * 64;
      int64_t found = bytes_at[place].load();
      if (found < 0 || !bytes_at[place].compare_exchange_strong(found, -1)) return;
      if (found == 0) {
        Ledger::Birth birth;
        birth.address = address;
        birth.nbytes = 1 + static_cast<int64_t>(random() % 4096);
        birth.device = kCpu;
        if (number % 2 == 0) birth.peak_labels = LabelSet{1} << (number % 4);
        BornEntry born = {};
        ledger.note_birth(birth, nullptr, &born);
        const int64_t shape[] = {birth.nbytes, 7};
        for (int times = static_cast<int>(random() % 3); times > 0; --times)
          ledger.describe(address, 0, 0, shape, 2, /*dtype=*/6, &own_count, born);
        own_count.fetch_add(birth.nbytes);
        bytes_at[place].store(birth.nbytes);
      } else {
        const auto death = ledger.note_death(address);
        own_count.fetch_sub(death ? death->nbytes : 0);
        bytes_at[place].store(0);
      }
    };
  };
  const auto bytes_of = [](const RecordList& records) {
    int64_t bytes = 0;
    for (const StorageRecord& record : records) {
      bytes += record.nbytes;
      if (!record.described) continue;
      CHECK(record.dtype == 6);
      CHECK(record.shape == Shape{record.nbytes, 7});
    }
    return bytes;
  };
  const uint64_t cursor = ledger.open_cursor();
  const auto read = [&] {
    const LedgerSnapshot snapshot = ledger.snapshot();
    int64_t bytes = bytes_of(snapshot.records);
    if (!snapshot.devices.empty()) CHECK(bytes == snapshot.devices[0].counters.current_bytes);
    const LedgerPeak peak = ledger.peak(kCpu);
    bytes = bytes_of(peak.records);
    CHECK(bytes == peak.bytes);
    ledger.changes_since(cursor);
  };
  const auto look = [&] {
    const LedgerSnapshot snapshot = ledger.snapshot();
    int64_t bytes = 0;
    for (const StorageRecord& record : snapshot.records) bytes += record.nbytes;
    CHECK(bytes == own_count.load());
    CHECK(ledger.counters(kCpu).current_bytes == own_count.load());
    CHECK(snapshot.records.size() == static_cast<size_t>(ledger.counters(kCpu).current_count));
  };
  testing::storm(enter, read, look);
  ledger.close_cursor(cursor);
  CHECK(ledger.dropped_records() == 0);
  const LedgerPeak peak = ledger.peak(kCpu);
  CHECK(ledger.tombstones() <= 2 * peak.records.size() * 5 + Ledger::kShards * 17);
}

}  // namespace
}  // namespace memledger::core
