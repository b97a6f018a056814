#pragma once

// Whether a program fits on a GPU, from runs of it on virtual ones.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prediction/measurement.h"
#include "prediction/writes.h"

namespace memledger::prediction {

enum class Verdict : uint8_t { kFits, kDoesNotFit, kNotKnown, kFailed };

// Returns "fits", "does not fit", "not known" or "failed".
std::string_view to_string(Verdict verdict);

// Bytes that lie between two ends, both included.
struct Interval {
  int64_t low = 0;
  int64_t high = 0;

  void include(int64_t bytes);
};

// A part of what processes take of a device at their peak: in the run that takes least, and in the
// one that takes most. So the parts of an end add up, and a part may be larger at the low end.
struct Term {
  std::string name;
  int64_t low = 0;
  int64_t high = 0;
};

// The peaks of one stage of the program on a device, in bytes. A low end of 0 is not known: a run
// ended before the stage.
struct StagePeaks {
  Stage stage = Stage::kNeither;
  Interval allocated, process;
};

// One GPU of the machine that was asked for, where several processes used it the sum of them.
struct DevicePrediction {
  std::string device;  // cuda:0
  std::string gpu;     // NVIDIA H200
  int64_t capacity_bytes = 0;
  Interval allocated_peak, reserved_peak, process_peak, context;
  Interval fragmented;  // free bytes of segments in use, at the end
  // tensors, cached by LibTorch, libraries, CUDA context, or allocations for what only the driver
  // saw: they add up to the process's peak
  std::vector<Term> terms;
  std::vector<StagePeaks> stages;  // those that were seen: training, evaluation, neither
  Verdict verdict = Verdict::kNotKnown;

  // Capacity less the high end of the process's peak; below 0 if it does not fit.
  int64_t headroom_bytes() const { return capacity_bytes - process_peak.high; }
};

// A GPU on which unwatched processes took memory, in runs that did not end by themselves. The
// interval goes from the run that took the minimum to the one that took the maximum. Each is the
// sum of the processes' peaks, even if these came at different times. Another run may take more or
// less.
struct UnwatchedDevice {
  std::string device;  // cuda:0
  std::string gpu;     // NVIDIA H200
  int64_t capacity_bytes = 0;
  Interval process_peak, context;
  int64_t processes = 0;  // in the run that had most
};

// What another setting of LibTorch's allocator changes.
struct SettingTried {
  std::string setting;  // expandable_segments:True
  Interval reserved_peak;
  Verdict verdict = Verdict::kNotKnown;
};

// How a run of the program ended.
struct ProgramEnd {
  int status = 0;  // as a shell has it: 128 + signal
  bool timed_out = false;
  int timeout_s = 0;        // after which it was ended
  bool read_input = false;  // its standard input, which is empty
  std::string last_lines;   // of its output, where it failed
};

// What a run assumes of a read instead of what is likely: words of prediction/measure_variables.h.
struct AssumedRead {
  std::string site;   // MeasuredRead::site, or all of a kind
  std::string value;  // small, one, large, huge; of a truth: other
};

// One run of the program, on one end of the interval.
struct Run {
  enum class End : uint8_t { kLow, kHigh };
  // In which order blocks get addresses: LibTorch prefers low ones, so that decides what it splits.
  enum class Addresses : uint8_t { kDown, kUp };

