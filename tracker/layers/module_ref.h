#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>

namespace memledger {

// A module that somebody else owns. One in a ModuleHolder (or any shared_ptr) may end; one on the
// stack is the caller's to keep.
class ModuleRef {
 public:
  explicit ModuleRef(const torch::nn::Module& module)
      : module_(&module), owner_(module.weak_from_this()), owned_(!owner_.expired()) {}

  // Null when it has ended. Of an owned module this may be the last reference by the time it is let
  // go of: without a lock, as the module's tensors and its destructor are the program's.
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
