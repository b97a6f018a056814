#include "registry/cpu_allocator.h"

#include <atomic>
#include <new>

#include "absl/container/flat_hash_map.h"
#include "registry/core/lock.h"
#include "registry/state.h"

namespace memledger {
namespace {

constexpr uint8_t kPriorityAtLoad = 0;
constexpr uint8_t kPriority = 255;

std::atomic<TrackingCpuAllocator*> newest_wrapper{nullptr};
std::atomic<c10::Allocator*> newest_base{nullptr};
// How the wrapped allocator frees: for blocks that the table does not know, and to recognise storages that can be adopted.
std::atomic<c10::DeleterFnPtr> base_deleter{nullptr};

// Allocators of other libraries may hand out a context that is not the data; their deleters get the context.
class ContextAliases {
 public:
  void add(void* context, void* data) {
    const core::LockHolder hold(lock_);
    data_of_[context] = data;
    count_.store(data_of_.size(), std::memory_order_release);
  }
  core::Lock& lock() { return lock_; }
  void* take(void* context) noexcept {
    if (count_.load(std::memory_order_acquire) == 0) return context;
    const core::LockHolder hold(lock_);
    const auto found = data_of_.find(context);
    if (found == data_of_.end()) return context;
    void* data = found->second;
    data_of_.erase(found);
    count_.store(data_of_.size(), std::memory_order_release);
    return data;
  }

