#pragma once

// When which thread was in which layer of a module, for programs whose forward() we do not call:
// see layer_observer.h.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "tracker/layers/layer_observer.h"
#include "tracker/layers/module_ref.h"

namespace memledger::layers {

// Follows all threads while it lives. Outside the forward phase (backward, no_grad) a thread is in
// no layer. The module may end before, if somebody owns it (ModuleRef). Its functions are for one
// thread at a time; operators of others go on meanwhile.
class LayerSwitches {
 public:
  explicit LayerSwitches(const torch::nn::Module& module);
  ~LayerSwitches();
  LayerSwitches(const LayerSwitches&) = delete;
  LayerSwitches& operator=(const LayerSwitches&) = delete;

  const ModuleTree& tree() const { return *tree_; }
  // For a module whose parameters or children were replaced, or that has ended. Forgets where the
  // threads were.
  void read_module();

  // The layer that a thread (StorageInfo::thread) was in at a time; nothing: in none.
  std::optional<size_t> at(uint32_t thread, int64_t time_ns) const;
  // From now on, until a parameter is consumed again, no thread is in a layer.
  void leave_all();
  // What is before is not needed any more, save where each thread is then.
  void forget_before(int64_t time_ns);

  class Threads;

 private:
  const ModuleRef module_;
  std::shared_ptr<const ModuleTree> tree_;
  const std::shared_ptr<Threads> threads_;
};

}  // namespace memledger::layers
