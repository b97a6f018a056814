#pragma once

// Lists who holds the memory of each device.
//
//   auto net = models::resnet50();
//   memledger::MemReporter reporter(net);          // names from its parameters, buffers and gradients
//   reporter.add_optimizer(adam).add_input("x", x);
//   auto loss = net->forward(x).sum();
//   reporter.add_graph(loss);
//   reporter.report();                             // to std::cout
//   reporter.report(/*verbose=*/true);
//
// The first reporter of a process activates the registry; tensors made before that are found through what is registered here, and
// counted apart. Holds no tensor alive; a module in a ModuleHolder may end at any time, a module on the stack and an optimizer must
// outlive the reporter or be removed. Errors: c10::Error for undefined tensors and unknown names; report() itself never throws for a
// tensor it cannot read. Thread-safety: one thread at a time per reporter; other threads may go on allocating, the report is of one
// instant. Cost: by the number of live storages and registered tensors.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "reporter/report.h"

namespace torch {
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace memledger {

class MemReporter {
 public:
  MemReporter();
  explicit MemReporter(const torch::nn::Module& module);
  template <class M>
  explicit MemReporter(const torch::nn::ModuleHolder<M>& module) : MemReporter(*module) {}
  ~MemReporter();
  MemReporter(MemReporter&&) noexcept;
  MemReporter& operator=(MemReporter&&) noexcept;

  MemReporter& add_module(std::string prefix, const torch::nn::Module& module);
  template <class M>
  MemReporter& add_module(std::string prefix, const torch::nn::ModuleHolder<M>& module) {
    return add_module(std::move(prefix), *module);
  }
  // Read at each report, so it may come before the first step. Adam.weight.exp_avg …
  MemReporter& add_optimizer(const torch::optim::Optimizer& optimizer);
  MemReporter& add_tensor(std::string name, const at::Tensor& tensor);
  MemReporter& add_input(std::string name, const at::Tensor& tensor);
  // Role and names (`ConvolutionBackward0.input`) for what the graph of `loss` holds for the backward pass. The graph is followed while
  // `loss` lives; a graph that has been freed adds nothing.
  MemReporter& add_graph(const at::Tensor& loss);
  // Forgets a module's prefix or a tensor's name; throws c10::Error if there is none.
  MemReporter& remove(std::string_view name);
  MemReporter& remove(const torch::optim::Optimizer& optimizer);

  Report collect(ReportOptions options = {}) const;
  void report(bool verbose = false, std::optional<c10::Device> device = std::nullopt) const;
  void report(std::ostream& out, bool verbose = false, std::optional<c10::Device> device = std::nullopt) const;
  void report(std::ostream& out, const ReportOptions& options) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace memledger