 private:
  core::Lock lock_;
  std::atomic<size_t> count_{0};
  absl::flat_hash_map<void*, void*> data_of_;
};

ContextAliases& context_aliases() {
  static auto* const aliases = new ContextAliases;
  return *aliases;
}

// Two adopters of one storage must not both find it unknown.
core::Lock& adoption_lock() {
  static auto* const lock = new core::Lock;
  return *lock;
}

uintptr_t address_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }

constexpr core::DeviceKey kCpu{static_cast<int8_t>(c10::DeviceType::CPU), -1};

void note_unseen(RegistryState& state) {
  std::atomic<bool>& flag = state.ever_active.load(std::memory_order_relaxed) ? state.unseen_in_gap : state.unseen_before;
  if (!flag.load(std::memory_order_relaxed)) flag.store(true, std::memory_order_relaxed);
}

uint64_t note_birth(RegistryState& state, const void* data, int64_t nbytes, c10::DeleterFnPtr deleter, bool adopted) {
  core::ThreadContext& thread = core::this_thread();
  core::Ledger::Birth birth;
  birth.address = address_of(data);
  birth.nbytes = nbytes;
  birth.device = kCpu;
  birth.base_deleter = reinterpret_cast<void*>(deleter);
  if (!adopted) birth.birthplace = thread.birthplace();
  birth.adopted = adopted;
  const uint64_t id = state.ledger.note_birth(birth);
  if (adopted || id == 0) return id;
  ++thread.births;
  if (thread.grad_off && !thread.optimizer_region && thread.region_births < core::ThreadContext::kMaxRegionBirths) {
    thread.region[thread.region_births++] = {birth.address, id};
  }
  return id;
}

// oneDNN calls the deleter with nullptr; so may anyone.
void free_tracked(void* context) {
  c10::DeleterFnPtr deleter = base_deleter.load(std::memory_order_relaxed);
  if (context != nullptr) {
    RegistryState& state = RegistryState::get();
    if (const auto death = state.ledger.note_death(address_of(context_aliases().take(context)))) {
      deleter = reinterpret_cast<c10::DeleterFnPtr>(death->base_deleter);
    } else {
      state.unknown_frees.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (deleter != nullptr) deleter(context);
}

void put_in_place(c10::Allocator* base, TrackingCpuAllocator* wrapper, uint8_t priority) {
  newest_base.store(base, std::memory_order_relaxed);
  base_deleter.store(base->raw_deleter(), std::memory_order_relaxed);
  newest_wrapper.store(wrapper, std::memory_order_relaxed);
  c10::SetAllocator(c10::DeviceType::CPU, wrapper, priority);
}

}  // namespace

void TrackingCpuAllocator::install_at_load() {
  c10::Allocator* const current = c10::GetAllocator(c10::DeviceType::CPU);
  put_in_place(current, new TrackingCpuAllocator(current), kPriorityAtLoad);
}

void TrackingCpuAllocator::install() {
  c10::Allocator* const current = c10::GetAllocator(c10::DeviceType::CPU);
  TrackingCpuAllocator* const mine = newest_wrapper.load(std::memory_order_relaxed);
  if (current == mine) {
    c10::SetAllocator(c10::DeviceType::CPU, mine, kPriority);
    return;
  }
  // The program has set an allocator of its own since: whatever came through the one before went unseen.
  note_unseen(RegistryState::get());
  put_in_place(current, new TrackingCpuAllocator(current), kPriority);
}

c10::DataPtr TrackingCpuAllocator::allocate(size_t nbytes) {
  RegistryState& state = RegistryState::get();
  if (!state.active.load(std::memory_order_relaxed)) {
    note_unseen(state);
    return base_->allocate(nbytes);
  }
  c10::DataPtr data = base_->allocate(nbytes);
  void* const address = data.get();
  if (address == nullptr) return data;
  void* const context = data.get_context();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (context == nullptr) return data;  // nothing will be freed, so nothing can be followed
  if (note_birth(state, address, static_cast<int64_t>(nbytes), deleter, /*adopted=*/false) == 0) return data;
  if (context != address) {
    try {
      context_aliases().add(context, address);
    } catch (const std::bad_alloc&) {
      state.ledger.note_death(address_of(address));
      state.ledger.note_dropped_record();
      return data;
    }
  }
  if (!data.compare_exchange_deleter(deleter, &free_tracked)) {
    state.ledger.note_death(address_of(address));
    state.ledger.note_dropped_record();
  }
  return data;
}

c10::DeleterFnPtr TrackingCpuAllocator::raw_deleter() const {
  const c10::DeleterFnPtr base = base_->raw_deleter();
  if (base == nullptr || !RegistryState::get().ever_active.load(std::memory_order_relaxed)) return base;
  return &free_tracked;
}

bool TrackingCpuAllocator::is_simple_data_ptr(const c10::DataPtr& data) const { return base_->is_simple_data_ptr(data); }

void TrackingCpuAllocator::copy_data(void* dest, const void* src, size_t count) const { base_->copy_data(dest, src, count); }

bool can_adopt(const c10::StorageImpl& storage) noexcept {
  // The unchecked accessor neither throws on fake storages nor materializes copy-on-write ones.
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get_deleter() == base_deleter.load(std::memory_order_relaxed) && data.get() != nullptr &&
         data.get_context() == data.get() && data.device().is_cpu();
}

bool adopt(c10::StorageImpl& storage) noexcept {
  RegistryState& state = RegistryState::get();
  const core::LockHolder hold(adoption_lock());
  if (!can_adopt(storage) || storage.sym_nbytes().is_heap_allocated()) return false;
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (note_birth(state, data.get(), static_cast<int64_t>(storage.nbytes()), deleter, /*adopted=*/true) == 0) return false;
  if (!data.compare_exchange_deleter(deleter, &free_tracked)) {
    state.ledger.note_death(address_of(data.get()));
    return false;
  }
  if (storage.allocator() == newest_base.load(std::memory_order_relaxed)) {
    storage.set_allocator(newest_wrapper.load(std::memory_order_relaxed));
  }
  return true;
}

void lock_adoption_for_fork() {
  adoption_lock().lock();
  context_aliases().lock().lock();
}

void unlock_adoption_after_fork() {
  context_aliases().lock().unlock();
  adoption_lock().unlock();
}

}  // namespace memledger
