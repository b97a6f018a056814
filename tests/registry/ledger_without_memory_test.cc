// Reading the ledger while memory runs out, at every allocation in turn. Own binary: it replaces
// operator new.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdint>
#include <new>

#include "registry/core/ledger.h"
#include "tests/registry/records.h"
#include "tests/support/failing_new.h"

namespace memledger::core {
namespace {

// After each failure `check` looks at what is left. Returns how often it failed.
template <typename Read, typename Check>
int until_it_succeeds(const Read& read, const Check& check) {
  const auto after_failure = [&](int failing) {
    CAPTURE(failing);
    check();
    REQUIRE(failing < 100);
  };
  return testing::until_it_succeeds(read, after_failure, testing::Refused::kAll);
}

// So that nothing that dies later is kept for the peak's sake, only for readers. Returns the
// tombstones there are.
size_t have_a_peak(Ledger& ledger) {
  bear(ledger, 64 * 5000, 1 << 20);
  ledger.note_death(64 * 5000);
  return ledger.tombstones();
}

TEST_SUITE("ledger without memory") {
  TEST_CASE(
      "changes are told by the call that succeeds, all of them, and no tombstone stays for one "
      "that failed") {
    Ledger ledger;
    const size_t tombstones = have_a_peak(ledger);
    for (uintptr_t i = 1; i <= 100; ++i) bear(ledger, 64 * i, 8);
    const uint64_t cursor = ledger.open_cursor();
    CHECK(ledger.changes_since(cursor).born.size() == 100);
    for (uintptr_t i = 1; i <= 30; ++i) ledger.note_death(64 * i);
    for (uintptr_t i = 201; i <= 220; ++i) bear(ledger, 64 * i, 8);
    uintptr_t next = 301;
    size_t born = 20;
    LedgerChanges changes;
    const int failed = until_it_succeeds([&] { changes = ledger.changes_since(cursor); },
                                         [&] {
                                           bear(ledger, 64 * next++, 8);
                                           ++born;
                                           // Born and died since the last success: reported by
                                           // nobody, and a tombstone of none.
                                           bear(ledger, 64 * 1000, 8);
                                           ledger.note_death(64 * 1000);
                                           CHECK(ledger.tombstones() == tombstones + 30);
                                         });
    CHECK(failed > 3);
    CHECK_FALSE(changes.from_snapshot);
    CHECK(changes.born.size() == born);
    CHECK(changes.died.size() == 30);
    CHECK(ledger.tombstones() == tombstones);
    ledger.note_death(64 * 50);
    CHECK(ledger.changes_since(cursor).died.size() == 1);
    ledger.close_cursor(cursor);
    CHECK(ledger.tombstones() == tombstones);
  }

  TEST_CASE("a cursor's first use that fails is still a first use") {
    Ledger ledger;
    for (uintptr_t i = 1; i <= 10; ++i) bear(ledger, 64 * i, 8);
    const uint64_t cursor = ledger.open_cursor();
    LedgerChanges changes;
    until_it_succeeds([&] { changes = ledger.changes_since(cursor); }, [] {});
    CHECK(changes.from_snapshot);
    CHECK(changes.born.size() == 10);
    ledger.close_cursor(cursor);
  }

  TEST_CASE("snapshots that fail leave no pin, and the next one is right") {
    Ledger ledger;
    const size_t tombstones = have_a_peak(ledger);
    for (uintptr_t i = 1; i <= 100; ++i) bear(ledger, 64 * i, 8);
    LedgerSnapshot snapshot;
    const int failed = until_it_succeeds([&] { snapshot = ledger.snapshot(); },
                                         [&] {
                                           // Were the instant of the failed one pinned, its death
                                           // would leave a tombstone.
                                           ledger.note_death(64 * 100);
                                           CHECK(ledger.tombstones() == tombstones);
                                           bear(ledger, 64 * 100, 8);
                                         });
    CHECK(failed > 2);
    CHECK(snapshot.records.size() == 100);
    CHECK(snapshot.devices.at(0).table_bytes == 800);
  }

  TEST_CASE("peaks that cannot be read stay as they were") {
    Ledger ledger;
    for (uintptr_t i = 1; i <= 100; ++i) bear(ledger, 64 * i, 8);
    for (uintptr_t i = 1; i <= 40; ++i) ledger.note_death(64 * i);
    LedgerPeak peak;
    const int failed = until_it_succeeds([&] { peak = ledger.peak(kCpu); },
                                         [&] { CHECK(ledger.tombstones() == 40); });
    CHECK(failed > 0);
    CHECK(peak.bytes == 800);
    CHECK(peak.complete);
    CHECK(sum(peak.records) == 800);
    // No reader is left behind who would keep what a new peak makes worthless.
    for (uintptr_t i = 201; i <= 260; ++i) bear(ledger, 64 * i, 8);
    for (uintptr_t i = 201; i <= 260; ++i) bear(ledger, 64 * (i + 100), 8);
    for (int round = 0; round < 50; ++round) {
      for (uintptr_t i = 401; i <= 600; ++i) bear(ledger, 64 * i, 1000 + round);
      for (uintptr_t i = 401; i <= 600; ++i) ledger.note_death(64 * i);
    }
    CHECK(ledger.tombstones() <= 2 * 200 + Ledger::kShards * 17);
  }

  TEST_CASE("a recording that cannot be read is read by the next call") {
    Ledger ledger;
    const size_t tombstones = have_a_peak(ledger);
    RecordingMark mark;
    CHECK(until_it_succeeds([&] { mark = ledger.start_recording(100000); }, [] {}) >= 32);
    for (uintptr_t i = 1; i <= 50; ++i) bear(ledger, 64 * i, 8);
    for (const bool with_alive : {false, true}) {
      LedgerRecording recording;
      until_it_succeeds([&] { recording = ledger.recording(mark, with_alive); },
                        [&] {
                          ledger.note_death(64 * 50);
                          CHECK(ledger.tombstones() == tombstones);
                          bear(ledger, 64 * 50, 8);
                        });
      CHECK(recording.dropped == 0);
      CHECK(recording.events.size() >= 50);
      CHECK(recording.alive.size() == (with_alive ? 50 : 0));
    }
    ledger.stop_recording();
  }

  TEST_CASE("a birth for which there is no memory leaves no record at its address") {
    Ledger ledger;
    bear(ledger, 64, 8);  // its free goes past the ledger
    uint64_t id = 0;
    int failed = 0;
    // The device is new to the ledger, so that its totals want memory.
    until_it_succeeds(
        [&] {
          id = bear(ledger, 64, 16, kCuda0);
          if (id == 0) throw std::bad_alloc();
        },
        [&] {
          ++failed;
          CHECK_FALSE(ledger.note_death(64).has_value());
          // The record and, each time, the birth.
          CHECK(ledger.dropped_records() == 1 + failed);
        });
    CHECK(failed > 0);
    const auto death = ledger.note_death(64);
    REQUIRE(death.has_value());
    CHECK(death->id == id);
    CHECK(death->nbytes == 16);
  }

  TEST_CASE("a cursor that cannot be opened is none") {
    Ledger ledger;
    uint64_t cursor = 0;
    until_it_succeeds([&] { cursor = ledger.open_cursor(); }, [] {});
    bear(ledger, 64, 8);
    CHECK(ledger.changes_since(cursor).born.size() == 1);
    ledger.close_cursor(cursor);
  }
}

}  // namespace
}  // namespace memledger::core
