// A device that is not there, with a caching allocator that counts what is asked of it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/device_cache.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "tests/support/doctest_beside_torch.h"

namespace memledger {
namespace {

const c10::Device kDevice(c10::DeviceType::MTIA, 2);

struct FakeAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return in_use; }
  void emptyCache(c10::MempoolId_t) override { ++emptied; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current =
        1000 + device;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

  bool in_use = false;
  int emptied = 0;
};

TEST_CASE("a device's own allocator is asked, once it is in use") {
  CHECK_FALSE(device_cache::allocated_bytes(kDevice).has_value());
  device_cache::release(kDevice);
  static FakeAllocator fake;
  c10::SetAllocator(kDevice.type(), &fake);
  CHECK_FALSE(device_cache::allocated_bytes(kDevice).has_value());
  device_cache::release(kDevice);
  CHECK(fake.emptied == 0);
  fake.in_use = true;
  CHECK(device_cache::allocated_bytes(kDevice) == 1002);
  device_cache::release(kDevice);
  CHECK(fake.emptied == 1);
}

struct FakeHostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
  bool record_event(void*, void*, c10::Stream) override { return false; }
  void empty_cache() override { ++emptied; }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  int emptied = 0;
};

TEST_CASE("the cache of pinned memory is handed back, too") {
  device_cache::release_pinned(c10::DeviceType::CUDA);
  static FakeHostAllocator fake;
  at::setHostAllocator(kDevice.type(), &fake);
  device_cache::release_pinned(kDevice.type());
  CHECK(fake.emptied == 1);
}

TEST_CASE("the CPU has no such allocator") {
  CHECK_FALSE(device_cache::allocated_bytes(c10::Device(c10::DeviceType::CPU)).has_value());
  device_cache::release(c10::Device(c10::DeviceType::CPU));
}

TEST_CASE("the default device is one that is there") {
  const c10::Device device = device_cache::default_device();
  CHECK((device.is_cpu() || device == c10::Device(c10::DeviceType::CUDA, 0)));
}

}  // namespace
}  // namespace memledger
