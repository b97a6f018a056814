#include "registry/hooks/external_storages.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <unordered_map>
#include <utility>

#include "registry/core/lock.h"
#include "registry/hooks/block_hooks.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/libtorch/libtorch_storages.h"
#include "registry/libtorch/pinned_memory.h"
#include "registry/libtorch/storage_impl.h"
#include "registry/record_values.h"
#include "registry/state.h"

namespace memledger {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using StrongStorage = c10::intrusive_ptr<c10::StorageImpl>;

struct Noted {
  WeakStorage storage;
  ExternalStorage value;
};

struct Table {
  core::Lock lock;
  std::unordered_map<const c10::StorageImpl*, Noted> noted;  // guarded by it, as the next two
  uint64_t last_number = 0;
  size_t prune_at = 256;
  // Rises when an address may mean another storage from now on.
  std::atomic<uint32_t> generation{1};
};

Table& table() {
  static auto* const table = new Table;
  return *table;
}

// The last storages that this thread found noted. Their memory is not used again while they are.
struct Recent {
  uint32_t generation;
  std::array<const c10::StorageImpl*, 32> storages;
};
thread_local Recent recent{};

const c10::StorageImpl*& place_in_recent(const c10::StorageImpl* storage) {
  return recent.storages[(reinterpret_cast<uintptr_t>(storage) >> 5) % recent.storages.size()];
}

// Whether the storage's memory is neither ours to follow nor nothing.
bool is_external(c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  const c10::DeviceType type = data.device().type();
  return data.get() != nullptr && (type == c10::DeviceType::CPU || type == c10::DeviceType::CUDA) &&
         origin_of(storage) == BlockOrigin::kForeign && !storage.sym_nbytes().is_heap_allocated();
}

bool is_noted(const c10::StorageImpl* storage) {
  const uint32_t generation = table().generation.load(std::memory_order_acquire);
  if (recent.generation != generation) {
    recent = {};
    recent.generation = generation;
  } else if (place_in_recent(storage) == storage) {
    return true;
  }
  const core::LockHolder hold(table().lock);
  if (table().noted.count(storage) == 0) return false;
  if (table().generation.load(std::memory_order_relaxed) == generation)
    place_in_recent(storage) = storage;
  return true;
}

// Moves those that have ended to `ended`, to be let go of without the lock, which is held.
void prune(Table& table, std::vector<Noted>& ended) {
  for (auto noted = table.noted.begin(); noted != table.noted.end();) {
    if (noted->second.storage.expired()) {
      ended.push_back(std::move(noted->second));
      noted = table.noted.erase(noted);
    } else {
      ++noted;
    }
  }
  if (!ended.empty()) table.generation.fetch_add(1, std::memory_order_acq_rel);
  table.prune_at = std::max<size_t>(256, 2 * table.noted.size());
}

ExternalStorage value_of(core::ThreadContext& thread, const at::Tensor& tensor,
                         const c10::StorageImpl& storage, bool made) {
  ExternalStorage value;
  value.pinned = is_freed_as_pinned(storage.data_ptr());
  static_cast<Birthplace&>(value) = birthplace_value(thread.birthplace());
  if (!made) value.op = value.autograd_node = {};
  value.parameter = 0;
  value.parameter_looked_up = false;
  value.stack = StackSampler::take(thread, static_cast<int64_t>(storage.nbytes())).stack;
  if (tensor.layout() == at::kStrided && !tensor.is_nested() &&
      !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    value.dtype = tensor.scalar_type();
    value.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  }
  return value;
}

}  // namespace

void ExternalStorages::note(core::ThreadContext& thread, const at::Tensor& tensor,
                            bool made) noexcept {
  try {
    c10::StorageImpl* const storage = storage_impl_of(tensor);
    if (storage == nullptr || !is_external(*storage) || is_noted(storage)) return;
    // A strong reference to what Python knows takes Python's lock, so none is made under ours.
    Noted made_known{WeakStorage(StrongStorage::reclaim_copy(storage)),
                     value_of(thread, tensor, *storage, made)};
    std::vector<Noted> ended;
    {
      const core::LockHolder hold(table().lock);
      if (table().noted.size() >= table().prune_at) prune(table(), ended);
      const auto [noted, is_new] = table().noted.try_emplace(storage, std::move(made_known));
      if (is_new) noted->second.value.number = ++table().last_number;
    }
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
}

std::vector<ExternalStorage> ExternalStorages::alive() {
  std::vector<std::pair<WeakStorage, ExternalStorage>> known;
  std::vector<Noted> ended;
  {
    const core::LockHolder hold(table().lock);
    prune(table(), ended);
    known.reserve(table().noted.size());
    for (const auto& [address, noted] : table().noted)
      known.emplace_back(noted.storage, noted.value);
  }
  std::vector<ExternalStorage> result;
  for (auto& [weak, value] : known) {
    const StrongStorage storage = weak.lock();
    // The program may have put other memory into it since.
    if (!storage || !is_external(*storage)) continue;
    const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
    value.address = reinterpret_cast<uintptr_t>(data.get());
    value.nbytes = static_cast<int64_t>(storage->nbytes());
    value.device = data.device().is_cpu() ? c10::Device(c10::DeviceType::CPU) : data.device();
    if (value.nbytes > 0) result.push_back(std::move(value));
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return result;
}

void ExternalStorages::lock_for_fork() { table().lock.lock(); }
void ExternalStorages::unlock_after_fork() { table().lock.unlock(); }

}  // namespace memledger
