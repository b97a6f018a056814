#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>
#include <unordered_map>

#include "registry/core/fork_safe_mutex.h"

namespace memledger::inside {

// The parameters on CUDA devices that a program trains: what its forward passes read as leaves that
// require grad, by their storages. Holds weak references: no address comes back with another
// meaning, and no data stays alive. Thread-safe.
class TrainedParameters {
 public:
  // Notes the parameters among an operator's inputs, which runs with grad mode on, and returns
  // whether there are any. Costs a look at each input for those that are known.
  bool note_inputs(const at::RecordFunction& fn);
  // Notes that a step writes to a tensor. Some optimizers write to its data(), which has the
  // parameter's storage and does not require grad. Returns that storage; nullptr where it is no
  // parameter's.
  const void* note_written(const at::Tensor& written);
  // Notes the parameters among an operator's inputs, which an optimizer runs in its step, that no
  // forward pass has read: FSDP2's optimizers step shards, and its forward passes read what is
  // gathered from them. Returns the storage of the first such; nullptr where there is none.
  const void* note_shards(const at::RecordFunction& fn);
  // Notes, at the end of a step of shards, what stands for them in forward passes: parameters whose
  // memory is given back before the step. Returns whether there are any.
  bool note_gathered();
  // Returns whether a storage that note_written() or note_shards() returned is alive.
  bool is_alive(const void* storage);
  // Returns how many are alive that no step has written to. If parameters are gathered from shards,
  // as many of them count as written to as shards have been stepped.
  size_t unstepped();

 private:
  struct Parameter {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    bool is_stepped = false;
    bool is_shard = false;
    bool is_gathered = false;
  };

  bool note(const at::Tensor& tensor);
  void forget_ended();

  ForkSafeMutex mutex_;
  std::unordered_map<const void*, Parameter> parameters_;
  size_t sweep_at_ = 1024;
  // Counts the times that addresses became free for others.
  std::atomic<uint32_t> generation_{0};
};

}  // namespace memledger::inside
