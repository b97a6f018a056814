#include "registry/hooks/block_hooks.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include "registry/core/growing_map.h"
#include "registry/core/ledger_events.h"
#include "registry/core/lock.h"
#include "registry/hooks/close_books.h"
#include "registry/hooks/demand_observer.h"
#include "registry/hooks/external_storages.h"
#include "registry/hooks/stack_sampler.h"

namespace memledger {
namespace {

// Data by context, where an allocator hands out a context that is not the data: its deleter gets
// the context.
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
    const auto alias = data_of_.find(context);
    if (alias == data_of_.end()) return context;
    void* data = alias->second;
    data_of_.erase(alias);
    count_.store(data_of_.size(), std::memory_order_release);
    return data;
  }

 private:
  core::Lock lock_;
  std::atomic<size_t> count_{0};
  core::GrowingMap<void*, void*> data_of_;
};

// In memory of its own: the first call may be a free while there is no memory.
ContextAliases& context_aliases() {
  alignas(ContextAliases) static std::array<std::byte, sizeof(ContextAliases)> memory;
  static auto* const aliases = new (memory.data()) ContextAliases;
  return *aliases;
}

// Two adopters of one storage must not both find it unknown.
core::Lock& adoption_lock() {
  alignas(core::Lock) static std::array<std::byte, sizeof(core::Lock)> memory;
  static auto* const lock = new (memory.data()) core::Lock;
  return *lock;
}

std::atomic<DemandObserver> demand_observer{nullptr};

uintptr_t address_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }

// Nothing where no allocator of that device type has a wrapper.
std::optional<WatchedType> watched_type_of(c10::Device device) noexcept {
  switch (device.type()) {
    case c10::DeviceType::CPU:
      return WatchedType::kCpu;
    case c10::DeviceType::CUDA:
      return WatchedType::kCuda;
    default:
      return std::nullopt;
  }
}

// The wrapper knows the type; an allocator of the program's may give its blocks whatever device it
// likes.
core::DeviceKey key_of(WatchedType type, c10::Device device) noexcept {
  const c10::DeviceType key_type = device_type_of(type);
  const bool is_cpu = key_type == c10::DeviceType::CPU;  // all of it is one device
  return {static_cast<int8_t>(key_type), is_cpu ? int8_t{-1} : static_cast<int8_t>(device.index())};
}

