#pragma once

// Whether a program fits on a GPU, from runs of it on virtual ones.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prediction/measurement.h"

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

// One GPU of the machine that was asked for, where several processes used it the sum of them.
struct DevicePrediction {
  std::string device;  // cuda:0
  std::string gpu;     // NVIDIA H200
  int64_t capacity_bytes = 0;
  Interval allocated_peak, reserved_peak, process_peak, context;
  Interval fragmented;  // free bytes of segments in use, at the end
  Verdict verdict = Verdict::kNotKnown;

  // Capacity less the high end of the process's peak; below 0 if it does not fit.
  int64_t headroom_bytes() const { return capacity_bytes - process_peak.high; }
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
  std::string last_lines;  // of its output, where it failed
};

// One run of the program, on one end of the interval.
struct Run {
  enum class End : uint8_t { kLow, kHigh };
  End end = End::kLow;
  bool is_limited = true;  // the device has its own capacity
  ProgramEnd program;
  std::vector<Measurement> processes;

  bool failed_allocation() const;
  // True where the program ended as it should have, or was ended after a step.
  bool has_ended_well() const;
  // The bytes that its first failed allocation was short of are unknown; it asked for these.
  std::optional<MeasuredFailure> failure() const;
};

struct Prediction {
  std::string specification;  // as the user gave it
  Verdict verdict = Verdict::kNotKnown;
  std::string remedy;  // a setting of the allocator with which it fits; empty: none
  std::vector<DevicePrediction> devices;
  std::optional<MeasuredPeak> peak;
  std::optional<MeasuredFailure> failure;  // why it does not fit
  std::vector<MeasuredRead> unknown_reads;
  std::vector<SettingTried> settings;
  ProgramEnd program;  // of the run that tells most: the first that failed, else the first
  Ended ended = Ended::kNot;
  int64_t steps = 0;
  std::string reason;  // where nothing is known: why

  // The one line that says it: `does not fit: 3.2 GiB short at aten::convolution, backward`.
  std::string sentence() const;
  // Returns all of it on one line (docs/formats.md): {"schema":"memledger.prediction/1", …}.
  std::string to_json() const;
  // Returns it as `memledger dry-run` prints it.
  std::string to_text() const;
};

// Returns what runs of both ends say. Verdicts come from the runs at the device's own capacity:
// `fits` if no allocation failed at either end, `does not fit` if one failed at the low end, else
// `not known`. Peaks come from the runs without a limit where there are such of an end.
Prediction predict(std::string specification, const std::vector<Run>& runs);

// Adds to `prediction` what runs with another setting of the allocator said, and the remedy if the
// program fits with it alone.
void add_setting(std::string setting, const Prediction& tried, Prediction& prediction);

// Returns the exit status of `memledger dry-run` for one or more GPUs: 0 all fit, 10 one does not,
// 11 not known, 12 the program failed.
int exit_status(const std::vector<Prediction>& predictions);

}  // namespace memledger::prediction
