#pragma once

// Names that the program tells without knowing: by asking its modules for their parameters, by
// moving them, by stepping its optimizers. The runner sees these calls (runner/inside).
//
//   memledger::ProgramNames::global().note(module);  // while the module is known to live
//   for (const memledger::ProgramName& known : memledger::ProgramNames::global().read()) …

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reporter/role.h"

namespace torch {
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

struct ProgramName {
  std::string name;  // encoder.0.weight, AdamW.encoder.0.weight.exp_avg
  Role role = Role::kTensor;
  std::string module;  // see NamedTensor::module
};

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
  // Notes what a module has just registered. The module may be in the middle of its constructor:
  // until a call of the above tells more, its type at that moment stands before the name.
  void note_registered(const torch::nn::Module& module, const std::string& name, Role role,
                       const at::Tensor& tensor) noexcept;
  // Notes what an optimizer keeps. To be called on the thread that stepped it, before it does
  // anything else.
  void note_step(const torch::optim::Optimizer& optimizer) noexcept;
  // Returns whether anything was ever noted: cheap.
  bool empty() const noexcept;

  struct Living : ProgramName {
    at::Tensor tensor;      // a strong reference: drop it soon, and with no lock held
    uint32_t noted_by = 0;  // the thread
  };
  // Returns what lives, in order of first sight.
  std::vector<Living> living() const;
  struct Kept : ProgramName {
    uint64_t storage_id = 0;
  };
  // Returns the names of storages, those that have ended as well, by id.
  std::vector<Kept> kept() const;

 private:
  ProgramNames();
  struct Table;
  std::unique_ptr<Table> table_;
};

}  // namespace memledger