  End end = End::kLow;
  Addresses addresses = Addresses::kDown;
  bool is_limited = true;  // the device has its own capacity
  // At the low end: sizes were assumed that need not be there, as the program fails without them.
  bool assumes_sizes = false;
  // What only the driver saw being read was ones, as the program fails where it is zeros.
  bool assumes_ones = false;
  // Only to see whether what is allocated depends on them.
  std::vector<AssumedRead> assumed_reads;
  // Sizes that only the device has differ from one read to the next, and are not the largest.
  bool varies_sizes = false;
  // So much less than its own capacity: only to see whether as much is to spare.
  int64_t held_back_bytes = 0;
  // Goes on once it has shown its peak, so that what comes later is seen, for as long as the runs
  // so far have taken.
  bool goes_on = false;
  // It had been asked to end, so the way in which it ended says nothing.
  bool was_enough = false;
  // Made again to come as far as the run that went on, which has shown more.
  bool as_far = false;
  ProgramEnd program;
  int64_t steps = 0;  // of optimizers, where the run was ended
  int64_t took_ms = 0;
  std::vector<Measurement> processes;
  // Why a process with LibTorch was not measured, or that there was none; empty: all were.
  std::string why_unwatched;
  // What processes took that have no measurement: those without LibTorch, too.
  std::vector<DeviceUse> unwatched_uses;
  // Why processes are measured by what the driver saw of them; empty: none is.
  std::string why_by_driver;
  Writes writes;

  bool failed_allocation() const;
  // True where the program ended as it should have, or was ended after a step.
  bool has_ended_well() const;
  // Whether a process that goes on had shown its peak.
  bool came_to_its_peak() const;
  // Returns the first allocation that failed.
  std::optional<MeasuredFailure> failure() const;
};

struct Prediction {
  std::string specification;  // as the user gave it
  Verdict verdict = Verdict::kNotKnown;
  std::string remedy;  // a setting of the allocator with which it fits; empty: none
  std::vector<DevicePrediction> devices;
  // Where the program, or one of its processes, is not watched and did not end by itself; no
  // verdict comes of it.
  std::vector<UnwatchedDevice> unwatched_devices;
  // Why some of its processes are not watched, where the verdict rests on what the driver saw of
  // them: nothing is known of their tensors. Empty: all are watched.
  std::string why_by_driver;
  std::optional<MeasuredPeak> peak;
  std::optional<MeasuredFailure> failure;   // why it does not fit
  std::vector<MeasuredRead> unknown_reads;  // those with most bytes first
  std::vector<SettingTried> settings;
  Writes writes;       // of all runs, each file once
  ProgramEnd program;  // of the first run that failed, else of the first
  Ended ended = Ended::kNot;
  // The steps of optimizers that were seen, and how often memledger::predict() ran its step.
  int64_t steps = 0, calls = 0;
  // Whether a run came to the program's own end, and whether one saw an evaluation.
  bool whole_run = false, saw_evaluation = false;
  Steps kind_of_steps = Steps::kNone;  // where it was ended after a step: of the runs' worst
  // Parameters that the forward pass used and that no step had written to when the program was
  // ended: if they are trained later, it takes more then.
  int64_t unstepped_parameters = 0;
  // If little is to spare: by how much less memory was enough as well. 0: not tried.
  int64_t margin_bytes = 0;
  bool lacks_margin = false;  // less was not shown to be enough, so the verdict is kNotKnown
  // Sizes that only the device knows may differ from one read to the next. If less is to spare than
  // they can take: by how much less memory was enough even so. 0: enough is to spare, or it was not
  // shown.
  int64_t varied_margin_bytes = 0;
  bool lacks_varied_margin = false;  // it was not shown, so the verdict is kNotKnown
  // What pip would install to make the workspaces of convolutions cuDNN's own, which are modelled
  // from what is expected to an upper bound; empty: nothing.
  std::string missing_cudnn;
  // NVIDIA's own libraries that the program ran with: `cuBLAS 13.1.0, cuDNN 9.19.0`; empty:
  // stand-ins for them.
  std::string libraries;
  std::string reason;  // where nothing is known: why
  std::string note;    // what the reader should know of how the figures came about; may be empty

  // Whether convolutions have plans of cuDNN's own, from which a device's differ a little.
  bool has_plans_of_cudnn() const;

