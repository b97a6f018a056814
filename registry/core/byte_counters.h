#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "registry/core/biased_lock.h"
#include "registry/core/lock.h"
#include "registry/core/storage_record.h"
#include "registry/counters.h"

namespace memledger::core {

// The highest value of a sum of bytes, its number among the device's peaks, and the id of the
// storage whose birth made it; 0: none did, counting began there.
struct Peak {
  int64_t bytes = 0;
  uint64_t order = 0;
  uint64_t maker = 0;
};

// Counts one device's bytes apart from the table of storages, so that a report can check one
// against the other.
//
// Only what makes a new peak needs an order for all threads. So a thread whose births cannot make
// one waits for nobody: it has a *share* of the bytes that are missing to the peak, takes its
// births from it and gives its deaths to it, under a lock that is biased towards it.
// What exceeds the share takes the device's lock; what may exceed the peak takes back all shares
// first, and then the sum is exact. So peaks are exact, too.
//
// Peaks are numbered. An event's number is that of the next peak, or of the one it makes itself: a
// storage was alive at a peak if its birth's number is at most the peak's, and its death's greater.
// A share's number is that of when it was given, which is right for as long as it is not taken
// back.
//
// The ledger updates this inside the critical section of the storage's shard, so an instant (all
// shards held) sees table and counters agree.
class alignas(64) DeviceCounters {
 public:
  DeviceCounters() = default;
  DeviceCounters(const DeviceCounters&) = delete;
  DeviceCounters& operator=(const DeviceCounters&) = delete;

