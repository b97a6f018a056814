#pragma once

// Lists who holds the memory of each device.
//
//   auto net = models::resnet50();
//   memledger::MemReporter reporter(net);          // names from its parameters, buffers and
//   gradients reporter.add_optimizer(adam).add_input("x", x); auto loss = net->forward(x).sum();
//   reporter.add_graph(loss);
//   reporter.report();                             // to std::cout
//   reporter.report(/*verbose=*/true);
//
// The first reporter of a process activates the registry; tensors made before that are found
// through what is registered here, and counted apart. Each reporter undoes its activation when it
// ends. Where tracking cannot be had, a line on standard error says why, and reports print ? for
// what nobody follows (ScopedTracking). Holds no tensor alive, but for the moment that collect()
// takes; a module in a ModuleHolder may end at any time, a module on the stack and an optimizer
// must outlive the reporter or be removed. What has ended is forgotten at the next use. Errors:
// c10::Error for undefined tensors and unknown names; report() itself never throws for a tensor it
// cannot read. Without memory functions throw std::bad_alloc and have changed nothing; the next one
// is right (a stream that cannot print for that reason says so by its state). Thread-safety: any
// thread, any number of them at a time; a report is of one instant. No lock is held while code of
// the program's runs, and a child of fork may go on; remove() waits for reports that are reading
// what it removes. A TorchScript module that ended has its memory given back at the next use, as
// LibTorch keeps it for the weak reference here. Cost: by the number of live storages and
// registered tensors.

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

// Beside threads that train, which set gradients and fill optimizers without a lock: they may run
// forward, backward and step(), set gradients to none, and allocate and free, also what is
// registered here. They may not change which modules, parameters and buffers there are
// (register_module(), to(), add_param_group()), nor end what has to be removed first, during a
// call. As long as no thread other than the caller was seen to train (to run operators on what
// requires grad, or to step a parameter), all is read as it is. Else gradients and states are those
// noted when they were made or registered: gradients where backward() ends with them, states when
// step() writes to their parameter. What was set by hand (mutable_grad(), load()), retained
// (retain_grad()), or made before tracking and registered beside training is anonymous then, of
// LBFGS what it replaced since its last write; bytes are as exact as ever. Register before training
// begins, or on its thread. A module or tensor that ends during a report may do so on the reporting
// thread.
class MemReporter {
 public:
  MemReporter();
  explicit MemReporter(const torch::nn::Module& module);
  template <class M>
  explicit MemReporter(const torch::nn::ModuleHolder<M>& module) : MemReporter(*module) {}
  explicit MemReporter(const torch::jit::Module& module);
  ~MemReporter();
  MemReporter(MemReporter&&) noexcept;
  MemReporter& operator=(MemReporter&&) noexcept;

  MemReporter& add_module(std::string prefix, const torch::nn::Module& module);
  template <class M>
  MemReporter& add_module(std::string prefix, const torch::nn::ModuleHolder<M>& module) {
    return add_module(std::move(prefix), *module);
  }
  // A TorchScript module: parameters, buffers, attributes and constants. Held weakly: other handles
  // keep it alive.
  MemReporter& add_module(std::string prefix, const torch::jit::Module& module);
  // Read at each report, so it may come before the first step. Adam.weight.exp_avg …
  MemReporter& add_optimizer(const torch::optim::Optimizer& optimizer);
  // A name in use for another tensor passes to this one, whether add_tensor or add_input gave it. A
  // name ends with its tensor.
  MemReporter& add_tensor(std::string name, const at::Tensor& tensor);
  MemReporter& add_input(std::string name, const at::Tensor& tensor);
  // The role of what the graph of `loss` holds for the backward pass, and names
  // (`ConvolutionBackward0.input`) for what nothing else that is registered explains. The graph is
  // followed while `loss` lives; a graph that has been freed adds nothing, nor does the same loss a
  // second time.
  MemReporter& add_graph(const at::Tensor& loss);
  // saved_for_backward(loss, options) where all that is registered here stands apart: parameters by
  // their names, buffers, inputs. Errors as there.
  SavedTensors saved_for_backward(const at::Tensor& loss, SavedTensorOptions options = {}) const;
  // Forgets a module's prefix or a tensor's name; throws c10::Error if there is none that lives.
  MemReporter& remove(std::string_view name);
  MemReporter& remove(const torch::optim::Optimizer& optimizer);

  Report collect(ReportOptions options = {}) const;
  void report(bool verbose = false, std::optional<c10::Device> device = std::nullopt) const;
  void report(std::ostream& out, bool verbose = false,
              std::optional<c10::Device> device = std::nullopt) const;
  void report(std::ostream& out, const ReportOptions& options) const;

  // Who was alive when the device's requested bytes were highest (Registry::peak_snapshot). Names
  // are of tensors that still live on those storages; the others are TensorN with what made them.
  // Memory outside storages that libraries took for an operator is a row of that operator without
  // shape. options.device is ignored. With a label: of what was born under it
  // (Registry::keep_label_peak).
  Report collect_peak(c10::Device device, ReportOptions options = {},
                      const std::string& label = "") const;
  void report_peak(std::ostream& out, c10::Device device) const;

  // Who keeps the tensor's storage alive: names, optimizer slots, slots of the graphs that were
  // added and the way there from their root, and how many references nothing of that explains. Of a
  // sparse tensor, its largest part. A name is one of a report: weight, a+b, ReluBackward0.result,
  // Tensor7 of the last report. Throws c10::Error for an undefined tensor and for a name that no
  // living tensor has. Cost: as collect(), and a walk of the graph for each slot.
  WhyAlive why(const at::Tensor& tensor) const;
  WhyAlive why(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
