#pragma once

// Lists who holds the memory of each device: parameters, gradients, optimizer state, inputs, what
// autograd saved, and by operator whatever has no name.
//
//   memledger::MemReporter reporter(model);
//   reporter.add_optimizer(optimizer).add_input("input", input);
//   reporter.report();  // to std::cout
//
// Call it from any thread; the class says what other threads must not do meanwhile. Costs grow with
// live storages and registered tensors.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "graph/saved_tensors.h"
#include "registry/snapshot.h"
#include "reporter/report.h"
#include "reporter/why_alive.h"

namespace torch {
namespace jit {
struct Module;
}
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace memledger {

// Names are read again at each report, and no tensor is kept alive between calls, except those of a
// destroyed TorchScript module (see add_module()). A module in a ModuleHolder may be destroyed at
// any time; a module on the stack and an optimizer must outlive the reporter or be removed from it.
//
// A reporter holds a ScopedTracking: the first one activates the registry. Tensors made before that
// are found through what is registered here, and counted apart. Where tracking cannot be had, a
// line on standard error says why, and reports print ? for what nobody follows.
//
// Other threads may train meanwhile: run forward, backward and step(), clear gradients, allocate
// and free. During a call they must not change which modules, parameters and buffers there are
// (register_module(), to(), add_param_group()), nor destroy what has to be removed first.
//
// Gradients and optimizer states are read as they are where the process has no other thread of the
// program's; workers of OpenMP, BLAS, autograd and CUDA do not count. Otherwise reports have those
// that backward() and step() made: a gradient that was set by hand, or before it was registered, is
// a row without bytes (RowKind::kUnread) that names ReportOptions::training_paused. A
// ScopedTrainingPaused (registry/training_paused.h) promises the same for any call. Bytes are exact
// in each case.
//
// Errors: functions throw c10::Error for undefined tensors and unknown names, never for a tensor
// that cannot be read, and std::bad_alloc, having changed nothing, where memory fails.
class MemReporter {
 public:
  MemReporter();
  // Start with the names of a module's parameters, buffers and gradients, as add_module("", module)
  // does.
  explicit MemReporter(const torch::nn::Module& module);
  template <class M>
  explicit MemReporter(const torch::nn::ModuleHolder<M>& module) : MemReporter(*module) {}
  explicit MemReporter(const torch::jit::Module& module);
  ~MemReporter();
  MemReporter(MemReporter&&) noexcept;
  MemReporter& operator=(MemReporter&&) noexcept;

  // Adds the parameters, buffers and gradients of a module under `prefix.path`, or `path` if the
  // prefix is empty.
  MemReporter& add_module(std::string prefix, const torch::nn::Module& module);
  template <class M>
  MemReporter& add_module(std::string prefix, const torch::nn::ModuleHolder<M>& module) {
    return add_module(std::move(prefix), *module);
  }
  // Adds a TorchScript module's parameters, buffers, attributes and constants. Holds it weakly:
  // other handles keep it alive. After it is destroyed, LibTorch frees its tensors only when this
  // reporter is next used.
  MemReporter& add_module(std::string prefix, const torch::jit::Module& module);
  // Adds an optimizer's state as Adam.weight.exp_avg. It is read at each report, so this may come
  // before the first step.
  MemReporter& add_optimizer(const torch::optim::Optimizer& optimizer);
  // Name one tensor; add_input() gives it the role of an input. A name in use passes to the new
  // tensor, and is forgotten when its tensor ends. Throw c10::Error if the tensor is undefined.
  MemReporter& add_tensor(std::string name, const at::Tensor& tensor);
  MemReporter& add_input(std::string name, const at::Tensor& tensor);
  // Names one tensor of an optimizer's state, where the optimizer is not LibTorch's.
  MemReporter& add_state(std::string name, const at::Tensor& tensor);
  // Finds what the graph of `loss` holds for the backward pass: it gets the role kSaved and, unless
  // it has a name, that of its slot (ConvolutionBackward0.input). The graph is followed while
  // `loss` lives; one that backward() has freed adds nothing. Adding a loss twice is adding it
  // once.
  MemReporter& add_graph(const at::Tensor& loss);
  // Returns what saved_for_backward(loss, options) does, with the names and roles of all
  // parameters, buffers and inputs registered here. Throws as it does.
  SavedTensors saved_for_backward(const at::Tensor& loss, SavedTensorOptions options = {}) const;
  // Forget what was added under a module's prefix or a tensor's name, or an optimizer. Wait for
  // running reports; afterwards you may destroy it. Throw c10::Error if nothing added so is still
  // alive.
  MemReporter& remove(std::string_view name);
  MemReporter& remove_optimizer(const torch::optim::Optimizer& optimizer);
  MemReporter& remove(const torch::optim::Optimizer& optimizer) {
    return remove_optimizer(optimizer);
  }

  // Returns a report of one instant, with every row. report() prints it: to std::cout, or to a
  // stream, whose state shows if printing failed.
  Report collect(ReportOptions options = {}) const;
  void report(bool verbose = false, std::optional<c10::Device> device = std::nullopt) const;
  void report(std::ostream& out, bool verbose = false,
              std::optional<c10::Device> device = std::nullopt) const;
  void report(std::ostream& out, const ReportOptions& options) const;

  // Returns who was alive when the device's requested bytes were highest (Registry::peak_snapshot).
  // Tensors that still live have their names; the others are TensorN with what made them. Memory
  // that libraries took outside storages is a row of its operator, without a shape. Ignores
  // options.device. With a label, only what was born under it (Registry::keep_label_peak).
  Report collect_peak(c10::Device device, ReportOptions options = {},
                      const std::string& label = "") const;
  // Returns who was alive at a snapshot's instant (registry/snapshot.h), with names as
  // collect_peak() has them. Ignores options.device.
  Report collect_at(const Snapshot& snapshot, ReportOptions options = {}) const;
  // Prints collect_peak(device).
  void report_peak(std::ostream& out, c10::Device device) const;

  // Returns who keeps the tensor's storage alive: names, optimizer slots, slots of added graphs
  // with the way there from the root, and how many references none of these explains. The largest
  // part of a sparse tensor stands for it. A name is one from a report: weight, a+b,
  // ReluBackward0.result, Tensor7 of the last one. Throws c10::Error for an undefined tensor and
  // for a name that no living tensor has. Costs as much as collect(), and a walk of the graph for
  // each slot.
  WhyAlive why(const at::Tensor& tensor) const;
  WhyAlive why(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
