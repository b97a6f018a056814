#pragma once

// Holds a test to its memory: objects that look at the end of their scope and fail the test. See
// docs/it_grows.md. Include expectations_doctest.h or expectations_gtest.h as well.
//
//   auto no_leak = memledger::expect_no_leak();
//   auto peak = memledger::expect_peak_at_most(64 << 20);
//   memledger::MemoryBudget budget(at::kCPU, 16 << 20);
//   model->forward(input);

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tracker/source_location.h"
#include "tracker/test_verdict.h"

namespace memledger {

struct ExpectationFailure {
  SourceLocation where;  // where the object was made
  std::string message;   // several lines, without the last one's end
};

// Called on the thread where an object ends, once per object. What it throws is written to standard
// error.
using FailureHandler = void (*)(const ExpectationFailure& failure);
// Sets the handler of all objects that end from now on, and returns the one before. Null: the
// default, which writes the failure to standard error and aborts. The adaptor headers set one that
// fails the running test and lets it go on.
FailureHandler set_failure_handler(FailureHandler handler);

struct LeakOptions {
  std::optional<c10::Device> device;  // nothing: all
  int64_t tolerance_bytes = 0;        // what all survivors together may take
};

// These hold for all expectations. Bytes are requested bytes of live storages, from all threads. A
// scope that is left by an exception is silent. Where tracking cannot be had, checks fail and say
// so. The first backward pass or convolution may make caches that stay: run the code once before
// the scope.
//
// Ownership: they hold no tensor, and keep the registry active. Thread-safety: use an object from
// one thread at a time; a child of fork may go on. Destructors never throw: a check that cannot run
// counts as a failure. Other functions throw std::bad_alloc if memory runs out; the next check(),
// or the destructor, then reports everything. Cost grows with the live storages when made, with the
// changes when checked.

// Fails if storages that were born in the scope are alive at its end. Storages adopted from before
// tracking are no leak.
class [[nodiscard]] NoLeak {
 public:
  explicit NoLeak(const LeakOptions& options = {},
                  SourceLocation where = SourceLocation::current());
  ~NoLeak();
  NoLeak(const NoLeak&) = delete;
  NoLeak& operator=(const NoLeak&) = delete;

  // Allows a tensor's storage to stay.
  void keep(const at::Tensor& tensor);
  // Returns the verdict so far; the object is then silent at its end.
  TestVerdict check();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

inline NoLeak expect_no_leak(const LeakOptions& options = {},
                             SourceLocation where = SourceLocation::current()) {
  return NoLeak(options, where);
}

// What a peak is measured from: nothing, or the bytes when the scope began.
enum class PeakOver : uint8_t { kNothing, kStart };

// Fails if the bytes of the device's live storages were above a limit at any moment of the scope,
// and names what was alive at the highest. Nested, overlapping and concurrent ones do not disturb
// each other. They use Registry::reset_peak(): peak_snapshot() and Counters::peak_bytes of others
// start again when the peak so far is above the limit, and a reset by others within the scope hides
// what was before it. For some microseconds around a reset a peak of another thread may be missed.
class [[nodiscard]] PeakAtMost {
 public:
  // Throws c10::Error for a device that memledger does not follow.
  PeakAtMost(c10::Device device, int64_t bytes, PeakOver over,
             SourceLocation where = SourceLocation::current());
  ~PeakAtMost();
  PeakAtMost(const PeakAtMost&) = delete;
  PeakAtMost& operator=(const PeakAtMost&) = delete;

  // Returns the verdict so far; the object is then silent at its end.
  TestVerdict check();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Allows `bytes` in all, on the CPU unless you name a device. Storages adopted in the scope count.
inline PeakAtMost expect_peak_at_most(int64_t bytes,
                                      c10::Device device = c10::Device(c10::DeviceType::CPU),
                                      SourceLocation where = SourceLocation::current()) {
  return PeakAtMost(device, bytes, PeakOver::kNothing, where);
}

// Allows `bytes` above what was alive when the scope began. Storages adopted in the scope do not
// count.
class [[nodiscard]] MemoryBudget : public PeakAtMost {
 public:
  MemoryBudget(c10::Device device, int64_t bytes, SourceLocation where = SourceLocation::current())
      : PeakAtMost(device, bytes, PeakOver::kStart, where) {}
};

}  // namespace memledger
