#include "registry/hooks/before_resets.h"

#include <array>
#include <atomic>
#include <cstddef>

namespace memledger {
namespace {

struct Device {
  std::atomic<int64_t> allocated_peak{0}, reserved_peak{0}, allocations{0}, requested_bytes{0};
};

// nullptr beyond the devices that LibTorch can have.
Device* find(int device) noexcept {
  static std::array<Device, 128> devices;
  const auto index = static_cast<size_t>(device);
  return device >= 0 && index < devices.size() ? &devices[index] : nullptr;
}

void raise(std::atomic<int64_t>& highest, int64_t value) noexcept {
  int64_t seen = highest.load(std::memory_order_relaxed);
  while (seen < value && !highest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

void note_peaks_before_reset(int device, int64_t allocated, int64_t reserved) noexcept {
  Device* const noted = find(device);
  if (noted == nullptr) return;
  raise(noted->allocated_peak, allocated);
  raise(noted->reserved_peak, reserved);
}

void note_sums_before_reset(int device, int64_t allocations, int64_t requested_bytes) noexcept {
  Device* const noted = find(device);
  if (noted == nullptr) return;
  noted->allocations.fetch_add(allocations, std::memory_order_relaxed);
  noted->requested_bytes.fetch_add(requested_bytes, std::memory_order_relaxed);
}

BeforeResets before_resets(int device) noexcept {
  const Device* const noted = find(device);
  if (noted == nullptr) return {};
  return {noted->allocated_peak.load(std::memory_order_relaxed),
          noted->reserved_peak.load(std::memory_order_relaxed),
          noted->allocations.load(std::memory_order_relaxed),
          noted->requested_bytes.load(std::memory_order_relaxed)};
}

}  // namespace memledger
