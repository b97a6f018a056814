#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::prediction {

// The variables that make a program measure itself (runner/inside/measure.cc). The folder gets one
// file per process that used a GPU, PID.json.
inline constexpr char kMeasureVariable[] = "MEMLEDGER_MEASURE";
inline constexpr char kUntilVariable[] = "MEMLEDGER_MEASURE_UNTIL";  // step or exit

// What one process took of one device, in bytes. Peaks are LibTorch's own.
struct MeasuredDevice {
  int index = 0;
  std::string gpu;  // as CUDA calls it
  int64_t capacity_bytes = 0;
  int64_t allocated_peak = 0;
  int64_t reserved_peak = 0;
  int64_t process_peak = 0;   // all that the process took: segments, context, libraries
  int64_t context_bytes = 0;  // part of it
  int64_t fragmented_bytes = 0;
  int64_t retries = 0;   // allocations that came after the cache had been emptied
  int64_t failures = 0;  // allocations that failed
};

struct MeasuredRow {
  std::string name, op, phase, place, shape;
  int64_t bytes = 0;
};

// The moment when most was requested on the fullest device.
struct MeasuredPeak {
  int device = 0;
  std::string op, phase, layer, place;  // of what was made last
  std::map<std::string, int64_t> by_role;
  std::vector<MeasuredRow> largest;
};

// The first allocation that failed.
struct MeasuredFailure {
  int device = 0;
  int64_t requested_bytes = 0;
  std::string op, phase, layer, place;
};

// Values that only a device has and that the program read.
struct MeasuredRead {
  std::string op, place;
  int64_t count = 0;
  int64_t bytes = 0;  // allocated in sizes that came of it
};

// How the process ended, as far as it could write it down.
enum class Ended : uint8_t { kAtExit, kAfterStep, kNot };
std::string_view to_string(Ended ended);

// The figures of one process of one run.
struct Measurement {
  int process = 0, rank = 0;
  Ended ended = Ended::kNot;
  int64_t steps = 0;  // of optimizers
  std::vector<MeasuredDevice> devices;
  std::optional<MeasuredPeak> peak;
  std::optional<MeasuredFailure> failure;
  std::vector<MeasuredRead> unknown_reads;
};

// Write and read a measurement as JSON. Reading fails with a sentence that names what is wrong.
std::string to_json(const Measurement& measurement);
absl::StatusOr<Measurement> parse_measurement(std::string_view json);

}  // namespace memledger::prediction
