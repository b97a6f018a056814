#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "registry/core/storage_record.h"
#include "registry/counters.h"

namespace memledger::core {

// What one device's allocator wrapper counted for itself, apart from the table of storages: a report holds the table against it.
//
// current_bytes and current_count change in one order for all threads, so the peaks are exact. Updated by the ledger inside the
// critical section of the storage's shard, so that an instant (all shards held) sees table and counters agree.
class alignas(64) DeviceCounters {
 public:
  void add(int64_t nbytes) noexcept {
    raise(peak_bytes_, current_bytes_.fetch_add(nbytes, std::memory_order_relaxed) + nbytes);
    raise(peak_count_, current_count_.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  // Alive since before counting began, so it was alive at the peak, too.
  void add_adopted(int64_t nbytes) noexcept {
    current_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
    current_count_.fetch_add(1, std::memory_order_relaxed);
    peak_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
    peak_count_.fetch_add(1, std::memory_order_relaxed);
  }
  void subtract(int64_t nbytes) noexcept {
    current_bytes_.fetch_sub(nbytes, std::memory_order_relaxed);
    current_count_.fetch_sub(1, std::memory_order_relaxed);
  }
  void reset_peak() noexcept {
    peak_bytes_.store(current_bytes_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    peak_count_.store(current_count_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    // What another thread added meanwhile may have been overwritten.
    raise(peak_bytes_, current_bytes_.load(std::memory_order_relaxed));
    raise(peak_count_, current_count_.load(std::memory_order_relaxed));
  }

  int64_t current_bytes() const noexcept { return current_bytes_.load(std::memory_order_relaxed); }
  int64_t current_count() const noexcept { return current_count_.load(std::memory_order_relaxed); }
  int64_t peak_bytes() const noexcept { return peak_bytes_.load(std::memory_order_relaxed); }
  int64_t peak_count() const noexcept { return peak_count_.load(std::memory_order_relaxed); }

 private:
  static void raise(std::atomic<int64_t>& peak, int64_t value) noexcept {
    int64_t seen = peak.load(std::memory_order_relaxed);
    while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

  std::atomic<int64_t> current_bytes_{0};
  std::atomic<int64_t> current_count_{0};
  std::atomic<int64_t> peak_bytes_{0};
  std::atomic<int64_t> peak_count_{0};
};

// One DeviceCounters per device, made when a device is first used.
class CountersByDevice {
 public:
  CountersByDevice() = default;
  ~CountersByDevice();
  CountersByDevice(const CountersByDevice&) = delete;
  CountersByDevice& operator=(const CountersByDevice&) = delete;

  DeviceCounters& at(DeviceKey device);                         // makes it; throws std::bad_alloc
  const DeviceCounters* find(DeviceKey device) const noexcept;  // null: nothing happened on that device
  DeviceCounters* find(DeviceKey device) noexcept;

 private:
  static constexpr size_t kTypes = 32;
  static constexpr size_t kIndices = 129;  // -1 … 127
  static size_t slot(DeviceKey device) noexcept {
    return static_cast<size_t>(device.type) % kTypes * kIndices + static_cast<size_t>(device.index + 1);
  }
  std::array<std::atomic<DeviceCounters*>, kTypes * kIndices> counters_{};
};

}  // namespace memledger::core
