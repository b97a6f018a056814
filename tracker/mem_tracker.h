#pragma once

// A log of what became alive and what went away, line by line of the program.
//
//   memledger::MemTracker tracker;                    // ./30-Apr-21-20:25:29-gpu_mem_track.txt
//   tracker.add_module("net", net).add_optimizer(adam);
//   tracker.track();                                  // At main.cpp line 12: main    Total Tensor
//   Used Memory:0.0    Mb … auto loss = net->forward(x).sum(); tracker.track("after forward"); // +
//   | 3 * Size:(64, 256)    | Memory: 0.1875 M | Tensor | …
//
// The header of the log tells the totals when the tracker was made; the first track() tells what
// changed since then, each further one what changed since the one before. Rows are by identity: see
// tracker/snapshot_diff.h. Names are those at the time of the row; what has gone keeps its last
// one. Tensors made before tracking began are found through what is registered here; their rows say
// so.
//
// Units: MiB (2^20 bytes) in the log and from get_*_usage(), bytes in SnapshotDiff. `Total Tensor
// Used Memory` is the sum of the live storages that the registry follows: what LibTorch keeps for
// cuBLAS and raw blocks have rows, of the roles LibraryWorkspace and RawBlock, but are no tensor's
// memory. `Total Allocated Memory` is on the CPU what the allocator wrapper counted by itself, on
// other devices what LibTorch's own allocator says. Errors: the constructor throws c10::Error
// naming path and reason when the log cannot be made. After that nothing throws because of the
// file: trouble with it is reported once on stderr, and the program goes on. Without memory
// functions throw std::bad_alloc, and nothing is lost: the next track() tells what this one could
// not, once. Ownership: holds no tensor. A module in a ModuleHolder or shared_ptr may end; a module
// on the stack, and an optimizer, must outlive the tracker or be removed from it. Thread-safety:
// any function from any thread, the deleter of a registered tensor included; registered modules and
// optimizers must not be changed by another thread during a call. Several trackers do not disturb
// each other. Cost of track(): by changes since the last call and by registered tensors, not by
// live tensors; see tests/bench.

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

// cuda:0 if LibTorch sees a CUDA device, else cpu.
c10::Device default_device();

struct TrackerOptions {
  bool detail = true;    // false: the log has At lines only
  std::string path;      // folder of the log, made if missing; relative to $BUILD_WORKING_DIRECTORY
                         // under `bazel run`
  bool verbose = false;  // the log tells hook health, and what could not be read
  c10::Device device = default_device();
  // Empty: the time, as 30-Apr-21-20:25:29-gpu_mem_track.txt, with -2, -3 … if taken. Given: that
  // file in `path`, appended to.
  std::string file_name;
  bool colons =
      true;  // in the name: false writes 30-Apr-21-20-25-29-…, for file systems that refuse colons
  bool echo = false;  // all that goes into the log goes to std::cout, too
  // Of the header and the file's name. Empty: the system's clock.
  std::function<std::chrono::system_clock::time_point()> clock;
};

class MemTracker {
 public:
  // Activates the registry while this tracker lives.
  explicit MemTracker(TrackerOptions options = {});
  ~MemTracker();
  MemTracker(const MemTracker&) = delete;
  MemTracker& operator=(const MemTracker&) = delete;

  // Names are `prefix.path`, or `path` with an empty prefix; gradients have `.grad` behind.
  MemTracker& add_module(std::string prefix, const torch::nn::Module& module);
  template <class M>
  MemTracker& add_module(std::string prefix, const torch::nn::ModuleHolder<M>& holder) {
    return add_module(std::move(prefix), *holder);
  }
  // Adam.<parameter>.exp_avg …; may come before the first step.
  MemTracker& add_optimizer(const torch::optim::Optimizer& optimizer);
  // Held weakly. Throws c10::Error if it is undefined.
  MemTracker& add_tensor(std::string name, const at::Tensor& tensor);
  // Forget what was added. Throw c10::Error if it was not.
  void remove(std::string_view name);
  void remove_optimizer(const torch::optim::Optimizer& optimizer);

  // Writes one block to the log, and gives it back as a value.
  SnapshotDiff track(SourceLocation where = SourceLocation::current());
  // The label stands in brackets behind the location.
  SnapshotDiff track(std::string label, SourceLocation where = SourceLocation::current());

  std::string log_path() const;  // absolute

  // Gives memory that nobody uses back: what the device's caching allocator keeps, and LibTorch's
  // cache of pinned host memory, to the driver; the heap's (malloc_trim) to the system.
  void clear_cache();
  // One line for each live storage of the device (workspaces and raw blocks are none), in order of
  // birth: torch.Size([64, 3, 3, 3]) torch.float32 0.006591796875 features.0.weight Cost: by the
  // number of live storages.
  void print_all_gpu_tensor(std::ostream& out) const;
  void print_all_gpu_tensor() const;  // to std::cout
  // The two totals of the At line, in MiB. Cost of the first: by the number of live storages.
  double get_tensor_usage() const;
  double get_allocate_usage() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