// Gives back the registry's reference to the storage object. If it is the last one, the object is
// only memory by then.
void let_go(void* owner) noexcept {
  core::calling_out();
  if (owner != nullptr) c10::raw::weak_intrusive_ptr::decref(static_cast<c10::StorageImpl*>(owner));
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t note_birth(RegistryState& state,
                                                        core::ThreadContext& thread,
                                                        core::DeviceKey device, void* data,
                                                        size_t nbytes, c10::DeleterFnPtr deleter,
                                                        bool raw_block) noexcept {
  core::Ledger::Block block;
  block.address = address_of(data);
  block.nbytes = static_cast<int64_t>(nbytes);
  block.device = device;
  block.base_deleter = reinterpret_cast<void*>(deleter);
  block.raw_block = raw_block;
  block.names_only = state.names_only.load(std::memory_order_relaxed);
  block.peak_labels = state.peak_labels.of(thread.label, state.labels);
  if (ABSL_PREDICT_FALSE(StackSampler::takes_some())) {
    const StackSampler::Taken taken = StackSampler::take(thread, block.nbytes);
    block.stack = taken.stack;
    block.stack_weight = taken.weight;
  }
  void* lost_owner = nullptr;
  const uint64_t id = state.ledger.note_birth(block, thread, lost_owner, thread.last_born);
  if (ABSL_PREDICT_FALSE(lost_owner != nullptr)) let_go(lost_owner);
  if (ABSL_PREDICT_FALSE(id == 0)) return id;
  ++thread.births;
  thread.phase.note_birth(block.address, id);
  return id;
}

c10::Device device_of(core::DeviceKey key) noexcept {
  return c10::Device(static_cast<c10::DeviceType>(key.type),
                     static_cast<c10::DeviceIndex>(key.index));
}

__attribute__((noinline)) void tell(BlockObserver observer, uint64_t id, int64_t nbytes,
                                    core::DeviceKey device, bool birth) noexcept {
  core::calling_out();
  BlockEvent event;
  event.id = id;
  event.nbytes = nbytes;
  event.device = device_of(device);
  event.birth = birth;
  observer(event);
}

inline void tell_observer(const RegistryState& state, uint64_t id, int64_t nbytes,
                          core::DeviceKey device, bool birth) noexcept {
  const BlockObserver observer = state.block_observer.load(std::memory_order_acquire);
  if (observer != nullptr) tell(observer, id, nbytes, device, birth);
}

// Takes a block out of the table. Returns null for one that it does not have.
ABSL_ATTRIBUTE_NOINLINE c10::DeleterFnPtr note_freed(WatchedType type, core::ThreadContext& thread,
                                                     void* context, core::DeviceKey& device,
                                                     int64_t& nbytes, uint64_t& id) noexcept {
  RegistryState& state = RegistryState::get();
  if (ABSL_PREDICT_FALSE(thread.step == core::ThreadContext::Step::kRan) && thread.op_depth == 0 &&
      thread.node_depth == 0) {
    if (core::StepMarks* const marks = state.step_marks.load(std::memory_order_acquire))
      marks->note_free(thread, address_of(context));
  }
  const auto death = state.ledger.note_death(address_of(context_aliases().take(context)),
                                             {thread.thread, thread.thread});
  if (ABSL_PREDICT_FALSE(!death)) {
    const Unseen& unseen = state.unseen_of(type);
    if (thread.wrapper_depth[static_cast<size_t>(type)] == 0 &&
        !unseen.before.load(std::memory_order_relaxed) &&
        !unseen.in_gap.load(std::memory_order_relaxed)) {
      state.unknown_frees.fetch_add(1, std::memory_order_relaxed);
    }
    return nullptr;
  }
  let_go(death->owner);
  if (ABSL_PREDICT_FALSE(state.block_observer.load(std::memory_order_relaxed) != nullptr)) {
    device = death->device;
    nbytes = death->nbytes;
    id = death->id;
  }
  return reinterpret_cast<c10::DeleterFnPtr>(death->base_deleter);
}

// `context` may be null: oneDNN calls deleters so.
template <WatchedType kType, size_t kWrapper>
void free_tracked(void* context) {
  core::calling_out();
  if (ABSL_PREDICT_FALSE(RegistryState::get().closed.load(std::memory_order_relaxed))) return;
  core::ThreadContext& thread = core::this_thread();
  core::DeviceKey device;
  int64_t nbytes = 0;
  uint64_t id = 0;
  c10::DeleterFnPtr deleter =
      context == nullptr ? nullptr : note_freed(kType, thread, context, device, nbytes, id);
  if (deleter == nullptr) deleter = Wrappers::of(kType).base_deleter(kWrapper);
  {
    const InsideWrapped inside(thread, kType);
    if (deleter != nullptr) deleter(context);
  }
  if (id != 0) tell_observer(RegistryState::get(), id, nbytes, device, /*birth=*/false);
}

template <WatchedType kType, size_t... kWrapper>
constexpr std::array<c10::DeleterFnPtr, sizeof...(kWrapper)> deleters_of(
    std::index_sequence<kWrapper...>) {
  return {&free_tracked<kType, kWrapper>...};
}
constexpr std::array kDeleters = {
    deleters_of<WatchedType::kCpu>(std::make_index_sequence<Wrappers::kMax>()),
    deleters_of<WatchedType::kCuda>(std::make_index_sequence<Wrappers::kMax>())};
static_assert(kDeleters.size() == kWatchedTypes);

}  // namespace

constexpr std::array<c10::DeleterFnPtr, kWatchedTypes> kFirstDeleters = {kDeleters[0].front(),
                                                                         kDeleters[1].front()};

