#pragma once

// Prints what each iteration of a training loop takes, as pytorch_mem_profiler does: the cache,
// feature maps by layer, weights, their gradients. See docs/what_changed.md.
//
//   memledger::MemoryProfiler profiler(model, {/*print_period=*/5, /*csv=*/true});
//   for (int step = 0; step < 100; ++step) {
//     torch::mse_loss(model->forward(input), target).backward();
//     profiler.record_stats();  // before the gradients are dropped
//   }
//   profiler.epoch_end();

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch {
namespace nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace nn
namespace optim {
class Optimizer;
}  // namespace optim
}  // namespace torch

namespace memledger {

struct MemoryProfilerOptions {
  // Iterations from one report to the next; 1 or more.
  int print_period = 1;
  // Writes reports to csv_folder/%Y%m%d-%H%M%S-<pid>.csv as well.
  bool csv = false;
  // Device to measure; nothing: that of the module's first parameter.
  std::optional<c10::Device> device = std::nullopt;
  // Made if missing; relative to the working directory, or to $BUILD_WORKING_DIRECTORY under
  // `bazel run`.
  std::string csv_folder = "memory_csv_data";
  // Where reports are printed; null: std::cout.
  std::ostream* out = nullptr;
  // Births and deaths of one iteration that are kept, at 140 bytes each; older ones are dropped.
  size_t max_events = size_t{1} << 18;
  // Clock for the file's name; empty: the system's.
  std::function<std::chrono::system_clock::time_point()> clock = {};
  // Promises what a ScopedTrainingPaused does (registry/training_paused.h), during each call: reads
  // gradients and optimizer states as they are, while other threads run, too.
  bool training_paused = false;
};
using ProfilerOptions = MemoryProfilerOptions;

struct NamedBytes {
  std::string name;
  int64_t bytes = 0;
};

// One iteration's figures, in bytes; each storage counts once, at its first name. Feature maps,
// intermediate gradients and workspaces are measured from the times of births and deaths, each at
// the moment when there was most of it.
struct IterationStats {
  int64_t epoch = 0;      // from 1
  int64_t iteration = 0;  // within the epoch, from 1
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // Bytes that the device's caching allocator has reserved; on the CPU, which has no cache, the
  // registry's bytes.
  int64_t peak_cached_bytes = 0;
  int64_t current_cached_bytes = 0;
  // Storages born in the forward phase after an operator of this iteration consumed a parameter, so
  // the batch is not among them.
  int64_t feature_map_bytes = 0;
  // The same by layer: the one whose parameter was consumed last.
  std::vector<NamedBytes> feature_maps;
  // As they are when record_stats() is called.
  std::vector<NamedBytes> weights;
  std::vector<NamedBytes> weight_gradients;  // one per weight; 0 bytes without a gradient
  // Weights whose gradient was not read, as another thread may be setting it (training_paused): 0
  // above, and its bytes are in other_bytes.
  int64_t unread_gradients = 0;
  // Storages born in backward that are not gradients of parameters; what a checkpoint computes
  // again is among them.
  int64_t intermediate_gradient_bytes = 0;
  // Library workspaces, raw blocks and what operators take for themselves while they run
  // (registry/storage_kind.h).
  int64_t most_workspace_bytes = 0;
  // These four, weights and weight_gradients add up to current_bytes.
  std::vector<NamedBytes> buffers;
  std::vector<NamedBytes> optimizer_state;  // only with add_optimizer()
  int64_t workspace_bytes = 0;              // library workspaces and raw blocks alive now
  int64_t other_bytes = 0;                  // everything else alive now
  // Bytes alive on the device now, by the registry.
  int64_t current_bytes = 0;
  // Births and deaths beyond max_events. Above 0, the figures that are measured from births and
  // deaths are lower bounds.
  int64_t dropped_events = 0;
  // True where the registry could not be activated: all figures are unknown and printed as `?`, but
  // the cached bytes of a device with a caching allocator.
  bool tracking_is_off = false;

  int64_t weight_bytes() const;
  int64_t weight_gradient_bytes() const;
};

// Returns the figures as record_stats() prints them, in whole MB (10^6 bytes).
std::string to_string(const IterationStats& stats);

// First line of the CSV file.
constexpr char kProfilerCsvHeader[] = "epoch,iteration,kind,name,bytes\n";
// Returns the CSV rows of one iteration, without the header. Kinds: peak_cached, current_cached,
// feature_map (one per layer), weight, weight_grad, intermediate_grad, most_workspace, buffer,
// optimizer_state, workspace, other, current_bytes; and, where events were dropped, one row
// dropped_events with their number as `name` and no bytes. Unknown bytes are empty.
std::string to_csv(const IterationStats& stats);

// Thread-safety: use one profiler from one thread at a time; other threads may train meanwhile.
// Ownership: holds no tensor. A module in a ModuleHolder or shared_ptr may end, and has no layers
// from the next epoch on; a module on the stack, and the optimizer, must outlive the profiler.
// Cost while it lives: about 0.1 µs per allocation and per free, a microsecond per operator, and 37
// MB for events.
class MemoryProfiler {
 public:
  // Activates the registry while the profiler lives. Throws c10::Error for a print period below 1,
  // a module without parameters, and a CSV file that cannot be made.
  explicit MemoryProfiler(const torch::nn::Module& module, MemoryProfilerOptions options = {});
  template <class M>
  explicit MemoryProfiler(const torch::nn::ModuleHolder<M>& holder,
                          MemoryProfilerOptions options = {})
      : MemoryProfiler(*holder, std::move(options)) {}
  ~MemoryProfiler();
  MemoryProfiler(const MemoryProfiler&) = delete;
  MemoryProfiler& operator=(const MemoryProfiler&) = delete;

  // Lists the optimizer's state by name; without it the state is in other_bytes.
  MemoryProfiler& add_optimizer(const torch::optim::Optimizer& optimizer);

  // Ends an iteration, and reports it if it is a print_period-th one. Call it before gradients are
  // dropped. Trouble with the CSV file is reported once on standard error: the program goes on, and
  // no row is half written. A child of fork prints, but writes no CSV. Cost: by the births and
  // deaths of the iteration; a report also by the live storages.
  void record_stats();
  // Ends an epoch: iterations count from 1 again. What ran since the last record_stats(), such as a
  // validation pass, is in no iteration. Reads the module's parameters and children again.
  void epoch_end();

  // Returns the last iteration that was reported; all zero before.
  const IterationStats& last() const;
  // Returns the absolute path of the CSV file; empty without one.
  std::string csv_path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
