// Births and deaths with their times, in bounded memory.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "registry/core/event_ring.h"
#include "registry/core/ledger.h"
#include "tests/registry/records.h"

namespace memledger::core {
namespace {

uintptr_t address_of(size_t i) { return 0x7f0000000000 + i * 64; }

TEST_SUITE_BEGIN("ledger recording");

TEST_CASE("nothing is kept unless it is asked for") {
  Ledger ledger;
  bear(ledger, 0x1000, 64);
  const RecordingMark before;
  CHECK(ledger.recording(before, false).events.empty());
  const RecordingMark mark = ledger.start_recording(100);
  ledger.stop_recording();
  bear(ledger, 0x2000, 64);
  CHECK(ledger.recording(mark, false).events.empty());
  CHECK(ledger.recording(mark, true).alive.size() == 2);
}

TEST_CASE(
    "births and deaths since the mark, in order of time; a death tells what was learnt of the "
    "storage") {
  Ledger ledger;
  const uint64_t old = bear(ledger, 0x1000, 10);
  const RecordingMark mark = ledger.start_recording(1000);
  const uint64_t one = bear(ledger, 0x2000, 20);
  const int64_t shape[] = {4, 5};
  ledger.describe(0x2000, 0, 0, shape, 2, 6);
  ledger.mark_parameter_like(0x2000);
  ledger.note_death(0x1000);
  ledger.note_death(0x2000);
  const uint64_t two = bear(ledger, 0x2000, 30);
  LedgerRecording recording = ledger.recording(mark, true);
  REQUIRE(recording.events.size() == 4);
  const auto is = [&](size_t i, uint64_t id, bool birth, int64_t nbytes) {
    const LedgerEvent& event = recording.events[i];
    return event.id == id && event.birth == birth && event.nbytes == nbytes;
  };
  CHECK(is(0, one, true, 20));
  CHECK(is(1, old, false, 10));
  CHECK(is(2, one, false, 20));
  CHECK(is(3, two, true, 30));
  CHECK(recording.events[2].described);
  CHECK(recording.events[2].dims == 2);
  CHECK(recording.events[2].shape[1] == 5);
  CHECK(recording.events[2].parameter_like);
  CHECK_FALSE(recording.events[0].described);
  CHECK(recording.dropped == 0);
  CHECK(recording.complete_since_ns == mark.time_ns);
  CHECK(std::is_sorted(
      recording.events.begin(), recording.events.end(),
      [](const LedgerEvent& a, const LedgerEvent& b) { return a.time_ns < b.time_ns; }));
  REQUIRE(recording.alive.size() == 1);
  CHECK(recording.alive[0].id == two);

  // From its end on.
  ledger.note_death(0x2000);
  LedgerRecording rest = ledger.recording(recording.end, false);
  REQUIRE(rest.events.size() == 1);
  CHECK(rest.events[0].id == two);
  CHECK(rest.alive.empty());
  ledger.stop_recording();
}

TEST_CASE(
    "a birth tells what is known by now of what is alive, and says so where nothing more can be "
    "known") {
  Ledger ledger;
  const RecordingMark mark = ledger.start_recording(1000);
  bear(ledger, 0x1000, 64);
  bear(ledger, 0x2000, 32);
  const int64_t size = 8;
  ledger.describe(0x2000, 1, 1, &size, 1, /*dtype=*/6);
  ledger.mark_library_workspace(0x1000, kCpu);
  const LedgerRecording alive = ledger.recording(mark, /*with_alive=*/false);
  REQUIRE(alive.events.size() == 2);
  CHECK(alive.events[0].library_workspace);
  CHECK(alive.events[1].described);
  CHECK(alive.events[1].shape[0] == 8);
  for (const LedgerEvent& event : alive.events) {
    CHECK(event.birth);
    CHECK(event.complete);
  }
  ledger.note_death(0x1000);
  const LedgerRecording dead = ledger.recording(mark, /*with_alive=*/false);
  REQUIRE(dead.events.size() == 3);
  CHECK_FALSE(dead.events[0].complete);  // its death has all of it
  CHECK(dead.events[2].complete);
  CHECK(dead.events[2].library_workspace);
  ledger.stop_recording();
}

TEST_CASE("the last are kept, as many as were asked for, and the others counted") {
  Ledger ledger;
  const RecordingMark mark = ledger.start_recording(320);
  for (size_t i = 0; i < 10000; ++i) bear(ledger, address_of(i), 1);
  const LedgerRecording recording = ledger.recording(mark, false);
  CHECK(recording.dropped + static_cast<int64_t>(recording.events.size()) == 10000);
  REQUIRE(recording.events.size() == 320);
  CHECK(recording.complete_since_ns == recording.events.front().time_ns);
  // Consecutive: nothing is missing in between.
  for (size_t i = 1; i < recording.events.size(); ++i)
    CHECK(recording.events[i].id == recording.events[i - 1].id + 1);
  CHECK(recording.events.back().id == 10000);
  ledger.stop_recording();
}

// A program's storages may all lie in one shard, and be freed there.
TEST_CASE(
    "room goes where events are: none is dropped before there are as many as were asked for") {
  for (const size_t events : {size_t{2}, size_t{64}, size_t{66}, size_t{1000}, size_t{10000}}) {
    CAPTURE(events);
    Ledger ledger;
    const RecordingMark mark = ledger.start_recording(events);
    for (size_t i = 0; i < events; ++i) {
      if (i % 2 == 0) {
        bear(ledger, address_of(0), 1);
      } else {
        ledger.note_death(address_of(0));
      }
    }
    CHECK(ledger.recording(mark, false).dropped == 0);
    // Elsewhere, where a few are never enough to fill a segment.
    for (size_t i = 1; i <= 5000; ++i) {
      bear(ledger, address_of(i % 7 == 0 ? i : 0), 1);
      ledger.note_death(address_of(i % 7 == 0 ? i : 0));
      if (i % 1000 != 0) continue;
      const LedgerRecording recording = ledger.recording(mark, false);
      REQUIRE(recording.events.size() == events);
      CHECK(recording.dropped == static_cast<int64_t>(2 * i));
      for (size_t e = 1; e < events; ++e)
        REQUIRE(recording.events[e].birth != recording.events[e - 1].birth);
    }
    ledger.stop_recording();
  }
}

TEST_CASE("several may record at once; the largest number holds, and the last to stop ends it") {
  Ledger ledger;
  const RecordingMark first = ledger.start_recording(64);
  for (size_t i = 0; i < 30; ++i) bear(ledger, address_of(i), 1);
  const size_t kept = ledger.recording(first, false).events.size();
  const RecordingMark second = ledger.start_recording(64000);
  for (size_t i = 30; i < 1000; ++i) bear(ledger, address_of(i), 1);
  CHECK(ledger.recording(second, false).events.size() == 970);
  CHECK(ledger.recording(first, false).events.size() == 970 + kept);
  ledger.stop_recording();
  CHECK(ledger.recording(second, false).events.size() == 970);
  ledger.stop_recording();
  CHECK(ledger.recording(second, false).events.empty());
}

// In all orders of threads: who lived at the beginning, plus births, less deaths, is who lives at
// the end.
TEST_CASE("a recording taken while threads allocate and free fits what is alive at its end") {
  Ledger ledger;
  const RecordingMark mark = ledger.start_recording(size_t{1} << 20);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::set<size_t> held;
      for (int step = 0; step < 20000 && !stop; ++step) {
        const size_t i = t * 1000 + random() % 1000;
        if (held.insert(i).second) {
          bear(ledger, address_of(i), static_cast<int64_t>(i));
        } else {
          ledger.note_death(address_of(i));
          held.erase(i);
        }
      }
    });
  }
  for (int reading = 0; reading < 20; ++reading) {
    const LedgerRecording recording = ledger.recording(mark, true);
    REQUIRE(recording.dropped == 0);
    std::map<uint64_t, int64_t> alive;
    bool fits = true;
    for (const LedgerEvent& event : recording.events) {
      fits = fits && (event.birth ? alive.emplace(event.id, event.nbytes).second
                                  : alive.erase(event.id) == 1);
    }
    REQUIRE(fits);
    REQUIRE(alive.size() == recording.alive.size());
    for (const StorageRecord& record : recording.alive) fits = fits && alive.count(record.id) == 1;
    REQUIRE(fits);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  ledger.stop_recording();
}