Wrappers& Wrappers::of(WatchedType type) noexcept {
  // Constant-initialized, so that they are whole before any constructor and after every destructor.
  static std::array all = {Wrappers(WatchedType::kCpu), Wrappers(WatchedType::kCuda)};
  static_assert(all.size() == kWatchedTypes);
  return all[static_cast<size_t>(type)];
}

bool Wrappers::contains(const c10::Allocator* allocator) const noexcept {
  for (size_t i = 0, n = count(); i < n; ++i) {
    if (wrapper(i) == allocator) return true;
  }
  return false;
}

void Wrappers::set_base_deleter(size_t index, c10::DeleterFnPtr deleter) noexcept {
  Entry& entry = entries_[index];
  const c10::DeleterFnPtr former = entry.base_deleter.load(std::memory_order_relaxed);
  if (former == deleter) return;
  entry.former_base_deleter.store(former, std::memory_order_relaxed);
  entry.base_deleter.store(deleter, std::memory_order_relaxed);
}

size_t Wrappers::freeing_with(c10::DeleterFnPtr deleter) const noexcept {
  if (deleter == nullptr) return kMax;
  const size_t n = count();
  // A base that stands on a wrapper of ours may hand out that wrapper's deleter: such a block is
  // tracked already.
  if (is_tracked_deleter(type_, deleter)) return kMax;
  for (size_t i = 0; i < n; ++i) {
    if (deleter == entries_[i].base_deleter.load(std::memory_order_relaxed) ||
        deleter == entries_[i].former_base_deleter.load(std::memory_order_relaxed)) {
      return i;
    }
  }
  return kMax;
}

size_t Wrappers::standing_before(const c10::Allocator* allocator) const noexcept {
  for (size_t i = 0, n = count(); i < n; ++i) {
    if (base(i) == allocator) return i;
  }
  return kMax;
}

void Wrappers::add(c10::Allocator* wrapper, c10::Allocator* base,
                   c10::DeleterFnPtr base_deleter) noexcept {
  const size_t index = count();
  Entry& entry = entries_[index];
  entry.base.store(base, std::memory_order_relaxed);
  entry.base_deleter.store(base_deleter, std::memory_order_relaxed);
  entry.wrapper.store(wrapper, std::memory_order_relaxed);
  count_.store(index + 1, std::memory_order_release);
}

c10::DeleterFnPtr tracked_deleter(WatchedType type, size_t index) noexcept {
  return kDeleters[static_cast<size_t>(type)][index];
}

bool is_tracked_deleter(WatchedType type, c10::DeleterFnPtr deleter) noexcept {
  for (size_t i = 0, n = Wrappers::of(type).count(); i < n; ++i) {
    if (deleter == tracked_deleter(type, i)) return true;
  }
  return false;
}

c10::DeleterFnPtr raw_deleter_of(WatchedType type, size_t index, c10::DeleterFnPtr base) noexcept {
  if (base == nullptr || !RegistryState::get().ever_active.load(std::memory_order_relaxed))
    return base;
  return tracked_deleter(type, index);
}

void set_demand_observer(DemandObserver observer) noexcept {
  demand_observer.store(observer, std::memory_order_release);
  RegistryState::get().has_demand_observer.store(observer != nullptr, std::memory_order_release);
}

void tell_demand(int64_t nbytes) noexcept {
  const DemandObserver observer = demand_observer.load(std::memory_order_acquire);
  if (observer == nullptr) return;
  static thread_local int64_t asked_bytes = 0;
  asked_bytes += nbytes;
  if (asked_bytes < kDemandBytes) return;
  asked_bytes = 0;
  observer(nbytes);
}

void close_books() noexcept {
  RegistryState& state = RegistryState::get();
  if (!state.active.exchange(false, std::memory_order_relaxed)) return;
  state.closed.store(true, std::memory_order_relaxed);
}

void reopen_books() noexcept {
  RegistryState& state = RegistryState::get();
  if (state.closed.exchange(false, std::memory_order_relaxed))
    state.active.store(true, std::memory_order_relaxed);
}

