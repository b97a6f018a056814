#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace memledger::prediction {

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
  // All allocations so far and the bytes that they requested, by LibTorch's count. Two runs that
  // differ in nothing but what values read as allocate alike if these are the same.
  int64_t allocations = 0;
  int64_t requested_in_all = 0;
};

// What a process that has left no measurement took of one device, in bytes, as the driver saw it.
struct DeviceUse {
  int process = 0;
  bool is_watched = false;  // it was killed before it could leave one
  int index = 0;            // of the machine
  std::string gpu;          // as CUDA calls it
  int64_t capacity_bytes = 0;
  int64_t context_bytes = 0;  // part of the peak
  int64_t process_peak = 0;
  // How often it took memory, how much in all, and how often it was refused.
  int64_t times_taken = 0;
  int64_t taken_in_all = 0;
  int64_t times_refused = 0;
  int64_t first_refused_bytes = 0;
  int64_t copies_to_host = 0;  // by the process, of what nobody knows
};

// One or more storages whose names differ in a number only: `cache.0…63.k`. What is said of their
// origin is of the first.
struct MeasuredRow {
  std::string name, op, phase, layer, place, shape;
  int64_t bytes = 0;          // of all
  bool is_anonymous = false;  // the name is only a number: Tensor7
  int64_t count = 1;
  int64_t each_bytes = 0;  // 0: their sizes differ
};

// The part of all of a peak that nobody knows more of.
inline constexpr char kUnknownPart[] = "not known";

// `activations`, `optimizer state`: words of the report of a run (reporter/formats/run_summary.h).
struct MeasuredPart {
  std::string part;
  int64_t bytes = 0;
  int64_t inferred_bytes = 0;  // of it: inferred from phases and sizes
};

// The moment when most was requested on the fullest device.
struct MeasuredPeak {
  int device = 0;
  std::string op, phase, layer, place;  // of what was made last
  std::map<std::string, int64_t> by_role;
  std::vector<MeasuredRow> largest;
  std::map<std::string, int64_t> by_layer;  // the largest
  int64_t without_layer_bytes = 0;          // and what belongs to none
  // What by_layer has besides weights, gradients, optimizer state, buffers and inputs.
  std::map<std::string, int64_t> activations_by_layer;
  std::vector<MeasuredPart> parts;  // add up to all that was requested

  int64_t total_bytes() const;  // of the parts
};

// The first allocation that failed. `place` is the program's own line.
struct MeasuredFailure {
  int device = 0;
  int64_t requested_bytes = 0;
  std::string op, phase, layer, place;
  // LibTorch's figures and the device's at that moment.
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t free_bytes = 0;  // not taken by anyone
};

// Values that only a device has and that the program read.
struct MeasuredRead {
  enum class Kind : uint8_t {
    kSize,      // an operator allocates by it: nonzero()
    kNumber,    // a whole number for the program: it may become a size or end a loop
    kReceived,  // a whole number that other ranks sent, taken to be this one's own
    kFraction,  // may become a size, too, or steer what runs
    kBranch,    // a truth for the program: it may steer what runs
    kSaid,      // any of these, where the user has said what it is (--assume)
    kModel,     // no value: memory of a library, of which nobody says at most how much it is
  };
  // What other values did to the memory of the program.
  enum class Effect : uint8_t {
    kNotTried,
    kNone,      // it made the same allocations
    kSamePeak,  // other ones, and the peaks were the same
    kWithin,    // other peaks: they are in the interval
    kOpen,      // no end was found
  };
  std::string op, place;  // the place of the first
  int64_t count = 0;
  int64_t bytes = 0;  // allocated in sizes that came of it
  Kind kind = Kind::kSize;
  // False: there is no largest value to assume, so no peak of any run is an upper end.
  bool has_upper_bound = true;
  // If another number, fraction or truth value can be assumed: which read of the program it is, the
  // same in each run; what was assumed at first; with how many values it was tried, and their
  // outcome.
  std::string site = {};
  double assumed = 0;
  int64_t values_tried = 0;
  Effect effect = Effect::kNotTried;
  // Where a size was capped at `assumed`, as it drives a loop that would not end in time: what it
  // would have been, and the line of the loop. 0: it was not.
  int64_t before_cap = 0;
  std::string loop = {};
  int64_t last_read = 0;  // of all reads of its process, from 1, the number of its last one
  // The caller knows from elsewhere that other values make the same allocations: it is not tried.
  bool is_harmless = false;
};
std::string_view to_string(MeasuredRead::Kind kind);
std::string_view to_string(MeasuredRead::Effect effect);
// Whether Gloo read it to send it to other ranks: it steers nothing here.
bool is_sent(const MeasuredRead& read);

