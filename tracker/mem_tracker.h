#pragma once

// Writes a log of the tensors that came and went between two lines of a program, and returns each
// block of it as a value. See docs/what_changed.md.
//
//   memledger::MemTracker tracker;  // ./30-Apr-21-20:25:29-gpu_mem_track.txt
//   tracker.add_module("net", model).add_optimizer(optimizer);
//   tracker.track();
//   loss.backward();
//   const memledger::SnapshotDiff change = tracker.track("after backward");

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tracker/snapshot_diff.h"
#include "tracker/source_location.h"

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

// Returns cuda:0 if LibTorch sees a CUDA device, else cpu. Makes no CUDA context.
c10::Device default_device();

struct TrackerOptions {
  // Writes rows; false: At lines only.
  bool detail = true;
  // Folder of the log, made if missing; relative to the working directory, or to
  // $BUILD_WORKING_DIRECTORY under `bazel run`.
  std::string path;
  // Adds to each block what could not be read, and hook health.
  bool verbose = false;
  c10::Device device = default_device();
  // File in that folder to append to. Empty: a new one named by the time,
  // 30-Apr-21-20:25:29-gpu_mem_track.txt, with -2, -3 … if taken.
  std::string file_name;
  // False: a name without colons, 30-Apr-21-20-25-29-…, for file systems that refuse them.
  bool colons = true;
  // Writes to std::cout as well.
  bool echo = false;
  // Clock for the header and the file's name; empty: the system's.
  std::function<std::chrono::system_clock::time_point()> clock;
  // Another name of `path`, the one that other options have. Throws c10::Error if both are given
  // and differ.
  std::string folder;
  // Promises what a ScopedTrainingPaused does (registry/training_paused.h), during each call: reads
  // gradients and optimizer states as they are, while other threads run, too. For single calls,
  // make one around them.
  bool training_paused = false;
};

// Thread-safety: call any function from any thread, also from the deleter of a registered tensor.
// Other threads may train meanwhile, as with a MemReporter (reporter/mem_reporter.h). Trackers do
// not disturb each other. Ownership: holds no tensor. A module in a ModuleHolder or shared_ptr may
// end; a module on the stack, and an optimizer, must outlive the tracker or be removed. Functions
// throw std::bad_alloc if memory runs out; the next track() then reports what this one missed.
class MemTracker {
 public:
  // Activates the registry while the tracker lives, and writes the log's header. Throws c10::Error
  // with path and reason if the log cannot be made. Reports later write errors once on standard
  // error; the program goes on. A child of fork goes on in a log of its own.
  explicit MemTracker(TrackerOptions options = {});
  ~MemTracker();
  MemTracker(const MemTracker&) = delete;
  MemTracker& operator=(const MemTracker&) = delete;

  // Names parameters and buffers `prefix.path`, or `path` with an empty prefix, and gradients
  // `prefix.path.grad`. A row has the names of its moment; a freed storage keeps its last one.
  // Adopts tensors made before tracking; their rows say so.
  MemTracker& add_module(std::string prefix, const torch::nn::Module& module);
  template <class M>
  MemTracker& add_module(std::string prefix, const torch::nn::ModuleHolder<M>& holder) {
    return add_module(std::move(prefix), *holder);
  }
  // Names the optimizer's state `Adam.<parameter>.exp_avg`. May come before the first step.
  MemTracker& add_optimizer(const torch::optim::Optimizer& optimizer);
  // Names one tensor, without keeping it alive. Throws c10::Error if it is undefined.
  MemTracker& add_tensor(std::string name, const at::Tensor& tensor);
  // Names one tensor of an optimizer's state, where the optimizer is not LibTorch's.
  MemTracker& add_state(std::string name, const at::Tensor& tensor);
  // Forget a module's prefix, a tensor's name, or an optimizer. Throw c10::Error if nothing added
  // so is still alive.
  MemTracker& remove(std::string_view name);
  MemTracker& remove_optimizer(const torch::optim::Optimizer& optimizer);

  // Writes one block to the log, and returns it: what changed since the last call, or since the
  // tracker was made, by identity (tracker/snapshot_diff.h). The label follows the location in
  // brackets. Cost grows with the changes and the registered tensors, not with live storages.
  SnapshotDiff track(SourceLocation where = SourceLocation::current());
  SnapshotDiff track(std::string label, SourceLocation where = SourceLocation::current());

  // Returns the log's absolute path.
  std::string log_path() const;

  // Gives unused memory back: the cache of the device's allocator and LibTorch's pinned host memory
  // to the driver, the heap's (malloc_trim) to the system.
  void clear_cache();
  // Prints one line per live storage of the device, oldest first, without library workspaces and
  // raw blocks: torch.Size([64, 3, 3, 3]) torch.float32 0.006591796875 features.0.weight (in MiB).
  // Cost: by the live storages.
  void print_all_gpu_tensor(std::ostream& out) const;
  void print_all_gpu_tensor() const;  // to std::cout
  // Returns the first total of the At line: MiB (2^20 bytes) of live storages that are tensors';
  // NaN where the device is not followed. Cost: by the live storages.
  double get_tensor_usage() const;
  // Returns the second total, in MiB: what LibTorch's allocator says, or on the CPU what the
  // allocator's wrapper has counted; NaN where neither is known.
  double get_allocate_usage() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