void note_unseen(WatchedType type) noexcept {
  RegistryState& state = RegistryState::get();
  Unseen& unseen = state.unseen_of(type);
  std::atomic<bool>& flag =
      state.ever_active.load(std::memory_order_relaxed) ? unseen.in_gap : unseen.before;
  if (!flag.load(std::memory_order_relaxed)) flag.store(true, std::memory_order_relaxed);
  // Behind the back of an activation, not in a gap that one ends.
  if (state.active.load(std::memory_order_relaxed)) state.ledger.note_unseen_births();
}

void note_allocated(WatchedType type, size_t index, core::ThreadContext& thread, c10::DataPtr& data,
                    size_t nbytes) noexcept {
  void* const address = data.get();
  if (address == nullptr) return;
  void* const context = data.get_context();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (context == nullptr) return;  // nothing will be freed, so nothing can be followed
  RegistryState& state = RegistryState::get();
  const core::DeviceKey device = key_of(type, data.device());
  const uint64_t id =
      note_birth(state, thread, device, address, nbytes, deleter, /*raw_block=*/false);
  if (id == 0) return;
  if (context != address) {
    try {
      context_aliases().add(context, address);
    } catch (const std::bad_alloc&) {
      state.ledger.note_death(address_of(address));
      state.ledger.note_dropped_record();
      return;
    }
  }
  if (!data.compare_exchange_deleter(deleter, kDeleters[static_cast<size_t>(type)][index])) {
    state.ledger.note_death(address_of(address));
    state.ledger.note_dropped_record();
    return;
  }
  tell_observer(state, id, static_cast<int64_t>(nbytes), device, /*birth=*/true);
}

void note_raw_allocated(core::ThreadContext& thread, core::DeviceKey device, const void* data,
                        size_t nbytes, c10::DeleterFnPtr base_deleter) noexcept {
  if (data == nullptr) return;
  RegistryState& state = RegistryState::get();
  const uint64_t id = note_birth(state, thread, device, const_cast<void*>(data), nbytes,
                                 base_deleter, /*raw_block=*/true);
  if (id != 0) tell_observer(state, id, static_cast<int64_t>(nbytes), device, /*birth=*/true);
}

void note_raw_freed(const void* data) noexcept {
  core::calling_out();
  if (data == nullptr || RegistryState::get().closed.load(std::memory_order_relaxed)) return;
  const auto death = RegistryState::get().ledger.note_death(address_of(data));
  if (!death) return;
  let_go(death->owner);
  tell_observer(RegistryState::get(), death->id, death->nbytes, death->device, /*birth=*/false);
}

void register_wrapper(c10::DeviceType type, c10::Allocator* wrapper) {
  core::calling_out();
  for (int priority = 0; priority <= UINT8_MAX; ++priority) {
    c10::SetAllocator(type, wrapper, static_cast<uint8_t>(priority));
    if (c10::GetAllocator(type) == wrapper) return;
  }
}

BlockOrigin origin_of(const c10::StorageImpl& storage) noexcept {
  // The unchecked accessor does not throw on fake storages, nor materialize copy-on-write ones.
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = libtorch_storages::deleter_of(data);
  // Nearly always it is one of these: each operator asks this of each input.
  for (const auto& of_type : kDeleters) {
    if (deleter == of_type.front()) return BlockOrigin::kWatched;
  }
  const std::optional<WatchedType> type = watched_type_of(data.device());
  if (!type || data.get() == nullptr) return BlockOrigin::kForeign;
  if (is_tracked_deleter(*type, deleter)) return BlockOrigin::kWatched;
  return Wrappers::of(*type).freeing_with(deleter) < Wrappers::kMax &&
                 data.get_context() == data.get()
             ? BlockOrigin::kAdoptable
             : BlockOrigin::kForeign;
}

bool can_adopt(const c10::StorageImpl& storage) noexcept {
  return origin_of(storage) == BlockOrigin::kAdoptable;
}

