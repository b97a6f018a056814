#pragma once

// Finds the layer that the calling thread is in from what its operators consume, as C++ modules
// have no forward hooks.
//
// A layer is a module that owns a parameter: from the operator that consumes the parameter until
// one that consumes another module's. With SequentialProbes each child of a Sequential is one, too.
// Operators that consume no parameter belong to the layer before them.

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace memledger::layers {

struct ModuleLayer {
  std::string name;        // its path; empty for the module itself
  std::string type;        // without namespace and Impl
  int64_t parameters = 0;  // elements of its own, not its children's
};

// Returns a type without namespace and Impl: Sequential for torch::nn::SequentialImpl.
std::string plain_type_name(std::string_view demangled);

// A module with all modules below it, and the owners of their parameters. Holds the parameters
// weakly, which keeps their addresses from being reused, but not their memory. modules() and
// index_of() must not be called once the module has ended.
class ModuleTree {
 public:
  explicit ModuleTree(torch::nn::Module& module);
  // For a module that has ended.
  explicit ModuleTree(ModuleLayer ended);

  const std::vector<ModuleLayer>& layers() const { return layers_; }
  std::optional<size_t> owner_of(const c10::TensorImpl* parameter) const;
  size_t index_of(const torch::nn::Module& module) const { return indices_.at(&module); }
  const std::vector<torch::nn::Module*>& modules() const { return modules_; }

 private:
  void add(torch::nn::Module& module, const std::string& path);

  struct Owner {
    size_t layer;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
  };
  std::vector<ModuleLayer> layers_;
  std::vector<torch::nn::Module*> modules_;
  std::unordered_map<const torch::nn::Module*, size_t> indices_;
  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
};

// Hears of the calling thread's operators.
class OperatorListener {
 public:
  // Called when an outermost operator begins, with the owner of the first parameter among its
  // inputs. `name` lives as long as the operator.
  virtual void on_operator(const char* name, std::optional<size_t> layer) = 0;
  // Called for leaves that require grad among an outermost operator's inputs, if there is no tree.
  virtual void on_leaf(const at::Tensor& /*leaf*/) {}
  // Called for each result of any operator, inner ones first.
  virtual void on_result(const at::Tensor& tensor, bool outermost) = 0;

 protected:
  ~OperatorListener() = default;
};

// Connects a listener while it lives: one per thread. What the listener throws is dropped.
class ScopedOperators {
 public:
  ScopedOperators(const ModuleTree* tree, OperatorListener& listener);
  ~ScopedOperators();
  ScopedOperators(const ScopedOperators&) = delete;
  ScopedOperators& operator=(const ScopedOperators&) = delete;

 private:
  at::CallbackHandle handle_;
};

// Returns the owner of the first parameter among an operator's inputs.
std::optional<size_t> consumed_layer(const ModuleTree& tree, const at::RecordFunction& fn);

}  // namespace memledger::layers
