#include "runner/inside/trained_parameters.h"

#include <algorithm>
#include <array>
#include <mutex>

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

}  // namespace

void TrainedParameters::note_inputs(const at::RecordFunction& fn) {
  for (const c10::IValue& input : fn.inputs()) {
    if (input.isTensor()) {
      note(input.toTensor());
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorList()) note(tensor);
    }
  }
}

void TrainedParameters::note(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.requires_grad() || !tensor.is_leaf())
    return;
  c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr) return;
  if (const uint32_t now = generation_.load(std::memory_order_acquire); noted.generation != now) {
    noted = Noted{};
    noted.generation = now;
  }
  const void*& place = noted.place_of(storage);
  if (place == storage) return;
  place = storage;
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  parameters_.try_emplace(storage, Parameter{weak(storage)});
  if (parameters_.size() >= sweep_at_) forget_ended();
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

bool TrainedParameters::is_alive(const void* storage) {
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  const auto parameter = parameters_.find(storage);
  return parameter != parameters_.end() && !parameter->second.storage.expired();
}

size_t TrainedParameters::unstepped() {
  const std::lock_guard<ForkSafeMutex> lock(mutex_);
  return static_cast<size_t>(
      std::count_if(parameters_.begin(), parameters_.end(), [](const auto& entry) {
        return !entry.second.is_stepped && !entry.second.storage.expired();
      }));
}

}  // namespace memledger::inside
