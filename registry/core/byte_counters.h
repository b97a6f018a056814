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

// The highest value of a sum of bytes; `order` is the number of the birth that reached it.
struct Peak {
  int64_t bytes = 0;
  uint64_t order = 0;
};

// Counts one device's bytes apart from the table of storages, so that a report can check one
// against the other.
//
// Births and deaths on a device are numbered in one order for all threads, and the bytes change in
// that order. So peaks are exact, and a storage was alive at a peak if it was born by then and died
// later. The ledger updates this inside the critical section of the storage's shard, so an instant
// (all shards held) sees table and counters agree.
class alignas(64) DeviceCounters {
 public:
  DeviceCounters() = default;
  DeviceCounters(const DeviceCounters&) = delete;
  DeviceCounters& operator=(const DeviceCounters&) = delete;

  // Both return the number of the event. `labels` has a bit for each label whose bytes include
  // these.
  uint64_t add(int64_t nbytes, LabelSet labels) noexcept;
  uint64_t subtract(int64_t nbytes, LabelSet labels) noexcept;
  // Numbers a death that nobody reported; its bytes stay counted.
  uint64_t pass() noexcept;
  // Adds a storage that was alive before counting began, and so at the peak. Returns its number, 0.
  uint64_t add_adopted(int64_t nbytes) noexcept;
  // Adds a storage born unseen, at an unknown time. It counts from now on, so a peak is at most too
  // low. Returns its number.
  uint64_t add_unseen(int64_t nbytes) noexcept { return add(nbytes, 0); }
  // Restarts the peaks of the device and of its labels.
  void reset_peak() noexcept;
  // Restarts the device's peak alone.
  void reset_device_peak() noexcept;

  // Returns whether a storage with these numbers was alive at the device's peak or at one of the
  // labels'. May return true for a peak that was just exceeded.
  bool alive_at_a_peak(uint64_t birth_order, uint64_t death_order, LabelSet labels) const noexcept;

  // The peak of the device, or of what was born under a label.
  Peak peak() const noexcept;
  Peak peak(size_t label) const noexcept;

  // Return the same. Until unpin(), whoever sees a later peak sees is_pinned(), too.
  Peak pin_peak() noexcept;
  Peak pin_peak(size_t label) noexcept;
  void unpin() noexcept { pins_.fetch_sub(1, std::memory_order_acq_rel); }
  bool is_pinned() const noexcept { return pins_.load(std::memory_order_acquire) != 0; }

  // Notes that a death which a peak needs was not kept.
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

// Has one DeviceCounters per device, made when a device is first used.
class CountersByDevice {
 public:
  CountersByDevice() = default;
  ~CountersByDevice();
  CountersByDevice(const CountersByDevice&) = delete;
  CountersByDevice& operator=(const CountersByDevice&) = delete;

  DeviceCounters& at(DeviceKey device);  // makes it; throws std::bad_alloc
  // Null: nothing happened on that device.
  const DeviceCounters* find(DeviceKey device) const noexcept;
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
