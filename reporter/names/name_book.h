#pragma once

// Knows the names of modules, optimizers and tensors that the user registered. Reads them again at
// each use.
//
//   memledger::NameBook names;
//   names.add_module("", *net);
//   for (const memledger::NamedTensor& named : names.read()) use(named.name, named.tensor);

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reporter/names/program_name.h"
#include "reporter/role.h"

namespace torch {
namespace jit {
struct Module;
}
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace memledger {

struct NamedTensor {
  std::string name;  // weight, encoder.0.bias.grad, Adam.weight.exp_avg
  Role role = Role::kTensor;
  // encoder.0, or the module's type if it has no path. A gradient and a state have the parameter's.
  std::string module;
  at::Tensor tensor;  // defined; a strong reference: drop it soon, and with no lock held
  std::shared_ptr<const void> owner;  // keeps the module alive as well
  TiedEmbedding tied;                 // as the program named it
  bool is_part = false;               // see ProgramName::is_part
};

// A gradient that nobody noted, and that another thread may be setting: that there was one is all
// that is known.
struct UnreadGradient {
  std::string name;  // weight.grad
  std::string module;
  c10::Device device = c10::Device(c10::kCPU);  // its parameter's
};

// Holds no tensor alive. A module in a ModuleHolder (or any shared_ptr) and a TorchScript module
// may end: their names end with them. LibTorch keeps the attributes of a TorchScript module that
// ended until our weak reference goes: when the book is next used. A module on the stack, and an
// optimizer, must outlive the book or be removed.
//
// Thread-safe, but not to be used under a ForkSafeMutex. Entries are read, and what has ended is
// let go of, without a lock, so that the program's deleters and destructors may use the same book.
// A read() has what was registered at one moment of the call. It may or may not have what another
// thread adds, removes or ends meanwhile. When memory fails, a function has only let go of what
// ended.
//
// Other threads may train meanwhile, within the limits of reporter/mem_reporter.h. Then gradients
// and states are known as they were noted, by backward and by steps; a gradient that was set by
// hand is an UnreadGradient. They are read as they are where the process has no other thread of the
// program's, and under a ScopedTrainingPaused (registry/training_paused.h).
class NameBook {
 public:
  NameBook();
  ~NameBook();
  NameBook(NameBook&&) noexcept;
  NameBook& operator=(NameBook&&) noexcept;

  // Adds a module's parameters and buffers as `prefix.path`, or `path` if the prefix is empty, and
  // their gradients with `.grad` behind. The layers that the options of a TransformerEncoder and
  // TransformerDecoder keep are `encoder.options.encoder_layer.…`. All functions that add something
  // read it, as read() does.
  void add_module(std::string prefix, const torch::nn::Module& module);
  // Adds a TorchScript module: its attributes and constants as well.
  void add_module(std::string prefix, const torch::jit::Module& module);
  // Adds an optimizer's state as `Adam.<parameter's name>.exp_avg`; a parameter outside any module
  // is `param<group>.<index>`. Read at each use, so this may come before the first step.
  void add_optimizer(const torch::optim::Optimizer& optimizer);
  // Name one tensor. A name in use passes to the new tensor, whichever function gave it. Throw
  // c10::Error if the tensor is undefined.
  void add_tensor(std::string name, const at::Tensor& tensor);
  void add_input(std::string name, const at::Tensor& tensor);
  void add_state(std::string name, const at::Tensor& tensor);
  // Forget what was added under a prefix or name, or an optimizer. Wait for other threads that are
  // reading it: it may end when they return. Throw c10::Error if nothing living was added so.
  void remove(std::string_view name);
  void remove_optimizer(const torch::optim::Optimizer& optimizer);

  // Returns all named tensors that live, by role, then in order of registration. A tensor comes
  // once for each of its names. Takes about a microsecond for each, and what
  // core::OtherThreads::look() takes.
  std::vector<NamedTensor> read(std::vector<UnreadGradient>* unread = nullptr) const;
  // Returns those that were added here, without the names that the program gave to others.
  std::vector<NamedTensor> read_added(std::vector<UnreadGradient>* unread = nullptr) const;

 private:
  std::vector<NamedTensor> read(bool with_told, std::vector<UnreadGradient>* unread) const;

  struct Entries;
  std::unique_ptr<Entries> entries_;
};

}  // namespace memledger
