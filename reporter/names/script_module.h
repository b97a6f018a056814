#pragma once

// The tensors of a TorchScript module, which is no torch::nn::Module.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "reporter/role.h"

namespace torch {
namespace jit {
struct Module;
}
}  // namespace torch

namespace memledger {

// Holds the module weakly: other handles to it keep it alive. But LibTorch's Object gives its
// attributes back with the last weak reference only, so those of a module that has ended take
// memory until this is ended, too. There is no other way to hold one: weak references to its
// tensors would not see what is assigned to an attribute later, an address alone cannot be asked
// whether its module has ended, and what a module has beside its tensors (classes, compilation
// unit, modules within) may live longer than it.
class ScriptModuleRef {
 public:
  explicit ScriptModuleRef(const torch::jit::Module& module);
  ~ScriptModuleRef();
  ScriptModuleRef(ScriptModuleRef&&) noexcept;
  ScriptModuleRef& operator=(ScriptModuleRef&&) noexcept;

  bool ended() const;
  // Of the class, without its namespaces; empty when it has ended.
  std::string type_name() const;

  // `module` is the path of the module within this one that has the tensor, empty for this one.
  // Parameters, buffers, other attributes
  // (`scales.0` of a list, `table.key` of a dictionary), and the constants that freezing or tracing
  // has put into the methods' graphs (`forward.constant.0`; Role::kBuffer). Defined tensors only.
  // The module is alive during the call.
  using Visit = std::function<void(const std::string& path, const std::string& module, Role role,
                                   const at::Tensor& tensor)>;
  // Returns what keeps the module alive, perhaps as the last; null when it has ended.
  std::shared_ptr<const void> for_each_tensor(const Visit& visit) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace memledger
