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

// Holds the module weakly: other handles to it keep it alive.
class ScriptModuleRef {
 public:
  explicit ScriptModuleRef(const torch::jit::Module& module);
  ~ScriptModuleRef();
  ScriptModuleRef(ScriptModuleRef&&) noexcept;
  ScriptModuleRef& operator=(ScriptModuleRef&&) noexcept;

  bool ended() const;
  // Of the class, without its namespaces; empty when it has ended.
  std::string type_name() const;

  // `module` is the path of the module within this one that has the tensor, empty for this one. Parameters, buffers, other
  // attributes
  // (`scales.0` of a list, `table.key` of a dictionary), and the constants that freezing or tracing has put into the methods'
  // graphs (`forward.constant.0`; Role::kBuffer). Defined tensors only. The module is alive during the call.
  using Visit = std::function<void(const std::string& path, const std::string& module, Role role, const at::Tensor& tensor)>;
  // Returns what keeps the module alive, perhaps as the last; null when it has ended.
  std::shared_ptr<const void> for_each_tensor(const Visit& visit) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace memledger
