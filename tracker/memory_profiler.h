#pragma once

// What an iteration of a training loop takes: weights, their gradients, feature maps, intermediate
// gradients, and the cache.
//
//   memledger::MemoryProfiler profiler(net, {/*print_period=*/5, /*csv=*/true});     // right
//   before the loop for (int epoch = 0; epoch < epochs; ++epoch) {
//     for (auto& batch : *loader) {
//       ... forward, backward, step ...
//       profiler.record_stats();                                                     // at the end
//       of each iteration
//     }
//     profiler.epoch_end();
//   }
//
// Prints what pytorch_mem_profiler prints, in whole MB (10^6), and by layer how much of the feature
// maps is whose. Feature maps and intermediate gradients are measured while they are alive, from
// the times of births and deaths, not subtracted:
//
// - feature maps: storages born in the forward phase after an operator of that iteration consumed a
// parameter of the module (so the
//   batch is none), at the moment when there were most of them. A storage belongs to the layer
//   whose parameter was consumed last.
// - intermediate gradients: storages born in backward that are not the gradients of the module's
// parameters, at the moment when
//   there were most of them. What a checkpoint computes again during backward is among them.
// - workspaces: memory that is no tensor's (registry/storage_kind.h): what LibTorch keeps for
// cuBLAS, what operators take for
//   themselves while they run (cuDNN), raw blocks; at the moment when there was most of it. Shown
//   where there was any.
// - peak and current cached: what the device's caching allocator has reserved; on the CPU, which
// has no cache, the registry's peak
//   and current bytes.
// - weights and weight gradients: as they are when record_stats() is called: call it before the
// gradients are dropped.
//
// Units: bytes in CSV and values; each storage once, at its first name. Errors: c10::Error for a
// print period below 1, a module without parameters, and a CSV file that cannot be made; later
// trouble with the file is told once on stderr, and there is never half a row; a child of fork
// writes none. Ownership: holds no tensor. A module in a ModuleHolder or shared_ptr may end, and
// has no layers from the next epoch on; a module on the stack, and the optimizer, must outlive the
// profiler. Thread-safety: one thread at a time; other threads may run, make and drop modules
// meanwhile. Cost: while it lives, about 0.1 µs per allocation and per free, a look at the inputs
// of each operator (about a microsecond), 37 MB for events; record_stats() and epoch_end() by the
// events since the last one, record_stats() by all live storages where it prints.

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

struct ProfilerOptions {
  int print_period = 1;  // iterations from one report to the next
  bool csv = false;      // reports go to memory_csv_data/%Y%m%d-%H%M%S-<pid>.csv, too
  // Nothing: where the module's first parameter is.
  std::optional<c10::Device> device = std::nullopt;
  std::string csv_folder =
      "memory_csv_data";                // relative to $BUILD_WORKING_DIRECTORY under `bazel run`
  std::ostream* out = nullptr;          // std::cout
  size_t max_events = size_t{1} << 18;  // births and deaths in one iteration that are kept
  std::function<std::chrono::system_clock::time_point()> clock =
      {};  // of the file's name; empty: the system's
};

struct NamedBytes {
  std::string name;
  int64_t bytes = 0;
};

struct IterationStats {
  int64_t epoch = 0;
  int64_t iteration = 0;  // of the epoch; both from 1
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int64_t peak_cached_bytes = 0;
  int64_t current_cached_bytes = 0;
  int64_t feature_map_bytes = 0;
  std::vector<NamedBytes> feature_maps;  // by layer; they sum up to feature_map_bytes
  std::vector<NamedBytes> weights;
  std::vector<NamedBytes> weight_gradients;
  int64_t intermediate_gradient_bytes = 0;
  int64_t most_workspace_bytes = 0;
  // With weights and weight gradients these are all that was alive: the registry's bytes of the
  // device.
  std::vector<NamedBytes> buffers;
  std::vector<NamedBytes> optimizer_state;
  int64_t workspace_bytes = 0;  // library workspaces and raw blocks: no tensor's
  int64_t other_bytes = 0;  // of all else, the prototype layers in a Transformer's options among it
  int64_t current_bytes = 0;
  // More was born and freed than max_events: the two measured figures are at least these.
  int64_t dropped_events = 0;

  int64_t weight_bytes() const;
  int64_t weight_gradient_bytes() const;
};

// As it is printed.
std::string to_string(const IterationStats& stats);
// Rows of the CSV file, which begins with kProfilerCsvHeader. Kinds: peak_cached, current_cached,
// feature_map (one for each layer), weight, weight_grad, intermediate_grad, most_workspace; then
// buffer, optimizer_state, workspace, other, and current_bytes, which is the sum of weight,
// weight_grad, buffer, optimizer_state, workspace and other.
std::string to_csv(const IterationStats& stats);
constexpr char kProfilerCsvHeader[] = "epoch,iteration,kind,name,bytes\n";

class MemoryProfiler {
 public:
  // Activates the registry while this profiler lives.
  explicit MemoryProfiler(const torch::nn::Module& module, ProfilerOptions options = {});
  template <class M>
  explicit MemoryProfiler(const torch::nn::ModuleHolder<M>& holder, ProfilerOptions options = {})
      : MemoryProfiler(*holder, std::move(options)) {}
  ~MemoryProfiler();
  MemoryProfiler(const MemoryProfiler&) = delete;
  MemoryProfiler& operator=(const MemoryProfiler&) = delete;

  // Its state is then a kind of its own in the CSV file.
  MemoryProfiler& add_optimizer(const torch::optim::Optimizer& optimizer);

  // Ends an iteration: reports it if it is its turn.
  void record_stats();
  // Ends an epoch: iterations count from 1 again. What was done since the last record_stats(), such
  // as a validation pass, is in no iteration; parameters and children that the module has by now
  // are those of the next epoch.
  void epoch_end();

  // Of the last iteration that was reported.
  const IterationStats& last() const;
  std::string csv_path() const;  // absolute; empty without CSV

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
