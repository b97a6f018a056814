// An independent count for the tests of graph/: LibTorch's own reports of what
// its CPU allocator hands out and takes back, summed in the calling thread.

#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace memledger::testing {

class AllocationCount {
 public:
  AllocationCount()
      : reporter_(std::make_shared<Reporter>()),
        guard_(c10::DebugInfoKind::PROFILER_STATE, reporter_) {}

  // Bytes allocated less bytes freed since construction.
  int64_t growth() const { return reporter_->growth; }

 private:
  struct Reporter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*ptr*/, int64_t alloc_size, size_t /*total_allocated*/,
                           size_t /*total_reserved*/, c10::Device /*device*/) override {
      growth += alloc_size;
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t growth = 0;
  };

  std::shared_ptr<Reporter> reporter_;
  c10::DebugInfoGuard guard_;
};

// What `forward` leaves allocated, its result included.
template <typename Forward>
int64_t growth_over(Forward&& forward) {
  AllocationCount count;
  [[maybe_unused]] auto result = forward();
  return count.growth();
}

}  // namespace memledger::testing
