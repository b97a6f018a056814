#include "runner/inside/trained_parameters.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "registry/libtorch/tensors_of.h"

namespace memledger::inside {
namespace {

// What a thread has noted, so that nearly all operators take no lock.
struct Noted {
  static constexpr size_t kPlaces = 1024;
  uint32_t generation = 0;
  std::array<const void*, kPlaces> storages{};

  const void*& place_of(const void* storage) {
    return storages[(reinterpret_cast<uintptr_t>(storage) >> 6) % kPlaces];
  }
};

thread_local Noted noted;

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::StorageImpl* storage) {
  c10::raw::weak_intrusive_ptr::incref(storage);
  return c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
}

// The storage of a parameter on a CUDA device; nullptr of another tensor.
c10::StorageImpl* storage_of_parameter(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.requires_grad() || !tensor.is_leaf())
    return nullptr;
  return storage_of(tensor);
}

template <typename Take>
void for_each_input(const at::RecordFunction& fn, const Take& take) {
  for (const c10::IValue& input : fn.inputs()) for_each_tensor(input, take);
}

}  // namespace

bool TrainedParameters::note_inputs(const at::RecordFunction& fn) {
  bool any = false;
  for_each_input(fn, [&](const at::Tensor& tensor) { any = note(tensor) || any; });
  return any;
}

bool TrainedParameters::note(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = storage_of_parameter(tensor);
  if (storage == nullptr) return false;
  if (const uint32_t now = generation_.load(std::memory_order_acquire); noted.generation != now) {
    noted = Noted{};
    noted.generation = now;
  }
  const void*& place = noted.place_of(storage);
  if (place == storage) return true;
  place = storage;
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  // What a forward pass reads is no shard, though an optimizer may have come first.
  parameters_.try_emplace(storage, Parameter{weak(storage)}).first->second.is_shard = false;
  if (parameters_.size() >= sweep_at_) forget_ended();
  return true;
}

void TrainedParameters::forget_ended() {
  for (auto parameter = parameters_.begin(); parameter != parameters_.end();) {
    parameter =
        parameter->second.storage.expired() ? parameters_.erase(parameter) : std::next(parameter);
  }
  sweep_at_ = std::max(sweep_at_, 2 * parameters_.size());
  generation_.fetch_add(1, std::memory_order_release);
}

const void* TrainedParameters::note_written(const at::Tensor& written) {
  if (!written.is_cuda()) return nullptr;
  const void* const storage = storage_of(written);
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  const auto parameter = parameters_.find(storage);
  if (parameter == parameters_.end()) return nullptr;
  parameter->second.is_stepped = true;
  return storage;
}

const void* TrainedParameters::note_shards(const at::RecordFunction& fn) {
  const void* first = nullptr;
  for_each_input(fn, [&](const at::Tensor& tensor) {
    c10::StorageImpl* const storage = storage_of_parameter(tensor);
    if (storage == nullptr) return;
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto [parameter, is_new] =
        parameters_.try_emplace(storage, Parameter{weak(storage), true, true});
    if (first == nullptr && parameter->second.is_shard) first = storage;
  });
  return first;
}

bool TrainedParameters::note_gathered() {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> alive;  // let go of with no lock held
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  alive.reserve(parameters_.size());
  bool any = false;
  for (auto& [address, parameter] : parameters_) {
    if (parameter.is_stepped) continue;
    alive.push_back(parameter.storage.lock());
    if (!alive.back().defined()) continue;
    if (alive.back()->nbytes() == 0) parameter.is_gathered = true;
    any = any || parameter.is_gathered;
  }
  return any;
}

bool TrainedParameters::is_alive(const void* storage) {
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  const auto parameter = parameters_.find(storage);
  return parameter != parameters_.end() && !parameter->second.storage.expired();
}

size_t TrainedParameters::unstepped() {
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  size_t waiting = 0, shards = 0, gathered = 0;
  for (const auto& [address, parameter] : parameters_) {
    if (parameter.storage.expired()) continue;
    if (parameter.is_shard) {
      ++shards;
    } else if (!parameter.is_stepped) {
      ++(parameter.is_gathered ? gathered : waiting);
    }
  }
  return waiting + gathered - std::min(shards, gathered);
}

}  // namespace memledger::inside
