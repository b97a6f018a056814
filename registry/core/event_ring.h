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

// Keeps the last events of one shard of the ledger, under the shard's lock. Asks for all its memory
// when made; the system provides it as it fills.
class EventRing {
 public:
  // Throws std::bad_alloc.
  explicit EventRing(size_t capacity);
  void grow(size_t capacity);

  void add(const TableEntry& entry, bool birth) noexcept;
  // Copies what the entry says now.
  static void fill(LedgerEvent& event, const TableEntry& entry) noexcept;
  // Returns how many events were ever added: the place of the next one.
  uint64_t written() const noexcept { return written_; }
  // Appends the events from place `begin` to `end` that are still here.
  void copy(uint64_t begin, uint64_t end, std::vector<LedgerEvent>& events) const;
  // Returns the time of the youngest event that was overwritten; 0 if none was.
  int64_t last_dropped_ns() const noexcept { return last_dropped_ns_; }
  size_t capacity() const noexcept { return capacity_; }

 private:
  using Memory = std::unique_ptr<LedgerEvent[], void (*)(void*)>;
  static Memory memory_for(size_t capacity);

  size_t capacity_;
  Memory events_;
  uint64_t written_ = 0;
  uint64_t first_ = 0;  // the oldest still here; grow() copies no others
  int64_t last_dropped_ns_ = 0;
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