// What a program does for a time. Training is a forward pass with gradients, backward and the
// optimizer's step. Evaluation is a forward pass without gradients or in eval() mode. The rest,
// such as loading a model, is neither.
enum class Stage : uint8_t { kTraining, kEvaluation, kNeither };
inline constexpr int kStages = 3;
// Returns "training", "evaluation" or "neither".
std::string_view to_string(Stage stage);

// The peaks of one device in one stage, in bytes: the highest values at which something was
// allocated then.
struct MeasuredStage {
  Stage stage = Stage::kNeither;
  int device = 0;
  int64_t allocated_peak = 0;
  int64_t process_peak = 0;
};

// How the process ended, as far as it could write it down. `kAfterCall`: memledger::predict() had
// run its step. `kNot`: it was killed, or by what Measurement::cause says.
enum class Ended : uint8_t { kAtExit, kAfterStep, kAfterCall, kNot };
std::string_view to_string(Ended ended);

// What the optimizer steps had in common that were seen before a program was ended.
enum class Steps : uint8_t {
  kNone,    // it was not ended after a step
  kAlike,   // all allocated alike; a step of another kind, such as a smaller batch, may come later
  kRepeat,  // steps of several kinds came again in the same order, and left the same blocks
  kDiffer,  // they did not come again, so later ones may take more
};
std::string_view to_string(Steps steps);

// The figures of one process of one run.
struct Measurement {
  int process = 0, rank = 0;
  // Nothing in the process measured it: the figures are what the driver saw of its devices
  // (run_files.h), and nobody knows of tensors, steps and stages.
  bool is_by_driver = false;
  Ended ended = Ended::kNot;
  std::string cause;  // what ended it if it did not return: "SIGSEGV", "uncaught exception: …"
  int64_t steps = 0;  // of optimizers
  int64_t calls = 0;  // of the step that memledger::predict() was given
  Steps kind_of_steps = Steps::kNone;
  // Where it went on after it had shown its peak: what its steps had in common by then, and whether
  // it took more later.
  Steps kind_when_settled = Steps::kNone;
  bool has_grown_since = false;
  // Parameters that the forward pass used and that no step has written to, where one ended the
  // program: frozen because the optimizer does not have them, or trained later than the steps that
  // were seen.
  int64_t unstepped_parameters = 0;
  std::vector<MeasuredDevice> devices;
  std::vector<MeasuredStage> stages;  // those that the process was in
  std::optional<MeasuredPeak> peak;
  std::optional<MeasuredFailure> failure;
  std::vector<MeasuredRead> unknown_reads;
  std::string allocator_settings;  // as PYTORCH_CUDA_ALLOC_CONF had them; empty: LibTorch's own
  // What pip would install to make the workspaces of convolutions cuDNN's own; empty: none has been
  // modelled because cuDNN was missing.
  std::string missing_cudnn;
  // NVIDIA's own libraries that it ran with: `cuBLAS 13.1.0, cuDNN 9.19.0`; empty: stand-ins.
  std::string libraries;
};

// Write and read a measurement as JSON. Reading fails with a sentence that names what is wrong.
std::string to_json(const Measurement& measurement);
absl::StatusOr<Measurement> parse_measurement(std::string_view json);

}  // namespace memledger::prediction