  // The one line that says it: `does not fit: 3.2 GiB short at layer4.2.conv3, backward`.
  std::string sentence() const;
  // The same with the specification, and what is to spare: `l4: fits, 3.2 GiB to spare`.
  std::string headline() const;
  // Return all of it as the functions below do.
  std::string to_json() const;
  std::string to_text() const;
};

// Returns what runs of both ends say. Verdicts come from the runs at the device's own capacity:
// `fits` if no allocation failed in any of them and no size without an upper bound was read,
// `does not fit` if one failed in each run of the low end, else `not known`. Values that the
// program read and nobody knows leave the verdict open, unless runs that assume other values show
// their effect. Peaks come from the run without a limit where there is one of the same end and
// order of addresses. If a call on files was answered differently than outside the runs' layers,
// the verdict is `not known`. The caller makes runs of both ends and, unless one of them decides
// against `fits`, in both orders.
Prediction predict(std::string specification, const std::vector<Run>& runs);

// Returns how many bytes two more runs of the high end, one in each order of addresses, have to
// hold back for a verdict; 0: none are needed. They are needed where a program fits and less than 1
// % or 24 MiB is to spare, with cuDNN's own plans 4 %, because a real device may take that much
// more (docs/accuracy.md). Where the program was ended after steps that were all alike, 32 MiB
// replace the 24: a smaller last batch may cut LibTorch's cache differently.
int64_t margin_to_test(const std::vector<Run>& runs);

// Returns whether the run that went on has shown more than those of the other orders and ends,
// which were ended earlier: they have to be made again, as far as it came.
bool needs_others_as_far(const std::vector<Run>& runs);

// Returns whether the verdict needs runs of the high end with varies_sizes, one in each order, and
// by how much less memory they get. It does if a program that fits read sizes that only the device
// has. Sizes that go up and down cut LibTorch's cache into more pieces than the largest ones alone.
// Runs without a limit have been made where those with one were short.
struct VariedSizes {
  bool are_needed = false;
  int64_t held_back_bytes = 0;
};
VariedSizes varied_sizes_to_test(const std::vector<Run>& runs);

// Returns the runs that are needed next for a verdict, as the program read what only the device
// has: each assumes something else of it. To be asked again once they are made, as others may
// follow from them. None are needed where nothing was read, or the program failed.
struct AssumingRun {
  std::vector<AssumedRead> assumed_reads;
  Run::End end = Run::End::kHigh;  // in the order of addresses of that end's first run
  // Goes as far as the run that went on, in whose order of addresses: no other read it.
  bool as_far = false;
};
std::vector<AssumingRun> assuming_runs(std::string_view specification,
                                       const std::vector<Run>& runs);

// Returns options of PYTORCH_CUDA_ALLOC_CONF that may make a program fit which is not known to;
// none where LibTorch's cache cannot decide. `setting` is that of the runs: what it sets is left
// out.
std::vector<std::string> settings_worth_trying(const Prediction& prediction,
                                               std::string_view setting);

// Adds to `prediction` what runs with another setting of the allocator said, and the remedy if the
// program fits with it alone.
void add_setting(std::string setting, const Prediction& tried, Prediction& prediction);

// Returns them in the order in which people read them: the smallest machine that fits first.
std::vector<Prediction> in_reading_order(std::vector<Prediction> predictions);

// Returns the verdict on all machines: the worst of failed, does not fit, not known, fits.
Verdict verdict_of(const std::vector<Prediction>& predictions);

// Returns all of one or more predictions on one line of JSON (docs/formats.md):
// {"schema":"memledger.prediction/1", …}.
std::string to_json(const std::vector<Prediction>& predictions);

// Returns them as `memledger dry-run` prints them: of several a table, then the first in reading
// order. What add_setting() said is apart, as it comes later.
std::string to_text(const std::vector<Prediction>& predictions);
std::string settings_text(const Prediction& prediction);

// Returns the exit status of `memledger dry-run` for one or more GPUs: 0 all fit, 10 one does not,
// 11 not known, 12 the program failed.
int exit_status(const std::vector<Prediction>& predictions);

}  // namespace memledger::prediction
