#include "registry/hooks/cuda_allocator.h"

#include "registry/core/lock.h"
#include "registry/libtorch/forget_cuda.h"

#if MEMLEDGER_LIBTORCH_HAS_CUDA
#include <dlfcn.h>

#include <exception>
#include <new>
#include <optional>
#include <unordered_map>

#include "registry/hooks/before_resets.h"
#include "registry/hooks/tracking_cuda_allocator.h"
#include "registry/libtorch/cuda_symbols.h"
#include "registry/libtorch/driver_memory.h"
#endif

namespace memledger {

std::atomic<const c10::impl::DeviceGuardImplInterface*> CudaAllocator::seen_guard_{nullptr};
std::atomic<bool> CudaAllocator::half_made_{false};
std::atomic<CudaAllocator::AfterLarge> CudaAllocator::after_large_{nullptr};

namespace {

std::atomic<bool> forgotten{false};

core::Lock& install_lock() {
  static auto* const lock = new core::Lock;
  return *lock;
}

const c10::impl::DeviceGuardImplInterface* current_guard() noexcept {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load(
      std::memory_order_acquire);
}

}  // namespace

void forget_cuda() noexcept { forgotten.store(true, std::memory_order_release); }

void CudaAllocator::lock_for_fork() { install_lock().lock(); }
void CudaAllocator::unlock_after_fork() { install_lock().unlock(); }

#if MEMLEDGER_LIBTORCH_HAS_CUDA

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using AllocatorSlot = std::atomic<CUDAAllocator*>;
constexpr char kAllocatorSlot[] = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";

Wrappers& wrappers() { return Wrappers::of(WatchedType::kCuda); }

// The pointer that LibTorch's own code reads, once found.
std::atomic<AllocatorSlot*> allocator_slot{nullptr};

}  // namespace

// Returns null where the library is not in the process, or still coming up.
void* CudaAllocator::find_slot() noexcept {
  if (forgotten.load(std::memory_order_acquire)) return nullptr;
  AllocatorSlot* slot = allocator_slot.load(std::memory_order_acquire);
  // The library registers its guard while it is initialized.
  const auto* const guard = current_guard();
  if (slot == nullptr) {
    if (guard == seen_guard_.load(std::memory_order_relaxed)) return nullptr;
    // Looking for symbols takes the loader's lock, so ours is not held.
    slot = static_cast<AllocatorSlot*>(find_symbol_of_loaded_library(kAllocatorSlot));
    if (slot != nullptr && slot->load(std::memory_order_acquire) == nullptr)
      return nullptr;  // still coming up
    allocator_slot.store(slot, std::memory_order_release);
  }
  seen_guard_.store(guard, std::memory_order_relaxed);
  return slot;
}

bool CudaAllocator::is_in_front() noexcept {
  if (forgotten.load(std::memory_order_acquire)) return false;
  const AllocatorSlot* const slot = allocator_slot.load(std::memory_order_acquire);
  return slot != nullptr && wrappers().contains(slot->load(std::memory_order_relaxed));
}

c10::Allocator* CudaAllocator::in_use() noexcept {
  const auto* const slot = static_cast<const AllocatorSlot*>(find_slot());
  return slot == nullptr ? nullptr : slot->load(std::memory_order_acquire);
}

void CudaAllocator::put_in_front() noexcept {
  auto* const slot = static_cast<AllocatorSlot*>(find_slot());
  if (slot == nullptr) return;
  CUDAAllocator* const current = slot->load(std::memory_order_acquire);
  if (wrappers().contains(current)) return;
  const c10::DeleterFnPtr base_deleter = current->raw_deleter();
  c10::Allocator* wrapper = nullptr;
  {
    const core::LockHolder hold(install_lock());
    if (slot->load(std::memory_order_acquire) != current) return;  // another thread was faster
    const size_t count = wrappers().count();
    // The program has set an allocator of its own, and what came through it until now went unseen.
    if (count > 0) note_unseen(WatchedType::kCuda);
    size_t index = wrappers().standing_before(current);
    if (index == Wrappers::kMax) {
      auto* const made = count < Wrappers::kMax ? new (std::nothrow)
                                                      TrackingCudaAllocator(current, count)
                                                : nullptr;
      if (made == nullptr) {
        note_unseen(WatchedType::kCuda);
        return;
      }
      wrappers().add(made, current, base_deleter);
      index = count;
    }
    wrapper = wrappers().wrapper(index);
    slot->store(static_cast<CUDAAllocator*>(wrapper), std::memory_order_release);
  }
  try {
    // c10's own slot follows, unless the program has put something else there.
    c10::Allocator* const registered = c10::GetAllocator(c10::DeviceType::CUDA);
    if (registered == current || wrappers().contains(registered))
      register_wrapper(c10::DeviceType::CUDA, wrapper);
  } catch (const std::exception&) {  // nothing is registered there: LibTorch says so by throwing
  }
}

