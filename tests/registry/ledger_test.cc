#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "registry/core/ledger.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "registry/core/address_index.h"
#include "registry/core/thread_context.h"
#include "tests/registry/records.h"

namespace memledger::core {
namespace {

TEST_SUITE("ledger") {
  TEST_CASE("the index of addresses agrees with a map") {
    constexpr size_t kSlots = 500;
    std::vector<uintptr_t> address_of(kSlots);
    std::unordered_map<uintptr_t, uint32_t> expected;
    std::vector<uint32_t> unused;
    for (uint32_t slot = 0; slot < kSlots; ++slot) unused.push_back(slot);
    AddressIndex index;
    const auto look_up = [&](uintptr_t address) {
      return index.find(address, [&](uint32_t slot) { return address_of[slot]; });
    };
    CHECK(look_up(0x1000).slot == AddressIndex::kNone);
    std::mt19937 random(7);
    for (int turn = 0; turn < 20000; ++turn) {
      // Addresses within 64 bytes have one hash.
      const uintptr_t address = 0x7f0000000000 + random() % 500 * 16;
      if (expected.count(address) == 0) {
        index.make_room();
        const AddressIndex::Found found = look_up(address);
        REQUIRE(found.slot == AddressIndex::kNone);
        address_of[unused.back()] = address;
        index.insert(address, found.place, unused.back());
        expected[address] = unused.back();
        unused.pop_back();
      } else if (random() % 3 == 0) {
        const AddressIndex::Found found = look_up(address);
        REQUIRE(found.slot == expected[address]);
        index.erase(found.place);
        unused.push_back(found.slot);
        expected.erase(address);
      }
      REQUIRE(index.size() == expected.size());
      if (turn % 500 != 0) continue;
      for (uintptr_t i = 0; i < 500; ++i) {
        const auto there = expected.find(0x7f0000000000 + i * 16);
        REQUIRE(look_up(0x7f0000000000 + i * 16).slot ==
                (there == expected.end() ? AddressIndex::kNone : there->second));
      }
    }
  }

  TEST_CASE(
      "ids ascend in a thread, are nobody else's, and those of later instants are greater than all "
      "before") {
    Ledger ledger;
    constexpr int kThreads = 8;
    constexpr uintptr_t kEach = 1000;
    std::vector<std::vector<uint64_t>> all;
    uint64_t mark = 0;
    for (int round = 0; round < 4; ++round) {
      std::vector<std::vector<uint64_t>> made(kThreads);
      std::vector<std::thread> threads;
      for (uintptr_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          for (uintptr_t i = 0; i < kEach; ++i) {
            const uintptr_t address = (t + 1) << 26 | (i + 1) * 64;
            made[t].push_back(bear(ledger, address, 8));
            ledger.note_death(address);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::vector<uint64_t>& ids : made) {
        CHECK(std::is_sorted(ids.begin(), ids.end()));
        CHECK(*std::min_element(ids.begin(), ids.end()) >= mark);
        all.push_back(ids);
      }
      // This thread's own ids, of a block that it began before.
      CHECK(bear(ledger, 64 * 64, 8) >= mark);
      uint64_t newest = 0;
      for (const auto& ids : all) newest = std::max(newest, ids.back());
      if (round % 2 == 0) {
        mark = ledger.next_id();
      } else {
        ledger.snapshot();
        mark = newest + 1;
      }
      CHECK(mark > newest);
      ledger.note_death(64 * 64);
    }
    std::set<uint64_t> different;
    for (const auto& ids : all) different.insert(ids.begin(), ids.end());
    CHECK(different.size() == 4 * kThreads * kEach);
    // Another ledger's ids begin again.
    Ledger other;
    CHECK(bear(other, 0x1000, 8) == 1);
    CHECK(bear(other, 0x2000, 8) == 2);
  }

  TEST_CASE("a cursor may be moved without telling what happened") {
    Ledger ledger;
    const uint64_t cursor = ledger.open_cursor();
    bear(ledger, 0x1000, 64);
    const LedgerChanges first = ledger.changes_since(cursor, /*rows=*/false);
    CHECK(first.born.empty());
    CHECK(first.from_snapshot);
    REQUIRE(first.devices.size() == 1);
    CHECK(first.devices[0].table_bytes == 64);
    bear(ledger, 0x2000, 32);
    ledger.note_death(0x1000);
    CHECK(ledger.changes_since(cursor, /*rows=*/false).devices[0].table_bytes == 32);
    CHECK(ledger.tombstones() == 1);  // of the peak, not of the cursor
    ledger.note_death(0x2000);
    const LedgerChanges later = ledger.changes_since(cursor);
    CHECK(later.born.empty());
    CHECK(sum(later.died) == 32);
  }

  TEST_CASE(
      "shapes of many sizes and of large ones are kept whole, and go when a slot is used again") {
    Ledger ledger;
    const auto shape_now = [&] {
      const LedgerSnapshot snapshot = ledger.snapshot();
      REQUIRE(snapshot.records.size() == 1);
      const Shape& shape = snapshot.records[0].shape;
      return std::vector<int64_t>(shape.begin(), shape.end());
    };
    bear(ledger, 0x1000, 64);
    CHECK(shape_now().empty());
    const int64_t most_small = std::numeric_limits<uint32_t>::max();
    const std::vector<std::vector<int64_t>> shapes = {{2, 3},
                                                      {most_small, 0, 1, most_small},
                                                      {most_small + 1},
                                                      {1, 2, 3, 4, 5, 6, 7},
                                                      {int64_t{1} << 62, 0},
                                                      {},
                                                      std::vector<int64_t>(300, 1),
                                                      {5, 5, 5, 5}};
    for (const std::vector<int64_t>& shape : shapes) {
      ledger.describe(0x1000, 0, 0, shape.data(), shape.size(), 6);
      CHECK(shape_now() == shape);
    }
    ledger.note_death(0x1000);
    CHECK(ledger.peak(kCpu).records[0].shape.size() == 4);
    ledger.reset_peak(kCpu);
    bear(ledger, 0x1000, 64);
    CHECK(shape_now().empty());
  }

  TEST_CASE("what many deaths leave behind goes when nobody wants it any more") {
    // All in one shard or not: each has more of them than one death sweeps.
    constexpr size_t kStorages = 20000;
    Ledger ledger;
    const uint64_t cursor = ledger.open_cursor();
    for (size_t i = 1; i <= kStorages; ++i) bear(ledger, i * 64, 64);
    ledger.changes_since(cursor);
    for (size_t i = 1; i <= kStorages; ++i) ledger.note_death(i * 64);
    CHECK(ledger.tombstones() == kStorages);
    ledger.reset_peak(kCpu);
    CHECK(ledger.changes_since(cursor).died.size() == kStorages);
    ledger.changes_since(cursor, /*rows=*/false);
    CHECK(ledger.tombstones() == 0);

    // A new peak makes those of the one before worthless, and deaths sweep them out.
    ledger.close_cursor(cursor);
    for (size_t round = 1; round <= 5; ++round) {
      const size_t begin = round * kStorages;
      const auto nbytes = static_cast<int64_t>(64 * round);
      for (size_t i = begin; i < begin + kStorages; ++i) bear(ledger, i * 64, nbytes);
      for (size_t i = begin; i < begin + kStorages; ++i) ledger.note_death(i * 64);
      CHECK(ledger.peak(kCpu).records.size() == kStorages);
    }
    CHECK(ledger.tombstones() <= kStorages * 5 / 2);
  }

  TEST_CASE("the newest id is the last that was born, whatever ids were left out") {
    Ledger ledger;
    CHECK(ledger.newest_id() == 0);
    for (int i = 0; i < 200; ++i) {
      const uint64_t id = bear(ledger, 0x1000 + 0x40 * i, 64);
      if (i % 50 == 7) ledger.next_id();
      CHECK(ledger.newest_id() == id);
    }
    std::thread([&] { bear(ledger, 0x100000, 64); }).join();
    const uint64_t above = ledger.newest_id();
    uint64_t highest = 0;
    ledger.visit_live(DeviceKey{}, [&](const TableEntry& record) {
      highest = std::max<uint64_t>(highest, record.id);
    });
    CHECK(above >= highest);
    CHECK(above < highest + 64);
  }

  TEST_CASE("a told parameter is one until it ends, however many were told") {
    Ledger ledger;
    const uint64_t kept = bear(ledger, 0x1000, 64);
    ledger.mark_told_parameter(0x1000);
    uint64_t ended = 0;
    for (int i = 0; i < 5000; ++i) {
      ended = bear(ledger, 0x2000, 64);
      ledger.mark_told_parameter(0x2000);
      ledger.note_death(0x2000);
    }
    CHECK(ledger.is_told_parameter(kept));
    CHECK(!ledger.is_told_parameter(ended));
    const uint64_t untold = bear(ledger, 0x2000, 64);  // where one was
    CHECK(!ledger.is_told_parameter(untold));
    CHECK(!ledger.is_told_parameter(ended));
  }

  TEST_CASE("who read a storage first stands, and only where no layer made it") {
    Ledger ledger;
    const uint64_t weight = bear(ledger, 0x1000, 64);
    const uint64_t input = bear(ledger, 0x2000, 32);
    Ledger::Birth of_layer;
    of_layer.address = 0x3000;
    of_layer.nbytes = 16;
    of_layer.birthplace.parameter = weight;
    const uint64_t output = ledger.note_birth(of_layer);
    CHECK(!ledger.any_told_parameter());
    ledger.mark_told_parameter(0x1000);
    ledger.mark_told_parameter(0x9000);  // nothing there
    CHECK(ledger.any_told_parameter());
    CHECK(ledger.told_parameter_at(0x1000) == weight);
    CHECK(ledger.told_parameter_at(0x2000) == 0);
    CHECK(ledger.told_parameter_at(0x9000) == 0);
    ledger.note_consumer(0x2000, input);  // not itself
    ledger.note_consumer(0x2000, weight);
    ledger.note_consumer(0x2000, output);
    ledger.note_consumer(0x3000, output);
    ledger.note_consumer(0x3000, weight);
    ledger.note_consumer(0x9000, weight);
    uint64_t of_input = 0, of_output = 1;
    ledger.visit_live(DeviceKey{}, [&](const TableEntry& record) {
      if (record.id == input) of_input = record.consumer();
      if (record.id == output) of_output = record.consumer();
    });
    CHECK(of_input == weight);
    CHECK(of_output == 0);
  }

  TEST_CASE(
      "a library's workspace is marked while it lives, and its end takes it out of the sums") {
    Ledger ledger;
    const uint64_t cursor = ledger.open_cursor();
    const uint64_t workspace = bear(ledger, 0x1000, 64, kCuda0);
    bear(ledger, 0x2000, 32, kCuda0);
    const int64_t size = 8;
    ledger.describe(0x2000, 1, 1, &size, 1, /*dtype=*/0);
    Ledger::Birth raw;
    raw.address = 0x3000;
    raw.nbytes = 16;
    raw.device = kCuda0;
    raw.raw_block = true;
    ledger.note_birth(raw);

    CHECK(ledger.mark_library_workspace(0x1000, kCuda0) == workspace);
    CHECK(ledger.mark_library_workspace(0x1000, kCuda0) == workspace);  // counted once
    CHECK(ledger.mark_library_workspace(0x2000, kCuda0) == 0);  // a tensor came to the address
    CHECK(ledger.mark_library_workspace(0x3000, kCuda0) == 0);
    CHECK(ledger.mark_library_workspace(0x1000, kCpu) == 0);
    CHECK(ledger.mark_library_workspace(0x4000, kCuda0) == 0);
    const LedgerChanges first = ledger.changes_since(cursor);
    REQUIRE(first.devices.size() == 1);
    CHECK(first.devices[0].table_bytes == 64 + 32 + 16);
    CHECK(first.devices[0].library_workspace_bytes == 64);
    CHECK(first.devices[0].raw_block_bytes == 16);

    ledger.note_death(0x1000);
    ledger.note_death(0x3000);
    bear(ledger, 0x1000, 8, kCuda0);  // no workspace, though it is where one was
    const LedgerChanges later = ledger.changes_since(cursor);
    CHECK(later.devices[0].library_workspace_bytes == 0);
    CHECK(later.devices[0].raw_block_bytes == 0);
    REQUIRE(ids(later.died).size() == 2);
    for (const StorageRecord& record : later.died)
      CHECK(record.library_workspace == (record.id == workspace));
    for (const StorageRecord& record : later.born) CHECK_FALSE(record.library_workspace);
  }

  TEST_CASE("what takes a freed storage's place begins anew") {
    Ledger ledger;
    ledger.keep_peaks(false);  // no tombstone: its entry is free at once
    bear(ledger, 0x1000, 64);
    ledger.mark_told_parameter(0x1000);
    ledger.note_consumer(0x1000, 17);
    ledger.mark_parameter_like(0x1000);
    ledger.note_death(0x1000);
    const uint64_t later = bear(ledger, 0x1000, 64);
    CHECK(ledger.told_parameter_at(0x1000) == 0);
    CHECK(!ledger.is_parameter_like(0x1000));
    const LedgerSnapshot snapshot = ledger.snapshot();
    REQUIRE(snapshot.records.size() == 1);
    CHECK(snapshot.records[0].id == later);
    CHECK(snapshot.records[0].consumer == 0);
    CHECK(!snapshot.records[0].told_parameter);
  }

  TEST_CASE("a description finds its storage wherever it is looked for first") {
    Ledger ledger;
    Ledger::Birth birth;
    birth.address = 0x1000;
    birth.nbytes = 64;
    birth.device = kCpu;
    BornEntry first = {}, second = {};
    ledger.note_birth(birth, nullptr, &first);
    ledger.note_death(0x1000);  // stays as a tombstone of the peak, at its place
    const uint64_t id = ledger.note_birth(birth, nullptr, &second);
    CHECK(first.entry != second.entry);
    const int64_t sizes[] = {4, 4};
    int64_t size = 0;
    for (const BornEntry& own : {first, second, BornEntry{}, second}) {
      const int64_t now[] = {++size, 4};
      ledger.describe(0x1000, 0, 0, now, 2, 6, nullptr, own);
      const LedgerSnapshot snapshot = ledger.snapshot();
      REQUIRE(snapshot.records.size() == 1);
      CHECK(snapshot.records[0].id == id);
      CHECK(snapshot.records[0].shape[0] == now[0]);
    }
    CHECK_FALSE(ledger.describe(0x2000, 0, 0, sizes, 2, 6, nullptr, second));
    REQUIRE(ledger.peak(kCpu).records.size() == 1);
    CHECK_FALSE(ledger.peak(kCpu).records[0].described);
  }

  TEST_CASE("an id is above its thread's earlier ones, and at most 1 100 below those of others") {
    Ledger ledger;
    uint64_t highest = 0;
    std::array<uint64_t, 2> last = {};
    bool rises = true, is_near = true;
    uintptr_t address = 0;
    const auto be_born = [&](size_t thread) {
      const uint64_t id = bear(ledger, address += 64, 1);
      rises = rises && id > last[thread];
      is_near = is_near && id + 1100 > highest;
      last[thread] = id;
      highest = std::max(highest, id);
    };
    // One thread has a birth for each 127 of the other, in turn.
    constexpr int kRounds = 500;
    std::atomic<size_t> turn{0};
    const auto wait_for = [&](size_t thread) {
      while (turn != thread) std::this_thread::yield();
    };
    std::thread other([&] {
      for (int round = 0; round < kRounds; ++round) {
        wait_for(1);
        for (int i = 0; i < 127; ++i) be_born(1);
        turn = 0;
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      be_born(0);
      turn = 1;
      wait_for(0);
    }
    other.join();
    CHECK(rises);
    CHECK(is_near);
    ledger.snapshot();
    CHECK(bear(ledger, address + 64, 1) > highest);
  }

  TEST_CASE("an address is reused, an id never") {
    Ledger ledger;
    const uint64_t first = bear(ledger, 0x1000, 64);
    REQUIRE(ledger.note_death(0x1000).has_value());
    const uint64_t second = bear(ledger, 0x1000, 32);
    CHECK(second > first);
    CHECK(ledger.id_at(0x1000) == second);
    CHECK(sum(ledger.snapshot().records) == 32);
  }

  TEST_CASE("a death gives back the size and the deleter that were noted, and only once") {
    Ledger ledger;
    int deleter = 0;
    Ledger::Birth birth;
    birth.address = 0x40;
    birth.nbytes = 7;
    birth.base_deleter = &deleter;
    const uint64_t id = ledger.note_birth(birth);
    const auto death = ledger.note_death(0x40);
    REQUIRE(death.has_value());
    CHECK(death->id == id);
    CHECK(death->nbytes == 7);
    CHECK(death->base_deleter == &deleter);
    CHECK_FALSE(ledger.note_death(0x40).has_value());
  }

  TEST_CASE(
      "a birth over a live address drops the old record, counts it, and shows as a difference to "
      "the counter") {
    Ledger ledger;
    bear(ledger, 0x80, 100);
    bear(ledger, 0x80, 10);
    CHECK(ledger.dropped_records() == 1);
    const LedgerSnapshot snapshot = ledger.snapshot();
    CHECK(snapshot.records.size() == 1);
    REQUIRE(snapshot.devices.size() == 1);
    CHECK(snapshot.devices[0].table_bytes == 10);
    CHECK(snapshot.devices[0].counters.current_bytes == 110);
  }

  TEST_CASE("devices are counted apart") {
    Ledger ledger;
    bear(ledger, 0x100, 5);
    bear(ledger, 0x200, 6, kCuda0);
    bear(ledger, 0x300, 7, kCuda0);
    ledger.note_death(0x200);
    CHECK(ledger.counters(kCpu).current_bytes == 5);
    const Counters cuda = ledger.counters(kCuda0);
    CHECK(cuda.current_bytes == 7);
    CHECK(cuda.peak_bytes == 13);
    CHECK(cuda.peak_count == 2);
    CHECK(cuda.allocated_bytes == 13);
    CHECK(cuda.freed_bytes == 6);
    CHECK(cuda.freed_count == 1);
    CHECK(ledger.counters({1, 1}).allocated_count == 0);
    const LedgerSnapshot snapshot = ledger.snapshot();
    REQUIRE(snapshot.devices.size() == 2);
    CHECK(snapshot.devices[0].device == kCpu);
    CHECK(snapshot.devices[1].table_bytes == 7);
  }

  TEST_CASE("reset_peak starts the peak at what is alive") {
    Ledger ledger;
    bear(ledger, 0x100, 50);
    bear(ledger, 0x200, 50);
    ledger.note_death(0x200);
    CHECK(ledger.counters(kCpu).peak_bytes == 100);
    ledger.reset_peak(kCpu);
    CHECK(ledger.counters(kCpu).peak_bytes == 50);
  }

  TEST_CASE("reset_peak never leaves the peak below what is alive, whatever other threads do") {
    Ledger ledger;
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop) {
        bear(ledger, 0x5000, 100);
        ledger.note_death(0x5000);
      }
    });
    for (int i = 0; i < 20000; ++i) {
      ledger.reset_peak(kCpu);
      bear(ledger, 0x6000, 7);
      REQUIRE(ledger.counters(kCpu).peak_bytes >= 7);
      ledger.note_death(0x6000);
    }
    stop = true;
    other.join();
  }

  TEST_CASE("an adopted storage is in current and peak, never in allocated") {
    Ledger ledger;
    bear(ledger, 0x100, 50);
    ledger.note_death(0x100);
    Ledger::Birth birth;
    birth.address = 0x200;
    birth.nbytes = 30;
    birth.adopted = true;
    ledger.note_birth(birth);
    CHECK(ledger.counters(kCpu).current_bytes == 30);
    CHECK(ledger.counters(kCpu).peak_bytes == 80);
    CHECK(ledger.counters(kCpu).allocated_bytes == 50);
    CHECK(ledger.snapshot().devices[0].adopted_bytes == 30);
  }

  TEST_CASE(
      "the result of an operator replaces the description of the buffer it began with, a later "
      "view does not") {
    Ledger ledger;
    Ledger::Birth birth;
    birth.address = 0x40;
    birth.nbytes = 24;
    birth.birthplace.thread = 3;
    birth.birthplace.op_sequence = 9;
    ledger.note_birth(birth);
    const int64_t buffer[] = {6};
    const int64_t result[] = {2, 3};
    const int64_t view[] = {3};
    ledger.describe(0x40, 3, 9, buffer, 1, 6);
    ledger.describe(0x40, 3, 9, result, 2, 6);
    ledger.describe(0x40, 3, 10, view, 1, 6);
    ledger.describe(0x40, 4, 9, view, 1, 6);
    const LedgerSnapshot snapshot = ledger.snapshot();
    REQUIRE(snapshot.records.size() == 1);
    CHECK(std::vector<int64_t>(snapshot.records[0].shape.begin(),
                               snapshot.records[0].shape.end()) == std::vector<int64_t>{2, 3});
  }

  TEST_CASE("changes since a cursor are coalesced") {
    Ledger ledger;
    const uint64_t old = bear(ledger, 0x100, 1);
    const uint64_t cursor = ledger.open_cursor();
    LedgerChanges changes = ledger.changes_since(cursor);
    CHECK(changes.from_snapshot);
    CHECK(ids(changes.born) == std::vector<uint64_t>{old});

    SUBCASE("nothing happened: nothing is reported") {
      changes = ledger.changes_since(cursor);
      CHECK_FALSE(changes.from_snapshot);
      CHECK(changes.born.empty());
      CHECK(changes.died.empty());
    }
    SUBCASE("born and died in between appears nowhere") {
      bear(ledger, 0x200, 2);
      ledger.note_death(0x200);
      changes = ledger.changes_since(cursor);
      CHECK(changes.born.empty());
      CHECK(changes.died.empty());
    }
    SUBCASE("freed and replaced at the same address is one of each") {
      ledger.note_death(0x100);
      const uint64_t replacement = bear(ledger, 0x100, 1);
      changes = ledger.changes_since(cursor);
      CHECK(ids(changes.born) == std::vector<uint64_t>{replacement});
      CHECK(ids(changes.died) == std::vector<uint64_t>{old});
    }
    SUBCASE("a death is reported once") {
      ledger.note_death(0x100);
      CHECK(ledger.changes_since(cursor).died.size() == 1);
      CHECK(ledger.changes_since(cursor).died.empty());
    }
    SUBCASE("two cursors see the same changes at their own pace") {
      const uint64_t other = ledger.open_cursor();
      ledger.changes_since(other);
      ledger.note_death(0x100);
      const uint64_t second = bear(ledger, 0x200, 2);
      CHECK(ids(ledger.changes_since(cursor).died) == std::vector<uint64_t>{old});
      ledger.note_death(0x200);
      changes = ledger.changes_since(cursor);
      CHECK(ids(changes.died) == std::vector<uint64_t>{second});
      changes = ledger.changes_since(other);
      CHECK(changes.born.empty());
      CHECK(ids(changes.died) == std::vector<uint64_t>{old});
      ledger.close_cursor(other);
    }
    ledger.close_cursor(cursor);
  }

  // The slow way: every event replayed against plain sets.
  TEST_CASE("random programs: changes and snapshots equal a full record of events") {
    for (uint32_t seed = 0; seed < 200; ++seed) {
      CAPTURE(seed);
      std::mt19937 random(seed);
      Ledger ledger;
      std::unordered_map<uintptr_t, uint64_t> live;
      struct Reader {
        uint64_t cursor;
        std::set<uint64_t> saw;
      };
      std::vector<Reader> readers(3);
      for (Reader& reader : readers) reader.cursor = ledger.open_cursor();
      for (int step = 0; step < 400; ++step) {
        const uintptr_t address = (random() % 64 + 1) * 64;
        const auto there = live.find(address);
        if (there == live.end()) {
          live[address] = bear(ledger, address, static_cast<int64_t>(random() % 1000));
        } else {
          REQUIRE(ledger.note_death(address).has_value());
          live.erase(there);
        }
        if (random() % 10 != 0) continue;
        std::set<uint64_t> now;
        for (const auto& [where, id] : live) now.insert(id);
        Reader& reader = readers[random() % readers.size()];
        const LedgerChanges changes = ledger.changes_since(reader.cursor);
        std::vector<uint64_t> born, died;
        std::set_difference(now.begin(), now.end(), reader.saw.begin(), reader.saw.end(),
                            std::back_inserter(born));
        std::set_difference(reader.saw.begin(), reader.saw.end(), now.begin(), now.end(),
                            std::back_inserter(died));
        REQUIRE(ids(changes.born) == born);
        REQUIRE(ids(changes.died) == died);
        reader.saw = now;
        const LedgerSnapshot snapshot = ledger.snapshot();
        REQUIRE(ids(snapshot.records) == std::vector<uint64_t>(now.begin(), now.end()));
        REQUIRE(sum(snapshot.records) == ledger.counters(kCpu).current_bytes);
      }
    }
  }

  TEST_CASE("every snapshot taken while threads allocate and free is of one instant") {
    Ledger ledger;
    constexpr int kThreads = 4;
    int steps = 20000;
    // So many that a shard's records are copied in several goes; each thread replaces its own.
    int standing = 0;
    SUBCASE("few storages") {}
    SUBCASE("many storages") {
      steps = 4000;
      standing = 15000;
    }
    const auto standing_at = [](int t, int i) {
      return (static_cast<uintptr_t>(t + 1) << 44) + static_cast<uintptr_t>(i) * 64;
    };
    for (int t = 0; t < kThreads; ++t) {
      for (int i = 0; i < standing; ++i) bear(ledger, standing_at(t, i), 32);
    }
    std::atomic<int> running{kThreads};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&ledger, &running, &standing_at, steps, standing, t] {
        std::mt19937 random(static_cast<uint32_t>(t));
        // Pairs of 8 and 16 bytes: the second is made after the first and freed before it.
        for (int step = 0; step < steps; ++step) {
          if (standing > 0) {
            const uintptr_t replaced =
                standing_at(t, static_cast<int>(random() % static_cast<unsigned>(standing)));
            ledger.note_death(replaced);
            bear(ledger, replaced, 32);
          }
          const uintptr_t base = (static_cast<uintptr_t>(t + 1) << 40) + (random() % 4096) * 4096;
          bear(ledger, base, 8);
          bear(ledger, base + 64, 16);
          ledger.note_death(base + 64);
          ledger.note_death(base);
        }
        --running;
      });
    }
    const uint64_t cursor = ledger.open_cursor();
    std::set<uint64_t> seen;
    int64_t snapshots = 0;
    while (running.load() > 0) {
      const LedgerSnapshot snapshot = ledger.snapshot();
      ++snapshots;
      int64_t small = 0, large = 0, stood = 0;
      for (const StorageRecord& record : snapshot.records)
        ++(record.nbytes == 8 ? small : record.nbytes == 16 ? large : stood);
      REQUIRE(large <= small);
      REQUIRE(small <= kThreads);
      REQUIRE(stood <= kThreads * standing);
      REQUIRE(stood >= kThreads * (standing - 1));
      REQUIRE(snapshot.devices.size() <= 1);
      if (!snapshot.devices.empty()) {
        REQUIRE(snapshot.devices[0].table_bytes == sum(snapshot.records));
        REQUIRE(snapshot.devices[0].counters.current_bytes == sum(snapshot.records));
      }
      const LedgerChanges changes = ledger.changes_since(cursor);
      for (const StorageRecord& record : changes.died) REQUIRE(seen.erase(record.id) == 1);
      for (const StorageRecord& record : changes.born) REQUIRE(seen.insert(record.id).second);
      int64_t alive = 0;
      if (!changes.devices.empty()) alive = changes.devices[0].counters.current_count;
      REQUIRE(static_cast<int64_t>(seen.size()) == alive);
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(snapshots > 0);
    CHECK(ledger.counters(kCpu).current_bytes == 32 * kThreads * standing);
    CHECK(ledger.counters(kCpu).allocated_count ==
          kThreads * (standing + (standing > 0 ? 3 : 2) * steps));
    CHECK(ledger.dropped_records() == 0);
  }
}

TEST_SUITE("names") {
  TEST_CASE("equal strings share an id, and it gives the string back") {
    NameTable names;
    const NameId add = names.intern("aten::add");
    CHECK(names.intern(std::string("aten::") + "add") == add);
    CHECK(names.intern("aten::mul") != add);
    CHECK(names.name(add) == "aten::add");
    CHECK(names.name(0).empty());
  }

  TEST_CASE("past the limit new strings read as too many, old ones as before") {
    NameTable names;
    const NameId first = names.intern("first");
    for (size_t i = 0; i < NameTable::kMaxNames; ++i) names.intern(std::to_string(i));
    CHECK(names.name(names.intern("one more")) == NameTable::kOverflow);
    CHECK(names.intern("first") == first);
  }

  TEST_CASE("the thread's cache compares the text, not only its address") {
    NameTable names;
    ThreadContext& thread = this_thread();
    char text[8] = "one";
    const NameId one = intern_cached(thread, names, text);
    CHECK(intern_cached(thread, names, text) == one);
    std::copy_n("two", 4, text);
    CHECK(names.name(intern_cached(thread, names, text)) == "two");
  }
}

}  // namespace
}  // namespace memledger::core
