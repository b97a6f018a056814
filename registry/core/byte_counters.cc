#include "registry/core/byte_counters.h"

#include <algorithm>
#include <memory>

namespace memledger::core {
namespace {

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

template <typename Visit>
void for_each_label(LabelSet labels, const Visit& visit) {
  for (; labels != 0; labels &= labels - 1) visit(static_cast<size_t>(__builtin_ctz(labels)));
}

}  // namespace

void DeviceCounters::Sum::add(int64_t nbytes, uint64_t order) noexcept {
  const int64_t now = current.load(kRelaxed) + nbytes;
  current.store(now, kRelaxed);
  if (now <= peak.load(kRelaxed)) return;
  peak.store(now, kRelaxed);
  // Whoever sees this peak sees the pins made before it.
  peak_order.store(order, std::memory_order_release);
}

void DeviceCounters::Sum::subtract(int64_t nbytes) noexcept {
  current.store(current.load(kRelaxed) - nbytes, kRelaxed);
}

void DeviceCounters::Sum::restart(uint64_t order) noexcept {
  peak.store(current.load(kRelaxed), kRelaxed);
  peak_order.store(order, std::memory_order_release);
}

uint64_t DeviceCounters::add(int64_t nbytes, LabelSet labels) noexcept {
  const LockHolder hold(lock_);
  const uint64_t order = ++order_;
  bytes_.add(nbytes, order);
  const int64_t count = current_count_.load(kRelaxed) + 1;
  current_count_.store(count, kRelaxed);
  if (count > peak_count_.load(kRelaxed)) peak_count_.store(count, kRelaxed);
  for_each_label(labels, [&](size_t label) { labels_[label].add(nbytes, order); });
  return order;
}

uint64_t DeviceCounters::subtract(int64_t nbytes, LabelSet labels) noexcept {
  const LockHolder hold(lock_);
  const uint64_t order = ++order_;
  bytes_.subtract(nbytes);
  current_count_.store(current_count_.load(kRelaxed) - 1, kRelaxed);
  for_each_label(labels, [&](size_t label) { labels_[label].subtract(nbytes); });
  return order;
}

uint64_t DeviceCounters::pass() noexcept {
  const LockHolder hold(lock_);
  return ++order_;
}

uint64_t DeviceCounters::add_adopted(int64_t nbytes) noexcept {
  const LockHolder hold(lock_);
  bytes_.current.store(bytes_.current.load(kRelaxed) + nbytes, kRelaxed);
  bytes_.peak.store(bytes_.peak.load(kRelaxed) + nbytes, kRelaxed);
  current_count_.store(current_count_.load(kRelaxed) + 1, kRelaxed);
  peak_count_.store(peak_count_.load(kRelaxed) + 1, kRelaxed);
  return 0;
}

void DeviceCounters::reset_device_peak() noexcept {
  const LockHolder hold(lock_);
  bytes_.restart(order_);
  peak_count_.store(current_count_.load(kRelaxed), kRelaxed);
}

void DeviceCounters::reset_peak() noexcept {
  const LockHolder hold(lock_);
  bytes_.restart(order_);
  peak_count_.store(current_count_.load(kRelaxed), kRelaxed);
  for (Sum& label : labels_) label.restart(order_);
}

bool DeviceCounters::alive_at_a_peak(uint64_t birth_order, uint64_t death_order,
                                     LabelSet labels) const noexcept {
  const auto alive_at = [&](const Sum& sum) {
    const uint64_t peak = sum.peak_order.load(std::memory_order_acquire);
    return birth_order <= peak && peak < death_order;
  };
  bool alive = alive_at(bytes_);
  for_each_label(labels, [&](size_t label) { alive = alive || alive_at(labels_[label]); });
  return alive;
}

Peak DeviceCounters::peak() const noexcept {
  const LockHolder hold(lock_);
  return bytes_.read();
}

Peak DeviceCounters::peak(size_t label) const noexcept {
  const LockHolder hold(lock_);
  return labels_[label].read();
}

Peak DeviceCounters::pin_peak() noexcept {
  const LockHolder hold(lock_);
  pins_.fetch_add(1, std::memory_order_acq_rel);
  return bytes_.read();
}

Peak DeviceCounters::pin_peak(size_t label) noexcept {
  const LockHolder hold(lock_);
  pins_.fetch_add(1, std::memory_order_acq_rel);
  return labels_[label].read();
}

void DeviceCounters::note_lost_death(uint64_t order) noexcept {
  uint64_t seen = lost_order_.load(kRelaxed);
  while (order > seen &&
         !lost_order_.compare_exchange_weak(seen, order, std::memory_order_acq_rel)) {
  }
}

CountersByDevice::~CountersByDevice() {
  for (const std::atomic<DeviceCounters*>& entry : counters_)
    delete entry.load(std::memory_order_relaxed);
}

DeviceCounters& CountersByDevice::at(DeviceKey device) {
  std::atomic<DeviceCounters*>& entry = counters_[slot(device)];
  if (DeviceCounters* there = entry.load(std::memory_order_acquire)) return *there;
  auto made = std::make_unique<DeviceCounters>();
  DeviceCounters* expected = nullptr;
  if (!entry.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel))
    return *expected;
  count_.fetch_add(1, std::memory_order_relaxed);
  return *made.release();
}

const DeviceCounters* CountersByDevice::find(DeviceKey device) const noexcept {
  return counters_[slot(device)].load(std::memory_order_acquire);
}

DeviceCounters* CountersByDevice::find(DeviceKey device) noexcept {
  return counters_[slot(device)].load(std::memory_order_acquire);
}

}  // namespace memledger::core