namespace {

// Shows a block with its allocator's own deleter, as LibTorch's allocators ignore a block that has
// another. The copy never frees.
class WithBaseDeleter {
 public:
  WithBaseDeleter(const c10::DataPtr& data, c10::DeleterFnPtr deleter)
      : copy_(data.get(), data.get_context(), deleter, data.device()) {}
  ~WithBaseDeleter() { copy_.release_context(); }
  WithBaseDeleter(const WithBaseDeleter&) = delete;
  WithBaseDeleter& operator=(const WithBaseDeleter&) = delete;
  const c10::DataPtr& get() const { return copy_; }

 private:
  c10::DataPtr copy_;
};

core::DeviceKey current_device() noexcept {
  core::DeviceKey key{static_cast<int8_t>(c10::DeviceType::CUDA), 0};
  try {
    key.index = static_cast<int8_t>(
        c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->getDevice().index());
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
  return key;
}

constexpr auto kAllPools = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// Nothing where the allocator keeps none.
std::optional<c10::CachingDeviceAllocator::DeviceStats> stats_of(CUDAAllocator& allocator,
                                                                 c10::DeviceIndex device) {
  try {
    return allocator.getDeviceStats(device);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

c10::DataPtr TrackingCudaAllocator::allocate(size_t nbytes) {
  c10::DataPtr data = allocate_and_note(WatchedType::kCuda, index_, nbytes,
                                        [&] { return base_->allocate(nbytes); });
  note_device_in_use(data.device().index());
  CudaAllocator::tell_large(nbytes, data.device().index());
  return data;
}

#if MEMLEDGER_TORCH_AT_LEAST(13)
c10::DataPtr TrackingCudaAllocator::allocateWithAddress(size_t nbytes, void* address) {
  return allocate_and_note(WatchedType::kCuda, index_, nbytes,
                           [&] { return base_->allocateWithAddress(nbytes, address); });
}
#endif

c10::DeleterFnPtr TrackingCudaAllocator::raw_deleter() const {
  return raw_deleter_of(WatchedType::kCuda, index_, base_->raw_deleter());
}

void TrackingCudaAllocator::init(int device_count) {
  try {
    base_->init(device_count);
  } catch (...) {
    CudaAllocator::note_half_made();
    throw;
  }
}

void TrackingCudaAllocator::resetAccumulatedStats(DeviceIndex device) {
  if (const auto stats = stats_of(*base_, device)) {
    note_sums_before_reset(device, stats->allocation[kAllPools].allocated,
                           stats->requested_bytes[kAllPools].allocated);
  }
  base_->resetAccumulatedStats(device);
}

void TrackingCudaAllocator::resetPeakStats(DeviceIndex device) {
  if (const auto stats = stats_of(*base_, device)) {
    note_peaks_before_reset(device, stats->allocated_bytes[kAllPools].peak,
                            stats->reserved_bytes[kAllPools].peak);
  }
  base_->resetPeakStats(device);
}

void TrackingCudaAllocator::emptyCache(MempoolId_t pool) {
  const InsideWrapped inside(core::this_thread(), WatchedType::kCuda);
  base_->emptyCache(pool);
}

void TrackingCudaAllocator::releasePool(DeviceIndex device, MempoolId_t pool) {
  const InsideWrapped inside(core::this_thread(), WatchedType::kCuda);
  base_->releasePool(device, pool);
}

template <typename Record>
void TrackingCudaAllocator::record_stream(const c10::DataPtr& data, const Record& record) {
  if (!is_tracked_deleter(WatchedType::kCuda, data.get_deleter())) {
    record(data);
    return;
  }
  void* deleter =
      RegistryState::get().ledger.base_deleter_at(reinterpret_cast<uintptr_t>(data.get()));
  if (deleter == nullptr) deleter = reinterpret_cast<void*>(base_->raw_deleter());
  const WithBaseDeleter block(data, reinterpret_cast<c10::DeleterFnPtr>(deleter));
  record(block.get());
}

void TrackingCudaAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  record_stream(data, [&](const c10::DataPtr& block) { base_->recordStream(block, stream); });
}

void TrackingCudaAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  record_stream(data, [&](const c10::DataPtr& block) { base_->recordStream(block, stream); });
}

template <typename Allocate>
void* TrackingCudaAllocator::allocate_raw_and_note(size_t nbytes, const Allocate& allocate) {
  core::calling_out();
  if (!RegistryState::get().active.load(std::memory_order_relaxed)) {
    if (nbytes > 0) note_unseen(WatchedType::kCuda);
    return allocate();
  }
  core::ThreadContext& thread = core::this_thread();
  const bool outermost = thread.wrapper_depth[static_cast<size_t>(WatchedType::kCuda)] == 0;
  void* const data = allocate_below(WatchedType::kCuda, thread, outermost, nbytes, allocate);
  if (outermost && data != nullptr)
    note_raw_allocated(thread, current_device(), data, nbytes, base_->raw_deleter());
  return data;
}

void* TrackingCudaAllocator::raw_alloc(size_t nbytes) {
  return allocate_raw_and_note(nbytes, [&] { return base_->raw_alloc(nbytes); });
}

void* TrackingCudaAllocator::raw_alloc_with_stream(size_t nbytes, cudaStream_t stream) {
  return allocate_raw_and_note(nbytes,
                               [&] { return base_->raw_alloc_with_stream(nbytes, stream); });
}

void TrackingCudaAllocator::raw_delete(void* data) {
  note_raw_freed(data);
  const InsideWrapped inside(core::this_thread(), WatchedType::kCuda);
  base_->raw_delete(data);
}

void TrackingCudaAllocator::enable(bool value) {
  base_->enable(value);
  wrappers().set_base_deleter(index_, base_->raw_deleter());
}

#if MEMLEDGER_TORCH_AT_LEAST(11)
void TrackingCudaAllocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                                               std::shared_ptr<CUDAAllocator> allocator) {
  if (allocator && wrappers().contains(allocator.get())) {
    CUDAAllocator* const below = static_cast<TrackingCudaAllocator*>(allocator.get())->base_;
    allocator = std::shared_ptr<CUDAAllocator>(allocator, below);
  }
  base_->createOrIncrefPool(device, pool, std::move(allocator));
}
#else
void TrackingCudaAllocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                                               CUDAAllocator* allocator) {
  if (allocator != nullptr && wrappers().contains(allocator))
    allocator = static_cast<TrackingCudaAllocator*>(allocator)->base_;
  base_->createOrIncrefPool(device, pool, allocator);
}
#endif

