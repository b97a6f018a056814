#pragma once

#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace memledger {

// A module that somebody else owns. One in a ModuleHolder (or any shared_ptr) may end; one on the stack is the caller's to keep.
class ModuleRef {
 public:
  explicit ModuleRef(const torch::nn::Module& module)
      : module_(&module), owner_(module.weak_from_this()), owned_(!owner_.expired()) {}

  // Null when it has ended. Of an owned module this may be the last reference by the time it is let go of: without a lock, as the
  // module's tensors and its destructor are the program's.
  std::shared_ptr<const torch::nn::Module> lock() const {
    if (owned_) return owner_.lock();
    return {std::shared_ptr<const torch::nn::Module>(), module_};  // owns nothing
  }
  bool ended() const { return owned_ && owner_.expired(); }
  bool owned() const { return owned_; }

 private:
  const torch::nn::Module* module_;
  std::weak_ptr<const torch::nn::Module> owner_;
  bool owned_;
};

// Modules that must not end under a lock, while a NameBook reads them: what lock() gives is to be held until the lock is let go of.
class OwnedModules {
 public:
  using Held = std::vector<std::shared_ptr<const torch::nn::Module>>;

  void add(const torch::nn::Module& module) {
    if (modules_.size() >= prune_at_) {
      modules_.erase(std::remove_if(modules_.begin(), modules_.end(), [](const ModuleRef& one) { return one.ended(); }),
                     modules_.end());
      prune_at_ = std::max(kFew, 2 * modules_.size());
    }
    ModuleRef one(module);
    if (one.owned()) modules_.push_back(std::move(one));
  }
  Held lock() const {
    Held held;
    held.reserve(modules_.size());
    for (const ModuleRef& one : modules_) held.push_back(one.lock());
    return held;
  }

 private:
  static constexpr size_t kFew = 64;
  std::vector<ModuleRef> modules_;
  size_t prune_at_ = kFew;
};

}  // namespace memledger