TEST_CASE("label changes") {
  constexpr int64_t kEver = std::numeric_limits<int64_t>::max();
  LabelHistory history;
  history.note(1, 5);
  CHECK(history.read(0, 0, kEver).changes.empty());
  history.start();
  for (uint32_t i = 0; i < LabelHistory::kChanges; ++i) history.note(1, i);
  const LabelHistory::Reading full = history.read(0, 0, kEver);
  CHECK(full.changes.size() == LabelHistory::kChanges);
  CHECK(full.overwritten == 0);
  CHECK(full.end == LabelHistory::kChanges);
  for (uint32_t i = 0; i < 10; ++i) history.note(1, LabelHistory::kChanges + i);
  const LabelHistory::Reading all = history.read(0, 0, kEver);
  REQUIRE(all.changes.size() == LabelHistory::kChanges);
  CHECK(all.changes.front().label == 10);
  CHECK(all.changes.back().label == LabelHistory::kChanges + 9);
  CHECK(all.overwritten == 10);
  CHECK(history.read(4, 0, kEver).overwritten == 6);
  CHECK(history.read(10, 0, kEver).overwritten == 0);
  // What was overwritten had been before the time that is asked for.
  CHECK(history.read(0, steady_ns(), kEver).overwritten == 0);
  CHECK(history.read(full.end, 0, kEver).changes.size() == 10);

  // What comes after the end is the next reading's.
  const int64_t end_ns = steady_ns();
  while (steady_ns() == end_ns) {
  }
  history.note(1, 7);
  const LabelHistory::Reading before = history.read(all.end, 0, end_ns);
  CHECK(before.changes.empty());
  CHECK(before.end == all.end);
  CHECK(history.read(before.end, 0, kEver).changes.size() == 1);
  CHECK(history.written() == LabelHistory::kChanges + 11);
  history.stop();
  CHECK(history.read(0, 0, kEver).changes.empty());
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger::core