c10::cuda::CUDACachingAllocator::CheckpointDelta TrackingCudaAllocator::setCheckpointPoolState(
    DeviceIndex device, std::shared_ptr<AllocatorState> state) {
  core::ThreadContext& thread = core::this_thread();
  c10::cuda::CUDACachingAllocator::CheckpointDelta delta = [&] {
    const InsideWrapped inside(thread, WatchedType::kCuda);
    return base_->setCheckpointPoolState(device, std::move(state));
  }();
  for (void* const freed : delta.ptrs_freed) note_raw_freed(freed);
  const bool outermost = thread.wrapper_depth[static_cast<size_t>(WatchedType::kCuda)] == 0;
  if (!outermost || delta.dataptrs_allocd.empty()) return delta;
  if (!RegistryState::get().active.load(std::memory_order_relaxed)) {
    note_unseen(WatchedType::kCuda);
    return delta;
  }
  try {
    follow_restored(device, delta);
  } catch (...) {
    // The blocks keep the base's deleter, and can be adopted.
    note_unseen(WatchedType::kCuda);
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
  return delta;
}

// The delta has addresses; their sizes are in the allocator's snapshot.
void TrackingCudaAllocator::follow_restored(
    DeviceIndex device, c10::cuda::CUDACachingAllocator::CheckpointDelta& delta) {
  std::unordered_map<uintptr_t, size_t> nbytes;
  for (const c10::DataPtr& data : delta.dataptrs_allocd)
    nbytes[reinterpret_cast<uintptr_t>(data.get())] = 0;
#if MEMLEDGER_TORCH_AT_LEAST(11)
  const auto now = base_->snapshot({0, 0}, /*include_traces=*/false);
#else
  const auto now = base_->snapshot({0, 0});
#endif
  for (const auto& segment : now.segments) {
    if (segment.device != device) continue;
    uintptr_t address = segment.address;
    for (const auto& block : segment.blocks) {
      if (const auto restored = nbytes.find(address); restored != nbytes.end())
        restored->second = block.requested_size;
      address += block.size;
    }
  }
  core::ThreadContext& thread = core::this_thread();
  for (c10::DataPtr& data : delta.dataptrs_allocd) {
    note_allocated(WatchedType::kCuda, index_, thread, data,
                   nbytes[reinterpret_cast<uintptr_t>(data.get())]);
  }
}

#else

bool CudaAllocator::is_in_front() noexcept { return false; }
c10::Allocator* CudaAllocator::in_use() noexcept { return nullptr; }

void CudaAllocator::put_in_front() noexcept {
  seen_guard_.store(current_guard(), std::memory_order_relaxed);
}

#endif

}  // namespace memledger
