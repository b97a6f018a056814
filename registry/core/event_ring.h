#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "registry/core/lock.h"
#include "registry/core/storage_record.h"

namespace memledger::core {

// A birth or a death with its time. A death has all that was learnt of the storage.
struct LedgerEvent {
  static constexpr size_t kMaxDims = 6;
  int64_t time_ns = 0;  // steady clock
  uint64_t id = 0;
  uintptr_t address = 0;
  int64_t nbytes = 0;
  Birthplace birthplace;
  uint32_t stack = 0;
  DeviceKey device;
  int8_t dtype = kUnknownDtype;
  uint8_t dims = 0;
  bool birth = false;
  bool described = false;  // dtype and shape are known
  bool adopted = false;
  bool raw_block = false;
  bool library_workspace = false;
  bool parameter_like = false;
  bool names_only = false;
  // Has all that was learnt of the storage: at a birth only once Ledger::recording() has looked
  // again.
  bool complete = false;
  std::array<int64_t, kMaxDims> shape{};
};

// Memory for the events of all shards, in segments. A shard takes one when it has filled its last,
// so that room goes where events are, and the lock that shards share is taken twice for kEvents
// events. Asks for all of its memory when made; the system provides it as it fills.
class EventSegments {
 public:
  static constexpr size_t kEvents = 64;
  struct Segment {
    enum class State : uint8_t { kFree, kOpen, kClosed };
    State state = State::kFree;
    uint32_t shard = 0;  // that fills or has filled it
    uint64_t first = 0;  // the place of its first event among those of its shard
    Segment* newer = nullptr;
    LedgerEvent* events = nullptr;
  };
  // Places of a shard's events.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // The last `events` events of all shards are always there. Throws std::bad_alloc.
  EventSegments(size_t events, size_t shards);
  // Makes room for more; the largest number holds. Throws std::bad_alloc, and then nothing has
  // changed. Not during for_each().
  void grow(size_t events);
  size_t capacity() const noexcept { return capacity_; }
  // Returns how many events may be there.
  size_t room() const noexcept { return room_; }

  // Returns an empty segment; if there is none, the one that was closed first, whose events are
  // dropped. The caller holds its shard's lock, as for close().
  Segment* open(uint32_t shard, uint64_t first) noexcept;
  void close(Segment* full) noexcept;

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Part& part : parts_) {
      for (size_t i = 0; i < part.count; ++i) visit(part.segments[i]);
    }
  }
  // Returns the shard that is filling the segment. If there is none, appends the events of the
  // segment that are in the range of its shard; the caller has reserved room for them.
  template <typename RangeOf>
  std::optional<uint32_t> copy_closed(const Segment& segment, const RangeOf& range_of,
                                      std::vector<LedgerEvent>& events) const {
    const BriefLockHolder hold(lock_);
    if (segment.state == Segment::State::kOpen) return segment.shard;
    if (segment.state == Segment::State::kClosed)
      copy(segment, segment.first + kEvents, range_of(segment.shard), events);
    return std::nullopt;
  }
  // Appends the segment's events before the place `end` that are in the range.
  static void copy(const Segment& segment, uint64_t end, Range range,
                   std::vector<LedgerEvent>& events);

  // Returns the time of the youngest event that was dropped; 0: none was.
  int64_t last_dropped_ns() const noexcept {
    const BriefLockHolder hold(lock_);
    return last_dropped_ns_;
  }

 private:
  struct Part {
    std::unique_ptr<LedgerEvent[], void (*)(void*)> events;
    std::unique_ptr<Segment[]> segments;
    size_t count = 0;
  };
  struct List {
    Segment* oldest = nullptr;
    Segment* newest = nullptr;
  };
  void add_part(size_t count);
  static void append(List& list, Segment& segment) noexcept;
  static Segment* take_oldest(List& list) noexcept;

  const size_t shards_;
  size_t capacity_;
  size_t room_ = 0;
  std::vector<Part> parts_;
  mutable BriefLock lock_;  // after the locks of shards
  List free_ ABSL_GUARDED_BY(lock_);
  List closed_ ABSL_GUARDED_BY(lock_);  // by when they were closed
  int64_t last_dropped_ns_ ABSL_GUARDED_BY(lock_) = 0;
};

// Writes the events of one shard of the ledger, under the shard's lock.
class EventRing {
 public:
  EventRing(EventSegments& segments, uint32_t shard) : segments_(segments), shard_(shard) {}

  void add(const TableEntry& entry, bool birth) noexcept;
  // Copies what the entry says now.
  static void fill(LedgerEvent& event, const TableEntry& entry) noexcept;
  // Returns how many events were ever added: the place of the next one.
  uint64_t written() const noexcept { return written_; }
  // Appends the segment's events that are in the range, unless this shard is not filling it.
  bool copy_open(const EventSegments::Segment& segment, EventSegments::Range range,
                 std::vector<LedgerEvent>& events) const;

 private:
  EventSegments& segments_;
  const uint32_t shard_;
  EventSegments::Segment* open_ = nullptr;
  uint64_t written_ = 0;
};

// Keeps when threads changed their labels: the last kChanges times. Thread-safe.
class LabelHistory {
 public:
  static constexpr size_t kChanges = size_t{1} << 16;
  struct Change {
    int64_t time_ns = 0;
    uint32_t thread = 0;
    NameId label = 0;
  };

  // Begins to keep changes, until as many stop() calls. Throws std::bad_alloc.
  void start();
  void stop() noexcept;
  void note(uint32_t thread, NameId label) noexcept {
    if (on_.load(std::memory_order_relaxed)) add(thread, label);
  }
  struct Reading {
    std::vector<Change> changes;  // by time
    uint64_t overwritten = 0;  // changes lost; some of them may be from before the time asked for
    uint64_t end = 0;          // where the next reading begins
  };
  // Reads from the place `begin`, an earlier written(), what changed between the two times, both
  // inclusive.
  Reading read(uint64_t begin, int64_t since_ns, int64_t until_ns) const;
  // Returns how many changes were ever noted: the place of the next one.
  uint64_t written() const;

  void lock_for_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.lock(); }
  void unlock_after_fork() ABSL_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }

 private:
  void add(uint32_t thread, NameId label) noexcept;

  mutable Lock lock_;
  std::atomic<bool> on_{false};
  int users_ ABSL_GUARDED_BY(lock_) = 0;
  std::vector<Change> changes_ ABSL_GUARDED_BY(lock_);
  uint64_t written_ ABSL_GUARDED_BY(lock_) = 0;
  int64_t last_overwritten_ns_ ABSL_GUARDED_BY(lock_) = 0;
};

int64_t steady_ns() noexcept;

}  // namespace memledger::core