namespace {

bool adopt_locked(c10::StorageImpl& storage, void*& lost_owner) noexcept {
  RegistryState& state = RegistryState::get();
  const core::LockHolder hold(adoption_lock());
  if (!can_adopt(storage) || storage.sym_nbytes().is_heap_allocated()) return false;
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  const std::optional<WatchedType> watched = watched_type_of(data.device());
  if (!watched) return false;
  const WatchedType type = *watched;
  const Wrappers& wrappers = Wrappers::of(type);
  const c10::DeleterFnPtr deleter = libtorch_storages::deleter_of(data);
  const size_t wrapper = wrappers.freeing_with(deleter);
  core::Ledger::Birth birth;
  birth.address = address_of(data.get());
  birth.nbytes = static_cast<int64_t>(storage.nbytes());
  birth.device = key_of(type, data.device());
  birth.base_deleter = reinterpret_cast<void*>(deleter);
  birth.adopted = true;
  if (state.ledger.note_birth(birth, &lost_owner) == 0) return false;
  if (state.ledger.set_owner(birth.address, &storage))
    c10::raw::weak_intrusive_ptr::incref(&storage);
  if (storage.allocator() == wrappers.base(wrapper))
    libtorch_storages::set_allocator(storage, wrappers.wrapper(wrapper));
  // Last, so that who sees it finds the storage in the table.
  libtorch_storages::set_deleter(data, tracked_deleter(type, wrapper));
  return true;
}

}  // namespace

bool adopt(c10::StorageImpl& storage) noexcept {
  void* lost_owner = nullptr;
  const bool adopted = adopt_locked(storage, lost_owner);
  let_go(lost_owner);
  return adopted;
}

bool owns_watched_block_here(const c10::StorageImpl& storage) noexcept {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  const std::optional<WatchedType> type = watched_type_of(data.device());
  return type && data.get() != nullptr &&
         is_tracked_deleter(*type, libtorch_storages::deleter_of(data));
}

void know_storage_here(c10::StorageImpl& storage) {
  if (RegistryState::get().active.load(std::memory_order_relaxed) && can_adopt(storage)) {
    adopt(storage);
  } else if (owns_watched_block_here(storage)) {
    const uintptr_t address = address_of(storage._mutable_data_ptr_no_checks().get());
    if (RegistryState::get().ledger.set_owner(address, &storage))
      c10::raw::weak_intrusive_ptr::incref(&storage);
  }
}

std::vector<LiveStorage> live_storages_here(c10::Device device) {
  const std::optional<WatchedType> type = watched_type_of(device);
  std::vector<LiveStorage> result;
  if (!type) return result;
  std::vector<c10::StorageImpl*> owners;  // with a weak reference each
  RegistryState::get().ledger.visit_live(
      key_of(*type, device), [&](const core::TableEntry& record) {
        LiveStorage live;
        live.id = record.id;
        live.address = record.address;
        live.nbytes = record.nbytes;
        live.raw_block = record.flags.raw_block;
        void* const known = record.owner;
        auto* const owner = static_cast<c10::StorageImpl*>(known);
        owners.push_back(owner);
        if (owner != nullptr) c10::raw::weak_intrusive_ptr::incref(owner);
        result.push_back(std::move(live));
      });
  // Not while the shard is locked: a strong reference to what Python knows takes Python's lock, and
  // may be the last.
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] == nullptr) continue;
    result[i].storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim(
        c10::raw::weak_intrusive_ptr::lock(owners[i]));
    c10::raw::weak_intrusive_ptr::decref(owners[i]);
  }
  std::sort(result.begin(), result.end(),
            [](const LiveStorage& a, const LiveStorage& b) { return a.id < b.id; });
  return result;
}

void lock_adoption_for_fork() {
  adoption_lock().lock();
  context_aliases().lock().lock();
  ExternalStorages::lock_for_fork();
}

void unlock_adoption_after_fork() {
  ExternalStorages::unlock_after_fork();
  context_aliases().lock().unlock();
  adoption_lock().unlock();
}

}  // namespace memledger
