#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>

namespace memledger {

// Refers to a module without owning it. One in a ModuleHolder (or any shared_ptr) may end; one on
// the stack must outlive the reference.
class ModuleRef {
 public:
  explicit ModuleRef(const torch::nn::Module& module)
      : module_(&module), owner_(module.weak_from_this()), owned_(!owner_.expired()) {}

  // Returns null once it has ended. The result may be the last reference: release it without a
  // lock, as the module's destructor is the program's.
  std::shared_ptr<const torch::nn::Module> lock() const {
    if (owned_) return owner_.lock();
    return {std::shared_ptr<const torch::nn::Module>(), module_};  // owns nothing
  }
  bool ended() const { return owned_ && owner_.expired(); }

 private:
  const torch::nn::Module* module_;
  std::weak_ptr<const torch::nn::Module> owner_;
  bool owned_;
};

}  // namespace memledger
