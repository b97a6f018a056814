#pragma once

// Records when each storage is born and freed, for ui.perfetto.dev and pytorch.org/memory_viz.
//
//   memledger::Timeline timeline;
//   timeline.add_module("net", *model).add_optimizer(optimizer);
//   model->forward(input).sum().backward();
//   timeline.mark("after backward");
//   timeline.write("step.json").IgnoreError();    // Perfetto, chrome://tracing
//   timeline.write("step.pickle").IgnoreError();  // memory_viz, for the CPU as for CUDA

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "registry/recording.h"
#include "reporter/role.h"

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

struct TimelineOptions {
  // Maximum number of births and deaths that are kept, the last ones, and of marks. They take about
  // 140 bytes each and 0.6 MB, reserved at the start. What is dropped is counted. The timeline
  // begins with the first birth or death that is kept; marks from before it are dropped.
  size_t max_events = size_t{1} << 18;
  // Promises what a ScopedTrainingPaused does (registry/training_paused.h), during each call.
  // Without it, gradients that were set by hand have no names while there are other threads.
  bool training_paused = false;
};

struct TimelineMark {
  int64_t time_ns = 0;  // by recording_clock_ns()
  std::string label;
};

struct TimelineName {
  Role role = Role::kTensor;
  std::string name;
};

// What the files show, as a value.
struct TimelineData {
  Recording recording;
  std::vector<TimelineMark> marks;
  int64_t dropped_marks = 0;  // of all that were set
  // By storage id, as of the end, or of the last mark() while the storage was alive.
  std::unordered_map<uint64_t, TimelineName> names;
};

// Returns the series that counts a storage's bytes, the first of these that fits:
// - the role of its name (`Gradient`),
// - the kind of memory without a tensor (`raw block`, `library workspace`, `scratch`),
// - `Parameter`, if an operator read it as a leaf that requires grad,
// - the phase of its birth (`Tensor [forward]`).
std::string series_of(const Lifetime& life, const TimelineData& data);

// Writes Chrome's trace events as JSON, schema memledger.timeline/2 (docs/formats.md). Each device
// is a process with a counter per series, one of all bytes, and an async slice per storage. One
// more process has the threads' labels as slices, and the marks. Times are in microseconds.
void write_chrome_trace(const TimelineData& data, std::ostream& out);

// Writes what torch.cuda.memory._dump_snapshot() does, as pickle protocol 2. cuda:N is device N,
// the CPU comes behind the last GPU. Each storage is a segment of its own.
void write_memory_viz(const TimelineData& data, std::ostream& out);

// Writes for memory_viz if the path ends in `.pickle` or `.pkl`, else Chrome's trace events.
void write_timeline(const TimelineData& data, const std::string& path, std::ostream& out);

// Costs about 0.1 µs per allocation and free. Holds no tensor; optimizers and modules on the stack
// must outlive it. Any thread may call it, one at a time; a forked child may go on with it.
class Timeline {
 public:
  // Begins to record, and activates the registry until it dies. Throws c10::Error if there is no
  // memory for the events.
  explicit Timeline(const TimelineOptions& options = {});
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Give names and roles to the tensors of a module or an optimizer, or to one tensor.
  Timeline& add_module(std::string prefix, const torch::nn::Module& module);
  template <class M>
  Timeline& add_module(std::string prefix, const torch::nn::ModuleHolder<M>& holder) {
    return add_module(std::move(prefix), *holder);
  }
  Timeline& add_optimizer(const torch::optim::Optimizer& optimizer);
  Timeline& add_tensor(std::string name, const at::Tensor& tensor);

  // Marks this moment. Also records the names of live tensors, which they keep after they are
  // freed. Cost grows with the registered tensors.
  void mark(std::string label);

  // Returns the recording so far. Takes time by the number of events and of live storages.
  TimelineData read();
  // Writes it as write_timeline() does, and makes missing folders. The file is renamed into place
  // when it is whole, except for devices and pipes. Errors name the path.
  absl::Status write(const std::string& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
