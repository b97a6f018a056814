#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "registry/core/lock.h"
#include "registry/core/storage_record.h"

namespace memledger::core {

// A birth or a death, with its time. At a death all that was learnt of the storage meanwhile is in
// it.
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
  // All that was learnt of the storage is in it. Not so at a birth, before Ledger::recording() has
  // looked again.
  bool complete = false;
  std::array<int64_t, kMaxDims> shape{};
};

// The last events of one shard of the ledger, under its lock. All its memory is asked for when it
// is made, and used as it fills.
class EventRing {
 public:
  // Throws std::bad_alloc.
  explicit EventRing(size_t capacity);
  void grow(size_t capacity);

  void add(const StorageRecord& record, bool birth) noexcept;
  // What the record says now.
  static void fill(LedgerEvent& event, const StorageRecord& record) noexcept;
  // Of all events ever added, the next one's place.
  uint64_t written() const noexcept { return written_; }
  // Appends those from `begin` to `end`, as far as they are still here; the others are dropped.
  void copy(uint64_t begin, uint64_t end, std::vector<LedgerEvent>& events) const;
  // Time of the youngest event that was overwritten; 0 if none was.
  int64_t last_dropped_ns() const noexcept { return last_dropped_ns_; }
  size_t capacity() const noexcept { return capacity_; }

 private:
  using Memory = std::unique_ptr<LedgerEvent[], void (*)(void*)>;
  static Memory memory_for(size_t capacity);

  size_t capacity_;
  Memory events_;
  uint64_t written_ = 0;
  uint64_t first_ = 0;  // the oldest that is here; grow() leaves no place for those before
  int64_t last_dropped_ns_ = 0;
};

// When threads changed their labels: the last kChanges times.
class LabelHistory {
 public:
  static constexpr size_t kChanges = size_t{1} << 16;
  struct Change {
    int64_t time_ns = 0;
    uint32_t thread = 0;
    NameId label = 0;
  };

  // Counted. Throws std::bad_alloc.
  void start();
  void stop() noexcept;
  void note(uint32_t thread, NameId label) noexcept {
    if (on_.load(std::memory_order_relaxed)) add(thread, label);
  }
  struct Reading {
    std::vector<Change> changes;  // by time
    uint64_t overwritten =
        0;  // that were noted in the time asked for; some of them may have been before it
    uint64_t end = 0;  // where the next reading begins
  };
  // From the place `begin` on, which is written() of a moment before, and within these times, both
  // inclusive.
  Reading read(uint64_t begin, int64_t since_ns, int64_t until_ns) const;
  // Of all changes ever noted, the next one's place.
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
