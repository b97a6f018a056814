#pragma once

// Whether a step of this program fits on a GPU that is not here. See docs/dry_run.md.
//
//   const auto step = [&] { model->forward(input).sum().backward(); };
//   const auto prediction = memledger::predict(step, {"l4"});
//   if (prediction.ok()) std::cout << prediction->sentence() << '\n';
//   const memledger::TestVerdict verdict = memledger::fits_on("l4", step);  // for CHECK()

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "prediction/prediction.h"
#include "tracker/source_location.h"
#include "tracker/test_verdict.h"

namespace memledger {

using prediction::DevicePrediction;
using prediction::Interval;
using prediction::Prediction;
using prediction::Verdict;

struct PredictOptions {
  // The same text as for `memledger dry-run --gpu`: `l4`, `h100:40GiB,count=2`. Empty: the virtual
  // GPU of this process.
  std::string gpu;
  // The bytes of each device that the program may take; unset: all that the device has. At least
  // 64 MiB.
  std::optional<int64_t> capacity_bytes = std::nullopt;
  // The step runs until no peak moves from one run to the next: at least `least_runs` times, and at
  // most `most_runs` times, after which nothing that still grows is said to fit.
  int least_runs = 2;
  int most_runs = 10;
  // Seconds for each of the processes.
  int timeout_s = 600;
  // Let the processes write for real, values of the GPU as zeros.
  bool allow_writes = false;
};

// Returns what `step` takes on top of what is alive when this is called: parameters that were made
// before count, what was freed before does not.
//
// Starts this program again, some times and with the same arguments, and runs `step` there, once
// the new process has come to this very call. This process does not run it, and its memory and
// statistics stay as they are. So the program has to come here the same way each time: no input
// (standard input is empty), no time, no random choice. Its output is hidden. What was predicted
// before is not predicted again.
//
// What the new processes write is discarded, as by `memledger dry-run` (docs/dry_run.md, "What a
// dry run does to files"). What this process has written stays.
//
// An allocation that fails gives the verdict `does not fit`, or `not known` if it fails at the high
// end only. What else the step throws gives `failed`, with its what() as the reason. Errors:
// FailedPrecondition without a virtual GPU, inside a step, while another thread predicts, and,
// unless `allow_writes`, if nothing keeps the program from writing. InvalidArgument for a wrong GPU
// or wrong options. Unavailable if no process can be started. Cost: four starts of the program,
// side by side; up to eight where memory is short.
absl::StatusOr<Prediction> predict(const std::function<void()>& step,
                                   const PredictOptions& options = {},
                                   SourceLocation where = SourceLocation::current());

// Holds if the step fits for sure. The message is the prediction's sentence, or why there is none.
// Include prediction/expectations_doctest.h or expectations_gtest.h in one file of a test program,
// and the new processes run only the test that asks.
TestVerdict fits_on(std::string_view gpu, const std::function<void()>& step,
                    const PredictOptions& options = {},
                    SourceLocation where = SourceLocation::current());

namespace prediction {

// Print what to_string() returns, `1048576 to 2097152 bytes`, and the texts of `memledger dry-run`.
std::ostream& operator<<(std::ostream& out, Verdict verdict);
std::ostream& operator<<(std::ostream& out, const Interval& interval);
std::ostream& operator<<(std::ostream& out, const DevicePrediction& device);
std::ostream& operator<<(std::ostream& out, const Prediction& prediction);

}  // namespace prediction

namespace predict_internal {

// The test that runs, and the program's arguments that choose it alone.
struct RunningTest {
  std::string name;
  std::vector<std::string> arguments;
};
using FindRunningTest = RunningTest (*)();
// Returns true, for the adaptors.
bool set_running_test(FindRunningTest find);

}  // namespace predict_internal

}  // namespace memledger
