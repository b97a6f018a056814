#pragma once

// Notes when each thread was in which layer of a module, for programs that call forward()
// themselves. See layer_observer.h for layers.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "tracker/layers/layer_observer.h"
#include "tracker/layers/module_ref.h"

namespace memledger::layers {

// Follows all threads while it lives. A thread leaves its layer when backward begins on it, or on
// another thread and this one goes on under no_grad, as optimizers do. Before, what is done under
// no_grad (a metric, the forward of a custom Function) does not end the layer. A module that
// somebody owns (ModuleRef) may end before. Use it from one thread at a time; other threads may run
// operators meanwhile.
class LayerSwitches {
 public:
  // Where LibTorch cannot watch operators for us, `can_follow` is false, and all threads stay in no
  // layer. Throws c10::Error if LibTorch refuses the callback.
  LayerSwitches(const torch::nn::Module& module, bool can_follow);
  ~LayerSwitches();
  LayerSwitches(const LayerSwitches&) = delete;
  LayerSwitches& operator=(const LayerSwitches&) = delete;

  const ModuleTree& tree() const { return *tree_; }
  // Reads parameters and children again, or that the module has ended. Forgets where threads were.
  void read_module();

  // Returns the layer that a thread (StorageInfo::thread) was in at a time; nothing: in none.
  std::optional<size_t> at(uint32_t thread, int64_t time_ns) const;
  // Takes all threads out of their layers until they consume a parameter again.
  void leave_all();
  // Forgets what was before a time, apart from where each thread was then.
  void forget_before(int64_t time_ns);

  class Threads;

 private:
  const ModuleRef module_;
  const bool can_follow_;
  std::shared_ptr<const ModuleTree> tree_;
  const std::shared_ptr<Threads> threads_;
};

}  // namespace memledger::layers
