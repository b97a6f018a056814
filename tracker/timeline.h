#pragma once

// When each storage was born and freed between two points, for ui.perfetto.dev and
// pytorch.org/memory_viz.
//
//   memledger::Timeline timeline;
//   timeline.add_module("net", net);
//   ... a training step; timeline.mark("after forward"); ...
//   timeline.write("step.json").IgnoreError();       // Perfetto, chrome://tracing
//   timeline.write("step.pickle").IgnoreError();     // memory_viz; for the CPU as for CUDA
//
// Bounded: the last TimelineOptions::max_events births and deaths are kept, some 140 bytes each,
// and as many marks; what was dropped is counted, and the timeline begins where no birth or death
// is missing any more.
//
// Units: bytes as requested; times in the files are microseconds. Errors: the constructor throws
// c10::Error when there is no memory for the events; write() returns a status with the path.
// Ownership: holds no tensor; modules on the stack and optimizers must outlive it. Thread-safety:
// any function from any thread, one at a time; a child of fork may go on. Cost: about 0.1 µs per
// allocation and per free; mark() by registered tensors, read() also by events and live storages.

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
  size_t max_events = size_t{1} << 18;
};

struct TimelineMark {
  int64_t time_ns = 0;
  std::string label;
};

struct TimelineName {
  Role role = Role::kTensor;
  std::string name;
};

// All that is in the files, as a value.
struct TimelineData {
  Recording recording;
  std::vector<TimelineMark> marks;
  int64_t dropped_marks = 0;  // of this time, at most: the last max_events are kept
  std::unordered_map<uint64_t, TimelineName> names;  // by storage id; of the last mark, or the end
};

// The series that a storage's bytes are in: its role if it has a name (`Gradient`); `Parameter` if
// an operator consumed it as a leaf that requires grad; else `Tensor [forward]`, by the phase it
// was born in; what is no tensor's by its kind: `raw block`, `library workspace`, `scratch`
// (registry/storage_kind.h).
std::string series_of(const Lifetime& life, const TimelineData& data);

// Chrome's trace event format, as JSON: for each device, a process with a counter per series and
// one of all bytes, and an async slice per storage; a process with the threads' labels as slices,
// and the marks.
void write_chrome_trace(const TimelineData& data, std::ostream& out);

// What torch.cuda.memory._dump_snapshot() writes (pickle protocol 2): cuda:N is device N there, the
// CPU comes behind the last. Every storage is a segment of its own.
void write_memory_viz(const TimelineData& data, std::ostream& out);

// In the format that the path's extension asks for: `.pickle` and `.pkl` are for memory_viz, all
// else is a Chrome trace.
void write_timeline(const TimelineData& data, const std::string& path, std::ostream& out);

class Timeline {
 public:
  // From now on. Activates the registry while it lives.
  explicit Timeline(const TimelineOptions& options = {});
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  Timeline& add_module(std::string prefix, const torch::nn::Module& module);
  template <class M>
  Timeline& add_module(std::string prefix, const torch::nn::ModuleHolder<M>& holder) {
    return add_module(std::move(prefix), *holder);
  }
  Timeline& add_optimizer(const torch::optim::Optimizer& optimizer);
  Timeline& add_tensor(std::string name, const at::Tensor& tensor);

  // A point in time with a name. Also reads the names of what is alive: what dies later keeps them.
  void mark(std::string label);

  TimelineData read();
  // As write_timeline(). Written beside and then renamed, so that there is never half a file;
  // devices and pipes in place.
  absl::Status write(const std::string& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
