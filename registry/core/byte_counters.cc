#include "registry/core/byte_counters.h"

#include <memory>

namespace memledger::core {

CountersByDevice::~CountersByDevice() {
  for (const std::atomic<DeviceCounters*>& entry : counters_) delete entry.load(std::memory_order_relaxed);
}

DeviceCounters& CountersByDevice::at(DeviceKey device) {
  std::atomic<DeviceCounters*>& entry = counters_[slot(device)];
  if (DeviceCounters* there = entry.load(std::memory_order_acquire)) return *there;
  auto made = std::make_unique<DeviceCounters>();
  DeviceCounters* expected = nullptr;
  if (entry.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *expected;
}

const DeviceCounters* CountersByDevice::find(DeviceKey device) const noexcept {
  return counters_[slot(device)].load(std::memory_order_acquire);
}

DeviceCounters* CountersByDevice::find(DeviceKey device) noexcept {
  return counters_[slot(device)].load(std::memory_order_acquire);
}

}  // namespace memledger::core
