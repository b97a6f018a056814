#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "registry/core/lock.h"
#include "registry/core/storage_record.h"
#include "registry/counters.h"

namespace memledger::core {

// The highest value of a sum of bytes, and when it was reached: `order` is the number of the birth
// that made it.
struct Peak {
  int64_t bytes = 0;
  uint64_t order = 0;
};

// What one device's allocator wrapper counted for itself, apart from the table of storages: a
// report holds the table against it.
//
// Births and deaths on a device are numbered, in one order for all threads, and in that order the
// bytes change. So the peaks are exact, and a storage was alive at a peak if it was born by then
// and died later. Updated by the ledger inside the critical section of the storage's shard, so that
// an instant (all shards held) sees table and counters agree.
class alignas(64) DeviceCounters {
 public:
  DeviceCounters() = default;
  DeviceCounters(const DeviceCounters&) = delete;
  DeviceCounters& operator=(const DeviceCounters&) = delete;

  // Both return the number of what happened. `labels` has a bit for each label whose bytes include
  // these.
  uint64_t add(int64_t nbytes, LabelSet labels) noexcept;
  uint64_t subtract(int64_t nbytes, LabelSet labels) noexcept;
  // A death that nobody told of: the bytes stay counted.
  uint64_t pass() noexcept;
  // Alive since before counting began, so it was alive at the peak, too. Returns its number, 0.
  uint64_t add_adopted(int64_t nbytes) noexcept;
  // Born unseen, nobody knows when: it counts from now on, so that a peak is at most too low.
  // Returns its number.
  uint64_t add_unseen(int64_t nbytes) noexcept { return add(nbytes, 0); }
  // With those of labels.
  void reset_peak() noexcept;
  // Those of labels stay.
  void reset_device_peak() noexcept;

  // Whether someone who was born and died at these numbers was alive at the device's peak or at one
  // of the labels'. May say yes for a peak that was just exceeded.
  bool alive_at_a_peak(uint64_t birth_order, uint64_t death_order, LabelSet labels) const noexcept;

  // Of the device; with a label, of what was born under it.
  Peak peak() const noexcept;
  Peak peak(size_t label) const noexcept;

  // The same, and until unpin() is_pinned() is seen by whoever sees a later peak.
  Peak pin_peak() noexcept;
  Peak pin_peak(size_t label) noexcept;
  void unpin() noexcept { pins_.fetch_sub(1, std::memory_order_acq_rel); }
  bool is_pinned() const noexcept { return pins_.load(std::memory_order_acquire) != 0; }

  // A death that should have been remembered for a peak was not.
  void note_lost_death(uint64_t order) noexcept;
  uint64_t last_lost_death() const noexcept { return lost_order_.load(std::memory_order_acquire); }

  int64_t current_bytes() const noexcept { return bytes_.current.load(std::memory_order_relaxed); }
  int64_t current_count() const noexcept { return current_count_.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const noexcept { return bytes_.peak.load(std::memory_order_relaxed); }
  int64_t peak_count() const noexcept { return peak_count_.load(std::memory_order_relaxed); }

 private:
  // Written under the lock, read without.
  struct Sum {
    std::atomic<int64_t> current{0};
    std::atomic<int64_t> peak{0};
    std::atomic<uint64_t> peak_order{0};

    void add(int64_t nbytes, uint64_t order) noexcept;
    void subtract(int64_t nbytes) noexcept;
    void restart(uint64_t order) noexcept;
    Peak read() const noexcept {
      return {peak.load(std::memory_order_relaxed), peak_order.load(std::memory_order_relaxed)};
    }
  };

  mutable Lock lock_;
  uint64_t order_ ABSL_GUARDED_BY(lock_) = 0;  // of the last birth or death
  Sum bytes_;
  std::atomic<int64_t> current_count_{0};
  std::atomic<int64_t> peak_count_{0};
  std::atomic<int> pins_{0};
  std::atomic<uint64_t> lost_order_{0};
  std::array<Sum, kMaxPeakLabels> labels_;
};

// One DeviceCounters per device, made when a device is first used.
class CountersByDevice {
 public:
  CountersByDevice() = default;
  ~CountersByDevice();
  CountersByDevice(const CountersByDevice&) = delete;
  CountersByDevice& operator=(const CountersByDevice&) = delete;

  DeviceCounters& at(DeviceKey device);  // makes it; throws std::bad_alloc
  const DeviceCounters* find(
      DeviceKey device) const noexcept;  // null: nothing happened on that device
  DeviceCounters* find(DeviceKey device) noexcept;
  size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  template <typename Visit>
  void for_each(const Visit& visit) noexcept {
    for (const std::atomic<DeviceCounters*>& entry : counters_) {
      if (DeviceCounters* const there = entry.load(std::memory_order_acquire)) visit(*there);
    }
  }

 private:
  static constexpr size_t kTypes = 32;
  static constexpr size_t kIndices = 129;  // -1 … 127
  static size_t slot(DeviceKey device) noexcept {
    return static_cast<size_t>(device.type) % kTypes * kIndices +
           static_cast<size_t>(device.index + 1);
  }
  std::array<std::atomic<DeviceCounters*>, kTypes * kIndices> counters_{};
  std::atomic<size_t> count_{0};
};

}  // namespace memledger::core