  // The caller that adds or subtracts.
  struct Caller {
    uint32_t thread = 0;  // the calling thread's number
    uint32_t share = 0;   // whose share is used, modulo kShares: tests play many threads
  };
  // Both return the number of the event. `labels` has a bit for each label whose bytes include
  // these; `id` is the storage's.
  ABSL_ATTRIBUTE_ALWAYS_INLINE uint64_t add(int64_t nbytes, LabelSet labels, Caller caller,
                                            uint64_t id) noexcept {
    if (labels == 0) {
      Share& share = shares_[caller.share % kShares];
      const BiasedLockHolder hold(share.lock, caller.thread);
      if (share.given && share.bytes >= nbytes && share.count > 0) {
        share.bytes -= nbytes;
        --share.count;
        return share.order;
      }
    }
    return add_under_lock(nbytes, labels, caller, id);
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE uint64_t subtract(int64_t nbytes, LabelSet labels,
                                                 Caller caller) noexcept {
    if (labels == 0) {
      Share& share = shares_[caller.share % kShares];
      const BiasedLockHolder hold(share.lock, caller.thread);
      if (share.given) {
        share.bytes += nbytes;
        ++share.count;
        return share.order;
      }
    }
    return subtract_under_lock(nbytes, labels, caller);
  }
  // Numbers a death that nobody reported; its bytes stay counted.
  uint64_t pass() noexcept;
  // Adds a storage that was alive before counting began, and so at the peak. Returns its number, 0.
  uint64_t add_adopted(int64_t nbytes) noexcept;
  // Adds a storage born unseen, at an unknown time. It counts from now on, so a peak is at most too
  // low. Returns its number.
  uint64_t add_unseen(int64_t nbytes, Caller caller, uint64_t id) noexcept {
    return add(nbytes, 0, caller, id);
  }
  // Restarts the peaks of the device and of its labels. `thread` is the calling thread's number,
  // here and below.
  void reset_peak(uint32_t thread) noexcept;
  // Restarts the device's peak alone.
  void reset_device_peak(uint32_t thread) noexcept;

  // Returns whether a storage with these numbers was alive at the device's peak or at one of the
  // labels'. May return true for a peak that was just exceeded.
  bool alive_at_a_peak(uint64_t birth_order, uint64_t death_order, LabelSet labels) const noexcept {
    return was_alive_at(bytes_, birth_order, death_order) ||
           (labels != 0 && alive_at_a_label_peak(birth_order, death_order, labels));
  }

  // Return the peak of the device, or of what was born under a label. Until unpin(), whoever sees a
  // later peak sees is_pinned(), too.
  Peak pin_peak() noexcept;
  Peak pin_peak(size_t label) noexcept;
  void unpin() noexcept { pins_.fetch_sub(1, std::memory_order_acq_rel); }
  bool is_pinned() const noexcept { return pins_.load(std::memory_order_acquire) != 0; }

  // Notes that a death which a peak needs was not kept.
  void note_lost_death(uint64_t order) noexcept;
  uint64_t last_lost_death() const noexcept { return lost_order_.load(std::memory_order_acquire); }

  // Note a birth under a path of which it is not known whether a label holds it, and the death.
  void note_unknown_path() noexcept { unknown_births_.fetch_add(1, std::memory_order_relaxed); }
  void note_end_of_unknown_path() noexcept {
    unknown_deaths_.fetch_add(1, std::memory_order_relaxed);
  }
  // Whether none was alive since reset_peak().
  bool paths_known() const noexcept {
    return unknown_births_.load(std::memory_order_relaxed) ==
           unknown_deaths_before_.load(std::memory_order_relaxed);
  }

  // In a child of fork: no other thread is about to take a share.
  void forget_other_threads() noexcept {
    for (Share& share : shares_) share.lock.forget_other_threads();
  }

  // Fills in what is there now and the peaks, as of one moment.
  void read(Counters& counters, uint32_t thread) noexcept;

 private:
  // Written under the lock; peaks' numbers are read without.
  struct Sum {
    int64_t current = 0;
    int64_t peak = 0;
    uint64_t peak_maker = 0;
    std::atomic<uint64_t> peak_order{0};

    void restart(uint64_t order, uint64_t maker) noexcept;
    Peak read() const noexcept {
      return {peak, peak_order.load(std::memory_order_relaxed), peak_maker};
    }
  };

  // What one thread, or some that have the same number modulo kShares, may add without a new peak.
  struct alignas(64) Share {
    BiasedLock lock;
    bool given ABSL_GUARDED_BY(lock) = false;
    int64_t bytes ABSL_GUARDED_BY(lock) = 0;
    int64_t count ABSL_GUARDED_BY(lock) = 0;
    uint64_t order ABSL_GUARDED_BY(lock) = 0;  // the number of its events
  };
  static constexpr size_t kShares = 64;
  // Shares are given only when so many events in a row made no new peak: where memory grows, they
  // would be taken back at once.
  static constexpr uint32_t kQuietEvents = 32;

  static bool was_alive_at(const Sum& sum, uint64_t birth_order, uint64_t death_order) noexcept {
    const uint64_t peak = sum.peak_order.load(std::memory_order_acquire);
    return birth_order <= peak && peak < death_order;
  }
  bool alive_at_a_label_peak(uint64_t birth_order, uint64_t death_order,
                             LabelSet labels) const noexcept;
  uint64_t add_under_lock(int64_t nbytes, LabelSet labels, Caller caller, uint64_t id) noexcept;
  uint64_t subtract_under_lock(int64_t nbytes, LabelSet labels, Caller caller) noexcept;
  // Adds to the caller's share some of what is missing to the peak: half of it, but `nbytes` if
  // there are as many.
  void give(Caller caller, int64_t nbytes) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  void take_back_shares(uint32_t thread) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  void restart_device_peak(uint32_t thread) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);

  BriefLock lock_;  // before those of shares
  uint32_t quiet_events_ ABSL_GUARDED_BY(lock_) = 0;
  uint64_t order_ ABSL_GUARDED_BY(lock_) = 0;  // of the newest peak
  // Current bytes and count are with all shares that are given: at most too high.
  Sum bytes_;
  int64_t current_count_ ABSL_GUARDED_BY(lock_) = 0;
  int64_t peak_count_ ABSL_GUARDED_BY(lock_) = 0;
  uint64_t given_ ABSL_GUARDED_BY(lock_) = 0;  // a bit for each share
  std::atomic<int> pins_{0};
  std::atomic<uint64_t> lost_order_{0};
  std::atomic<uint64_t> unknown_births_{0};
  std::atomic<uint64_t> unknown_deaths_{0};
  std::atomic<uint64_t> unknown_deaths_before_{0};  // reset_peak()
  std::array<Sum, kMaxPeakLabels> labels_;
  std::array<Share, kShares> shares_;
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
