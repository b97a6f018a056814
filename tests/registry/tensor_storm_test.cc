// 64 threads make real tensors and free each other's, all watched by LibTorch's own account of CPU
// memory, whose total is compared with ours at each quiet point. 400 000 operations; ten million
// with MEMLEDGER_FULL=1.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "registry/registry.h"
#include "tests/support/storm.h"

namespace memledger {
namespace {

// What LibTorch's CPU allocator reports, on the threads that carry this.
class LibTorchsCount final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    bytes += size;
    ++(size > 0 ? births : deaths);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> births{0};
  std::atomic<int64_t> deaths{0};
};

struct alignas(64) Place {
  std::mutex lock;
  at::Tensor tensor;
};

at::Tensor make(std::mt19937& random) {
  const auto n = static_cast<int64_t>(1 + random() % 64);
  switch (random() % 8) {
    case 0:
      return at::zeros({n, 3});
    case 1: {  // a view keeps what it was taken of
      return at::empty({n, 4}).select(1, 2);
    }
    case 2: {  // grows in place
      at::Tensor tensor = at::empty({n});
      tensor.resize_({2 * n});
      return tensor;
    }
    case 3: {
      const at::Tensor one = at::empty({n}, at::kDouble);
      return at::add(one, one);
    }
    default:
      return at::empty({n, 2});
  }
}

TEST_CASE("64 threads free each other's tensors, and the books are LibTorch's") {
  const auto count = std::make_shared<LibTorchsCount>();
  const c10::DebugInfoGuard on_this_thread(c10::DebugInfoKind::PROFILER_STATE, count);
  Registry& registry = Registry::global();
  REQUIRE(registry.activate().ok());
  REQUIRE(registry.snapshot().total_bytes(at::kCPU) == 0);
  std::vector<Place> places(testing::kStormPlaces);
  const auto enter = [&](int) {
    const auto on_that_thread =
        std::make_shared<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, count);
    return [&places, on_that_thread](std::mt19937& random) {
      Place& place = places[random() % testing::kStormPlaces];
      at::Tensor taken;
      {
        const std::lock_guard<std::mutex> hold(place.lock);
        taken = std::move(place.tensor);
      }
      if (taken.defined()) return;  // dropped here
      at::Tensor made = make(random);
      const std::lock_guard<std::mutex> hold(place.lock);
      std::swap(made, place.tensor);
    };
  };
  Cursor cursor;
  std::atomic<int> disagreements{0};
  const auto read = [&] {
    const Snapshot snapshot = registry.snapshot();
    if (snapshot.total_bytes(at::kCPU) != snapshot.counters(at::kCPU).current_bytes)
      ++disagreements;
    registry.changes_since(cursor);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  const auto look = [&] {
    const Snapshot snapshot = registry.snapshot();
    int64_t rows = 0;
    for (const StorageInfo& storage : snapshot.storages(at::kCPU)) rows += storage.nbytes;
    CHECK(rows == count->bytes.load());
    CHECK(registry.counters(at::kCPU).current_bytes == count->bytes.load());
    const Counters counters = registry.counters(at::kCPU);
    CHECK(counters.current_count == count->births.load() - count->deaths.load());
    CHECK(counters.allocated_count == count->births.load());
    CHECK(counters.freed_count == count->deaths.load());
    CHECK(counters.peak_bytes >= counters.current_bytes);
  };
  testing::storm(enter, read, look);
  CHECK(disagreements.load() == 0);
  places.clear();
  CHECK(count->bytes.load() == 0);
  CHECK(registry.snapshot().total_bytes(at::kCPU) == 0);
  CHECK(registry.health().dropped_records == 0);
  CHECK(registry.health().unknown_frees == 0);
  CHECK(registry.health().swallowed_exceptions == 0);
  MESSAGE(count->births.load() << " births and " << count->deaths.load()
                               << " deaths by LibTorch's count");
  registry.deactivate();
}

}  // namespace
}  // namespace memledger
