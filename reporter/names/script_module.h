#pragma once

// Reads the tensors of a TorchScript module, which is not a torch::nn::Module.

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

// Holds the module weakly: other handles keep it alive. But LibTorch's Object frees its attributes
// only with the last weak reference, so those of a module that has ended take memory until this
// ends, too. There is no other way. Weak references to its tensors would miss what is assigned to
// an attribute later. An address does not show whether its module has ended. A module's other parts
// (classes, compilation unit, modules within) may outlive it.
class ScriptModuleRef {
 public:
  explicit ScriptModuleRef(const torch::jit::Module& module);
  ~ScriptModuleRef();
  ScriptModuleRef(ScriptModuleRef&&) noexcept;
  ScriptModuleRef& operator=(ScriptModuleRef&&) noexcept;

  bool ended() const;
  // Returns the class without its namespaces; empty if the module has ended.
  std::string type_name() const;

  // `module` is the path of the module that has the tensor, empty for this one.
  using Visit = std::function<void(const std::string& path, const std::string& module, Role role,
                                   const at::Tensor& tensor)>;
  // Calls visit() for each defined tensor: parameters, buffers, other attributes (`scales.0` of a
  // list, `table.key` of a dictionary), and constants that freezing or tracing has put into
  // methods' graphs (`forward.constant.0`; Role::kBuffer). Returns a reference that keeps the
  // module alive, perhaps the last; null if the module has ended.
  std::shared_ptr<const void> for_each_tensor(const Visit& visit) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace memledger
