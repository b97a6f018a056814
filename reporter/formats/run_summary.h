#pragma once

// The report of a run on one screen: each device's peak, who held it, what was alive between steps,
// what grew, what is left.
//
//   std::cerr << memledger::run_summary(run, 40);

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reporter/report.h"

namespace memledger {

// What the rows do not show, in bytes. Empty: not known, and not printed.
struct PeakFigures {
  std::string gpu;                        // NVIDIA H100
  std::optional<int64_t> allocated_peak;  // LibTorch's own, of the whole run
  std::optional<int64_t> reserved_peak;
  std::optional<int64_t> capacity;
};

// What of a cache is for one stream, in one pool.
struct CacheOfStream {
  uint64_t stream = 0;                       // the handle; 0: the default one
  std::pair<uint64_t, uint64_t> pool{0, 0};  // LibTorch's MempoolId_t; {0, 0}: the device's own
  int64_t bytes = 0;                         // free
};

// LibTorch's cache when it had taken most from the driver, or a twentieth less: a tenth was free.
struct CacheAtPeak {
  int64_t reserved_bytes = 0;
  int64_t allocated_bytes = 0;
  int64_t whole_bytes = 0;  // segments of which nothing is in use
  int64_t whole_segments = 0;
  int64_t piece_bytes = 0;  // free next to what is in use
  int64_t pieces = 0;
  int64_t largest_piece = 0;
  // Free in private pools, of CUDA graphs and torch.cuda.MemPool, and in none of the figures above.
  int64_t private_bytes = 0;
  std::vector<CacheOfStream> streams;  // the largest first, four at most
  int64_t more_streams = 0, more_stream_bytes = 0;
};

struct RunOfDevice {
  DeviceReport peak;  // of MemReporter::collect_peak()
  PeakFigures figures;
  std::optional<CacheAtPeak> cache;
  int64_t peak_step = 0;  // 0: none, or after the last
  // At the ends of steps (registry/step_history.h), and now. Empty: not known.
  std::optional<DeviceReport> baseline, last, end;
  std::vector<std::string> advice;  // what would free the most of what is alive at the end
};

// Values that only a device has and that the program read as zero.
struct ZeroReads {
  uint64_t count = 0;
  std::string first_op;
  std::string first_place;  // may be empty
};

// Files that were written once a value of the device was read that is not the real one.
struct UnrealFiles {
  uint64_t count = 0;
  bool is_complete = true;         // else there may be more
  std::vector<std::string> paths;  // absolute, the first ones
};

// Pinned host memory, which no device's figures include.
struct PinnedOfRun {
  int64_t peak_bytes = 0;  // taken from the driver
  int64_t now_bytes = 0;
  int64_t tensor_bytes = 0;   // of tensors that are alive now
  int64_t rounded_bytes = 0;  // these, each rounded up to a power of two
  size_t tensors = 0;

  struct Kind {
    std::string what;  // (1024,) float32 aten::_pin_memory at train.cc:5 main
    int64_t bytes = 0;
    size_t tensors = 0;
  };
  std::vector<Kind> kinds;  // of these tensors, the largest first
};

struct RunReport {
  std::string title;     // train.py ended (0) after 12.3 s (process 71, rank 0)
  std::string hint;      // what the first line ends with
  bool goes_on = false;  // it has not ended
  // It goes on, or ended by a signal or after memory had run out.
  bool is_partial = false;
  bool is_python = false;
  bool ran_backward = false;  // a backward pass, at least
  int64_t steps = 0;
  int64_t baseline_step = 0;    // 0: none
  uint64_t newest_storage = 0;  // about the highest id of a storage so far; 0: not known
  std::vector<RunOfDevice> devices;
  std::optional<ZeroReads> reads;
  // NVIDIA's own libraries on a virtual GPU, with their releases; empty: stand-ins, or a real GPU.
  std::string libraries;
  std::optional<UnrealFiles> unreal_files;  // empty: no such value was read, or nothing is known
  std::string folder;                       // paths below it are shown without it
  std::optional<PinnedOfRun> pinned;        // empty: none was taken
  bool holders_unknown = false;  // of a Python program, whose objects could not be looked at
};

// What the bytes of a device are for, in the order in which it is printed.
enum class Part : uint8_t {
  kParameters,
  kBuffers,
  kCaches,  // of keys and values: a variable or buffer says so by its name
  kGradients,
  kBuckets,  // in which DistributedDataParallel gathers gradients
  kOptimizerState,
  kInputs,  // from outside: made by no arithmetic, or read by a layer before any has made it
  kLeaves,  // that require grad, if modules registered their parameters and these are none
  kActivations,
  kGradientsOfActivations,
  kOptimizerTemporaries,
  kCompiled,  // made by compiled code, which shows no tensor
  kResults,   // computed, but not by a layer nor with a parameter
  kWorkspaces,
  kOther,
};
constexpr size_t kParts = static_cast<size_t>(Part::kOther) + 1;
// Returns `optimizer state`, and so on.
std::string_view to_string(Part part);

struct PartOfRow {
  Part part = Part::kOther;
  bool inferred = false;  // inferred from phases and sizes
};
// Returns the parts of all rows, by their places. The states at the ends of steps show what stays
// from one to the next.
std::vector<PartOfRow> parts_of(const DeviceReport& rows, const RunOfDevice& run);

struct PartBytes {
  Part part = Part::kOther;
  int64_t bytes = 0;
  int64_t inferred_bytes = 0;
  // What parameters have of these, as far as it is known; adapters are trainable.
  int64_t frozen_bytes = 0, trainable_bytes = 0, adapter_bytes = 0;
};
// Returns the parts that have bytes. Their sum is that of the rows.
std::vector<PartBytes> composition_of(const DeviceReport& rows, const RunOfDevice& run);

// Rows that one line shows, as they differ in a number only: `cache.0…63.k`.
struct GroupedRows {
  const ReportRow* first = nullptr;  // the largest; lives as long as the rows
  std::string name;                  // empty where it has none
  std::string module;                // may be empty
  int64_t bytes = 0;                 // of all
  int64_t each = 0;                  // of each; 0: they differ in size
  int64_t count = 0;
  bool is_of_state = false;  // of an optimizer whose states have no names
};
// Returns all rows with bytes, the largest groups first. Cost grows with rows.
std::vector<GroupedRows> grouped_rows(const DeviceReport& rows, const RunOfDevice& run);

// Returns the largest groups of rows, and who holds them: `1.50G aten::linear, held by …`.
std::string largest_rows(const DeviceReport& rows, const RunOfDevice& run, size_t most);

// Adds the text, broken into lines after commas; those after the first are indented.
void add_wrapped(std::vector<std::string>& lines, const std::string& text);

// Returns kept[…] of kept[3].
std::string without_indices(std::string text);

// Returns at most so many lines, each ended: with many devices fewer of each. Cost grows with rows.
std::string run_summary(const RunReport& run, size_t most_lines);

}  // namespace memledger
