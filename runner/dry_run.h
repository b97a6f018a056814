#pragma once

// The engine of `memledger dry-run`: makes runs of programs on virtual GPUs and says what they
// show.
//
//   DryRunner runner(options);
//   auto predictions = runner.predict({{"l4", {"./train", "--batch=32"}}});

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "prediction/prediction.h"
#include "runner/program_image.h"
#include "runner/writes/write_hold.h"

namespace memledger::runner {

// What the user says of a value that a line of the program reads.
struct Assumption {
  std::string place;  // train.py:12
  double value = 0;
};
// Reads FILE:LINE=VALUE, where VALUE is a number, true or false. Returns nothing for another text.
std::optional<Assumption> parse_assumption(std::string_view text);

// What to predict: a program on a machine.
struct DryRunRequest {
  std::string gpu;                   // a specification
  std::vector<std::string> program;  // and its arguments
  // Options of LibTorch's allocator in addition to those in the caller's environment, whose values
  // they replace: `expandable_segments:True,max_split_size_mb:128`. Empty: none.
  std::string allocator_setting;
  // More variables of the program's environment, as NAME and value.
  std::vector<std::pair<std::string, std::string>> variables;
  // What the user says of values that only the device has, as FILE:LINE=VALUE: parse_assumption().
  std::vector<std::string> assumptions;
  // Folders that its processes write to for the caller, which no layer covers.
  std::vector<std::string> writable;
  // Only the verdict is wanted: as few runs as it takes, from two to four. The peaks of a device
  // that is too small end at its capacity then.
  bool verdict_only = false;
  // One of the runs goes on once it has shown its peak, for as long as all runs have taken by then,
  // at most 30 s. So what comes later is seen, such as an evaluation. If it takes more, the other
  // runs are made again to come as far.
  bool goes_on = false;
  // Reads (MeasuredRead::site) of which other runs have shown that all values make the same
  // allocations. They are taken for that, and not tried.
  std::set<std::string> harmless_reads;
  // The runs that an earlier call made for this request, which may have had harmless reads: only
  // what they lack is made.
  std::vector<prediction::Run> made;
};

// How far the runs of one call are.
struct DryRunProgress {
  size_t ended = 0, running = 0;
  size_t total = 0;   // grows where a device turns out to be too small
  int64_t steps = 0;  // of optimizers, in the run that has made fewest
  std::string label;  // where that run is; may be empty
  std::chrono::steady_clock::duration elapsed{};
};

struct DryRunnerOptions {
  bool until_exit = false;  // all runs, not only until the peak no longer moves
  int timeout_s = 600;      // of each run
  WriteOptions writes;
  // Called about twice a second while runs are made, by the thread that waits for them; may be
  // empty.
  std::function<void(const DryRunProgress&)> progress;
  // Called as runs end, while more are to come, with what those of one request say so far and how
  // many they are, by the same thread; may be empty. Each call costs what a prediction does.
  std::function<void(const prediction::Prediction& so_far, size_t runs)> so_far;
  // Asked some fifty times a second whether to end all runs; may be empty.
  std::function<bool()> is_cancelled;
  // Returns a request's program on a virtual GPU of this specification, for a process of a run; the
  // run's variables are added. Called before the process is made, which may have several threads.
  // Empty: as `memledger run`, which needs that this process has no other thread.
  std::function<ProgramImage(const std::string& specification,
                             const std::vector<std::string>& program)>
      image;
};

// Not thread-safe: one call at a time. Ends the programs that it started, and their children,
// before a call returns.
//
// Runs are made side by side, as many as there are processors, at most four. One that fails for
// another reason than memory is made again alone, unless what it assumes explains it: programs may
// disturb each other by the ports and files that they share. What a run writes is discarded with
// it, unless the options allow it.
class DryRunner {
 public:
  explicit DryRunner(DryRunnerOptions options) : options_(std::move(options)) {}

  // Returns one prediction for each request, in their order. What is wrong with a program is in its
  // prediction. Errors: Cancelled; InvalidArgument for a specification that cannot be parsed;
  // Unavailable where no run can be made (no temporary folder, no more processes);
  // FailedPrecondition where nothing keeps the program from writing.
  absl::StatusOr<std::vector<prediction::Prediction>> predict(
      const std::vector<DryRunRequest>& requests);

  // Returns the runs of the last predict(), for each request.
  const std::vector<std::vector<prediction::Run>>& runs() const { return runs_; }
  // How many runs of programs all calls so far have made.
  size_t runs_made() const { return runs_made_; }
  // Makes one run, on the virtual GPU as the request has it, or on the real ones where it has none.
  // It is no dry run: the program writes for real.
  // Errors: Cancelled, Unavailable.
  absl::StatusOr<prediction::Run> measure(const DryRunRequest& request);

 private:
  const DryRunnerOptions options_;
  std::vector<std::vector<prediction::Run>> runs_;
  size_t runs_made_ = 0;
};

}  // namespace memledger::runner
