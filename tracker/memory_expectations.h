#pragma once

// What a test expects of memory, as objects that look at the end of their scope.
//
//   #include "tracker/expectations_doctest.h"       // or expectations_gtest.h: behind doctest's or
//   googletest's own header
//
//   TEST_CASE("inference leaves nothing behind") {
//     auto no_leak = memledger::expect_no_leak();
//     auto peak = memledger::expect_peak_at_most(64 << 20);           // bytes of all live tensors
//     on the CPU memledger::MemoryBudget budget(at::kCPU, 16 << 20);             // above what was
//     alive when the scope began serve(request);
//   }
//
//   ERROR: no leak expected, but 2 storages (8.0 KiB) born since line 12 of serve_test.cc are
//   alive:
//     8.0 KiB in 2: aten::mul [encoder, forward] (32, 32) torch.float32 on cpu
//
// A failure goes to the failure handler, once per object, with the line where the object was made.
// The adaptor headers set one that fails the running test through doctest's or googletest's own
// macros and lets it go on; without, a message goes to standard error and the program is aborted.
// check() tells the same as a value, at any time, and the object is then silent at its end:
// CHECK(budget.check()). Nothing is told when the scope is left by an exception: the exception is
// the failure.
//
// Units: bytes as requested, of live storages, whoever's tensors they are: what other threads do in
// the meantime counts. Storages from before tracking are no leak and in no budget, and a peak
// counts those that were found (registry.h). The first backward pass, the first convolution and the
// like may make caches that stay: run the code once before, or allow them with `tolerance_bytes`.
//
// Peaks: nested, overlapping and concurrent objects of this file do not disturb each other. They
// need Registry::reset_peak() when the device's peak so far is above what is expected, so
// peak_snapshot() and Counters::peak_bytes of other users start anew then, and a reset_peak() of
// others within the scope hides what was before it. While a reset is made, for some microseconds, a
// peak of another thread may be missed.
//
// Ownership: holds no tensor; keeps the registry active while it lives. Thread-safety: each object
// by one thread at a time; a child of fork may go on. Errors: constructors throw c10::Error for a
// device that memledger does not follow. Where tracking cannot be had, checks fail and say so.
// Without memory they and the functions throw std::bad_alloc, and nothing is lost: the next
// check(), or the end, tells what this one could not. Destructors never throw: that they could not
// look is a failure. Cost: by the number of live storages when made, by the changes when it ends.

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
  SourceLocation where;  // of the object
  std::string message;   // several lines, without the last one's end
};

// May throw nothing that matters: what it throws is written to standard error. Called on the thread
// of the object's end.
using FailureHandler = void (*)(const ExpectationFailure& failure);
// Of all objects that end from now on; null: the default. Returns the one before.
FailureHandler set_failure_handler(FailureHandler handler);

struct LeakOptions {
  std::optional<c10::Device> device;  // nothing: all
  int64_t tolerance_bytes = 0;        // of all survivors together
};

// Fails when storages that were born in the scope are alive at its end.
class [[nodiscard]] NoLeak {
 public:
  explicit NoLeak(const LeakOptions& options = {},
                  SourceLocation where = SourceLocation::current());
  ~NoLeak();
  NoLeak(const NoLeak&) = delete;
  NoLeak& operator=(const NoLeak&) = delete;

  // This one is meant to stay.
  void keep(const at::Tensor& tensor);
  TestVerdict check();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

inline NoLeak expect_no_leak(const LeakOptions& options = {},
                             SourceLocation where = SourceLocation::current()) {
  return NoLeak(options, where);
}

// What the peak is measured from.
enum class PeakOver : uint8_t { kNothing, kStart };

// Fails when the bytes of the device's live tensors were at any moment of the scope above a limit.
// The message tells who was alive at the highest such moment.
class [[nodiscard]] PeakAtMost {
 public:
  PeakAtMost(c10::Device device, int64_t bytes, PeakOver over,
             SourceLocation where = SourceLocation::current());
  ~PeakAtMost();
  PeakAtMost(const PeakAtMost&) = delete;
  PeakAtMost& operator=(const PeakAtMost&) = delete;

  TestVerdict check();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

inline PeakAtMost expect_peak_at_most(int64_t bytes,
                                      c10::Device device = c10::Device(c10::DeviceType::CPU),
                                      SourceLocation where = SourceLocation::current()) {
  return PeakAtMost(device, bytes, PeakOver::kNothing, where);
}

// At most `bytes` more than when the scope began.
class [[nodiscard]] MemoryBudget : public PeakAtMost {
 public:
  MemoryBudget(c10::Device device, int64_t bytes, SourceLocation where = SourceLocation::current())
      : PeakAtMost(device, bytes, PeakOver::kStart, where) {}
};

}  // namespace memledger
