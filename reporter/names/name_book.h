#pragma once

// Who is called what: the modules, optimizers and tensors that the user registered, read anew at
// each use.
//
//   memledger::NameBook names;
//   names.add_module("", *net);
//   for (const memledger::NamedTensor& named : names.read()) { ... named.name, named.role,
//   named.tensor ... }
//
// Holds no tensor alive. A module owned by a ModuleHolder (or any shared_ptr) and a TorchScript
// module may end: its names end with it. LibTorch keeps the attributes of a TorchScript module that
// was dropped until the last weak reference goes, which is ours: their memory is given back when
// the book is next used, in any way. A module on the stack, and an optimizer, must outlive the book
// or be removed from it. Tensors are held weakly; a name ends with its tensor and is then
// forgotten. Cost of read(): by the number of registered tensors that live, about a microsecond
// each; a dead one costs once.
//
// Thread-safety: any thread, any function, at any time; not under a ForkSafeMutex. Entries are
// read, and what has ended is let go of, without a lock: deleters and destructors of the program's
// may use the same book. A read() tells of what was registered at one moment of the call. Of what
// another thread adds or removes meanwhile, and of what ends, it may tell or not. When remove() and
// remove_optimizer() return, no thread is reading the module or optimizer, and it may end; they
// wait for those that are, which takes as long as reading that one. (The caller's own read(), which
// a deleter may come from, reads no more of it either.) When memory fails, a function has done
// nothing but let go of what ended.
//
// Other threads may train meanwhile: run forward and backward, step, set gradients to none. A
// thread beside others that train (registry/core/training_threads.h) knows gradients and states as
// they were noted, by backward, by steps, and when something was added; what was set by hand since
// then has no name for it. They may not change which modules, parameters and buffers there are
// (register_module, to(), add_param_group) while they are read. What ends meanwhile may end with
// the result of read().

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
  std::string name;  // weight, encoder.0.bias.grad, Adam.weight.exp_avg …
  Role role = Role::kTensor;
  std::string module;  // encoder.0, or the module's type where it has no path; of the parameter,
                       // for its gradient and state
  at::Tensor tensor;   // defined; a strong reference: drop it soon, and with no lock held
  std::shared_ptr<const void> owner;  // keeps the module alive as well
};

class NameBook {
 public:
  NameBook();
  ~NameBook();
  NameBook(NameBook&&) noexcept;
  NameBook& operator=(NameBook&&) noexcept;

  // Those that add read what is added, as read() does.
  // Names are `prefix.path`, or `path` with an empty prefix; gradients have `.grad` behind.
  // The layers that a TransformerEncoder's and TransformerDecoder's options keep are
  // `encoder.options.encoder_layer.…`.
  void add_module(std::string prefix, const torch::nn::Module& module);
  // Attributes and constants of a TorchScript module as well.
  void add_module(std::string prefix, const torch::jit::Module& module);
  // Names are `Adam.<parameter's name>.exp_avg`; a parameter outside any module is
  // `param<group>.<index>`. The state is read at each use, so this may come before the first step.
  void add_optimizer(const torch::optim::Optimizer& optimizer);
  // A name in use for another tensor, dead or alive, passes to this one, whichever of the two
  // functions gave it. Both throw c10::Error for an undefined tensor.
  void add_tensor(std::string name, const at::Tensor& tensor);
  void add_input(std::string name, const at::Tensor& tensor);
  // Forgets what was added under that prefix or name. Throws c10::Error if there is none that
  // lives.
  void remove(std::string_view name);
  void remove_optimizer(const torch::optim::Optimizer& optimizer);

  // In order of role, then of registration. One tensor may come several times (tied parameters, a
  // parameter that is also registered by hand).
  std::vector<NamedTensor> read() const;

 private:
  struct Entries;
  std::unique_ptr<Entries> entries_;
};

}  // namespace memledger
