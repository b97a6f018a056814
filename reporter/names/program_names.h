#pragma once

// Names that a program reveals when it asks its modules for their parameters, moves them or steps
// its optimizers. The runner sees these calls (runner/inside).
//
//   memledger::ProgramNames::global().note(module);  // while the module is known to live
//   for (const memledger::ProgramName& known : memledger::ProgramNames::global().read()) …

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "reporter/names/program_name.h"

namespace torch {
namespace inductor {
class AOTIModelContainerRunner;
}
namespace jit {
struct Module;
}
namespace nn {
class Module;
}
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace memledger {

// Thread-safe. Holds no tensor alive, and neither modules nor optimizers: it has weak references to
// tensor objects, and the ids of their storages, by which they still have a name at a peak after
// they have gone. Its functions let no exception out; without memory, names are missing.
//
// A module that is part of another one has its path there once the other is noted. Where several
// modules are part of none, their types stand before the names: Generator.conv1.weight,
// Discriminator.conv1.weight, Net.weight, Net#2.weight.
class ProgramNames {
 public:
  // Returns that of the process. Never destroyed.
  static ProgramNames& global();

  // Note the parameters and buffers that a module has now. It has to live for the call.
  void note(const torch::nn::Module& module) noexcept;
  void note(const torch::jit::Module& module) noexcept;
  // Its constants: it does not distinguish parameters and buffers, so all count as parameters.
  void note(const torch::inductor::AOTIModelContainerRunner& compiled) noexcept;
  // Notes what a compiled model is given: input0, input1. A tensor that has a name keeps it.
  void note_inputs(const std::vector<at::Tensor>& inputs) noexcept;
  // Notes what a data set gives to models: MNIST.images.
  void note_input(const std::string& name, const at::Tensor& input) noexcept;
  // Notes what a module has just registered. The module may be in the middle of its constructor:
  // until one of the calls above gives more, its type at that moment stands before the name.
  void note_registered(const torch::nn::Module& module, const std::string& name, Role role,
                       const at::Tensor& tensor) noexcept;
  // Notes what an optimizer keeps. To be called on the thread that stepped it, before it does
  // anything else.
  void note_step(const torch::optim::Optimizer& optimizer) noexcept;
  // Returns whether anything was ever noted: cheap.
  bool empty() const noexcept;

  using Living = LivingName;
  // Returns what lives, in order of first sight. Includes what ToldNames knows.
  std::vector<Living> living() const;
  using Kept = KeptName;
  // Returns the names of storages, those that have ended as well, by id. Includes what ToldNames
  // knows.
  std::vector<Kept> kept() const;

 private:
  ProgramNames();
  struct Table;
  std::unique_ptr<Table> table_;
};

}  // namespace memledger
