#include "registry/cpu_allocator.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "registry/core/lock.h"
#include "registry/state.h"

namespace memledger {
namespace {

// By wrapper: whom it stands before, and how that one frees (for blocks that the table does not know, and to recognise storages
// that can be adopted).
std::array<std::atomic<TrackingCpuAllocator*>, TrackingCpuAllocator::kMaxWrappers> wrappers{};
std::array<std::atomic<c10::Allocator*>, TrackingCpuAllocator::kMaxWrappers> bases{};
std::array<std::atomic<c10::DeleterFnPtr>, TrackingCpuAllocator::kMaxWrappers> base_deleters{};
std::atomic<size_t> wrapper_count{0};

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

// While it lives, wrappers below this one pass through.
class InsideWrapped {
 public:
  explicit InsideWrapped(core::ThreadContext& thread) : thread_(thread) { ++thread_.wrapper_depth; }
  ~InsideWrapped() { --thread_.wrapper_depth; }
  InsideWrapped(const InsideWrapped&) = delete;
  InsideWrapped& operator=(const InsideWrapped&) = delete;

 private:
  core::ThreadContext& thread_;
};

uint64_t note_birth(RegistryState& state, core::ThreadContext& thread, const void* data, int64_t nbytes,
                    c10::DeleterFnPtr deleter, bool adopted) {
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

// oneDNN calls the deleter with nullptr; so may anyone. A function of its own for each wrapper, since a block that the table does
// not know must go back to the allocator whose raw_deleter() this is.
template <size_t kWrapper>
void free_tracked(void* context) {
  core::ThreadContext& thread = core::this_thread();
  c10::DeleterFnPtr deleter = base_deleters[kWrapper].load(std::memory_order_relaxed);
  if (context != nullptr) {
    RegistryState& state = RegistryState::get();
    if (const auto death = state.ledger.note_death(address_of(context_aliases().take(context)))) {
      deleter = reinterpret_cast<c10::DeleterFnPtr>(death->base_deleter);
    } else if (thread.wrapper_depth == 0 && !state.unseen_before.load(std::memory_order_relaxed) &&
               !state.unseen_in_gap.load(std::memory_order_relaxed)) {
      state.unknown_frees.fetch_add(1, std::memory_order_relaxed);
    }
  }
  const InsideWrapped inside(thread);
  if (deleter != nullptr) deleter(context);
}

template <size_t... kWrapper>
constexpr std::array<c10::DeleterFnPtr, sizeof...(kWrapper)> deleters_of(std::index_sequence<kWrapper...>) {
  return {&free_tracked<kWrapper>...};
}
constexpr auto kDeleters = deleters_of(std::make_index_sequence<TrackingCpuAllocator::kMaxWrappers>());

// The wrapper whose base frees with this deleter; kMaxWrappers if there is none.
size_t wrapper_freeing_with(c10::DeleterFnPtr deleter) noexcept {
  constexpr size_t kNone = TrackingCpuAllocator::kMaxWrappers;
  if (deleter == nullptr) return kNone;
  const size_t count = wrapper_count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    // A base that stands on a wrapper of ours may hand out that wrapper's deleter: such a block is tracked already.
    if (deleter == kDeleters[i]) return kNone;
  }
  for (size_t i = 0; i < count; ++i) {
    if (deleter == base_deleters[i].load(std::memory_order_relaxed)) return i;
  }
  return kNone;
}

}  // namespace

bool TrackingCpuAllocator::is_in_front() noexcept {
  const size_t count = wrapper_count.load(std::memory_order_acquire);
  return count > 0 && c10::GetAllocator(c10::DeviceType::CPU) == wrappers[count - 1].load(std::memory_order_relaxed);
}

void TrackingCpuAllocator::put_in_front() {
  constexpr uint8_t kLowestPriority = 0;
  c10::Allocator* const current = c10::GetAllocator(c10::DeviceType::CPU);
  const size_t count = wrapper_count.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i) {
    if (current == wrappers[i].load(std::memory_order_relaxed)) return;
  }
  // The program has set an allocator of its own: what came through it until now went unseen.
  if (count > 0) note_unseen(RegistryState::get());
  if (count == kMaxWrappers || current == nullptr) return;
  auto* const wrapper = new TrackingCpuAllocator(current, count);
  bases[count].store(current, std::memory_order_relaxed);
  base_deleters[count].store(current->raw_deleter(), std::memory_order_relaxed);
  wrappers[count].store(wrapper, std::memory_order_relaxed);
  wrapper_count.store(count + 1, std::memory_order_release);
  c10::SetAllocator(c10::DeviceType::CPU, wrapper, kLowestPriority);
}

c10::DataPtr TrackingCpuAllocator::allocate(size_t nbytes) {
  RegistryState& state = RegistryState::get();
  if (!state.active.load(std::memory_order_relaxed)) {
    if (nbytes > 0) note_unseen(state);
    return base_->allocate(nbytes);
  }
  core::ThreadContext& thread = core::this_thread();
  const bool outermost = thread.wrapper_depth == 0;
  c10::DataPtr data = [&] {
    const InsideWrapped inside(thread);
    return base_->allocate(nbytes);
  }();
  if (!outermost) return data;
  void* const address = data.get();
  if (address == nullptr) return data;
  void* const context = data.get_context();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (context == nullptr) return data;  // nothing will be freed, so nothing can be followed
  if (note_birth(state, thread, address, static_cast<int64_t>(nbytes), deleter, /*adopted=*/false) == 0) return data;
  if (context != address) {
    try {
      context_aliases().add(context, address);
    } catch (const std::bad_alloc&) {
      state.ledger.note_death(address_of(address));
      state.ledger.note_dropped_record();
      return data;
    }
  }
  if (!data.compare_exchange_deleter(deleter, kDeleters[index_])) {
    state.ledger.note_death(address_of(address));
    state.ledger.note_dropped_record();
  }
  return data;
}

c10::DeleterFnPtr TrackingCpuAllocator::raw_deleter() const {
  const c10::DeleterFnPtr base = base_->raw_deleter();
  if (base == nullptr || !RegistryState::get().ever_active.load(std::memory_order_relaxed)) return base;
  return kDeleters[index_];
}

bool TrackingCpuAllocator::is_simple_data_ptr(const c10::DataPtr& data) const { return base_->is_simple_data_ptr(data); }

void TrackingCpuAllocator::copy_data(void* dest, const void* src, size_t count) const { base_->copy_data(dest, src, count); }

bool can_adopt(const c10::StorageImpl& storage) noexcept {
  // The unchecked accessor neither throws on fake storages nor materializes copy-on-write ones.
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return wrapper_freeing_with(data.get_deleter()) < TrackingCpuAllocator::kMaxWrappers && data.get() != nullptr &&
         data.get_context() == data.get() && data.device().is_cpu();
}

bool adopt(c10::StorageImpl& storage) noexcept {
  RegistryState& state = RegistryState::get();
  const core::LockHolder hold(adoption_lock());
  if (!can_adopt(storage) || storage.sym_nbytes().is_heap_allocated()) return false;
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  const size_t wrapper = wrapper_freeing_with(deleter);
  if (note_birth(state, core::this_thread(), data.get(), static_cast<int64_t>(storage.nbytes()), deleter, /*adopted=*/true) ==
      0) {
    return false;
  }
  if (!data.compare_exchange_deleter(deleter, kDeleters[wrapper])) {
    state.ledger.note_death(address_of(data.get()));
    return false;
  }
  if (storage.allocator() == bases[wrapper].load(std::memory_order_relaxed)) {
    storage.set_allocator(wrappers[wrapper].load(std::memory_order_relaxed));
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
