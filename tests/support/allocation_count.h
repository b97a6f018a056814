#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace memledger::testing {

// Counts CPU memory independently of memledger, by LibTorch's own memory-reporting hook. LibTorch
// reports per thread, so every thread opens a scope before its first allocation; a block is
// reported freed only if it was reported made.
class AllocationCount {
 public:
  class Scope {
   public:
    explicit Scope(AllocationCount& count)
        : guard_(c10::DebugInfoKind::PROFILER_STATE, count.info_) {}

   private:
    c10::DebugInfoGuard guard_;
  };

  int64_t live_bytes() const { return info_->bytes.load(); }
  int64_t peak_bytes() const { return info_->peak.load(); }
  // Allocations and frees.
  int64_t reports() const { return info_->reports.load(); }

 private:
  struct Info : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t nbytes, size_t, size_t, c10::Device) override {
      ++reports;
      const int64_t now = bytes.fetch_add(nbytes) + nbytes;
      int64_t seen = peak.load();
      while (now > seen && !peak.compare_exchange_weak(seen, now)) {
      }
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::atomic<int64_t> bytes{0};
    std::atomic<int64_t> peak{0};
    std::atomic<int64_t> reports{0};
  };
  std::shared_ptr<Info> info_ = std::make_shared<Info>();
};

// Counts what this thread allocates less what it frees, from construction on.
class AllocationGrowth {
 public:
  int64_t bytes() const { return count_.live_bytes(); }

 private:
  AllocationCount count_;
  AllocationCount::Scope scope_{count_};
};

// Returns what `forward` leaves allocated, its result included.
template <typename Forward>
int64_t growth_over(Forward&& forward) {
  const AllocationGrowth growth;
  [[maybe_unused]] const auto result = forward();
  return growth.bytes();
}

}  // namespace memledger::testing
