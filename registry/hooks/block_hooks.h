#pragma once

// What the allocator wrappers of all device types share: who stands before whom, births and deaths
// of blocks, adoption.
//
// A wrapper notes births after the allocator below it has made the block, and deaths before the
// block goes back to it, as the address can be given out again at once. No lock is held while the
// allocator below is called, and no exceptions but its own get out.

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "registry/core/lock.h"
#include "registry/libtorch/libtorch_storages.h"
#include "registry/live_storages.h"
#include "registry/state.h"

namespace memledger {

constexpr c10::DeviceType device_type_of(WatchedType type) noexcept {
  static_assert(kWatchedTypes == 2);
  return type == WatchedType::kCpu ? c10::DeviceType::CPU : c10::DeviceType::CUDA;
}

// The wrappers of one device type, in the order in which they were put in front. None is ever taken
// out or destroyed, as storages keep a pointer to their allocator.
class Wrappers {
 public:
  static constexpr size_t kMax = 16;
  static Wrappers& of(WatchedType type) noexcept;

  size_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  c10::Allocator* wrapper(size_t index) const noexcept {
    return entries_[index].wrapper.load(std::memory_order_relaxed);
  }
  c10::Allocator* base(size_t index) const noexcept {
    return entries_[index].base.load(std::memory_order_relaxed);
  }
  bool contains(const c10::Allocator* allocator) const noexcept;

  // Returns how the wrapped allocator frees blocks that nobody follows; null if it has no such
  // function.
  c10::DeleterFnPtr base_deleter(size_t index) const noexcept {
    return entries_[index].base_deleter.load(std::memory_order_relaxed);
  }
  // Called when the wrapped allocator frees new blocks in another way than before (LibTorch's CUDA
  // allocator can be set not to cache).
  void set_base_deleter(size_t index, c10::DeleterFnPtr deleter) noexcept;
  // Returns the wrapper whose base frees with this deleter; kMax if there is none.
  size_t freeing_with(c10::DeleterFnPtr deleter) const noexcept;

  // Returns the wrapper that was made for this allocator; kMax if none was.
  size_t standing_before(const c10::Allocator* base) const noexcept;

  // Adds a wrapper at count(), which is below kMax. By one thread at a time.
  void add(c10::Allocator* wrapper, c10::Allocator* base, c10::DeleterFnPtr base_deleter) noexcept;

 private:
  constexpr explicit Wrappers(WatchedType type) : type_(type) {}

  struct Entry {
    std::atomic<c10::Allocator*> wrapper{nullptr};
    std::atomic<c10::Allocator*> base{nullptr};
    std::atomic<c10::DeleterFnPtr> base_deleter{nullptr};
    std::atomic<c10::DeleterFnPtr> former_base_deleter{nullptr};
  };
  const WatchedType type_;
  std::array<Entry, kMax> entries_{};
  std::atomic<size_t> count_{0};
};

// Makes the wrapper LibTorch's allocator of that device type, with the priority of the present one:
// LibTorch does not expose priorities, but it accepts an allocator whose priority is at least the
// present one's. So it accepts or refuses a later allocator of the program as it would without
// memledger. LibTorch's own have priority 0; its CUDA allocator 1 from 2.15 on.
void register_wrapper(c10::DeviceType type, c10::Allocator* wrapper);

// Returns the deleter of blocks that this wrapper made and the table follows. Each wrapper has a
// function of its own, since a block that the table does not know must go back to the allocator
// whose raw_deleter() this is.
c10::DeleterFnPtr tracked_deleter(WatchedType type, size_t index) noexcept;
bool is_tracked_deleter(WatchedType type, c10::DeleterFnPtr deleter) noexcept;
// Returns what a wrapper answers when asked for its raw deleter.
c10::DeleterFnPtr raw_deleter_of(WatchedType type, size_t index, c10::DeleterFnPtr base) noexcept;

// While it lives, wrappers of that type below this one pass through: only the outermost notes.
class InsideWrapped {
 public:
  InsideWrapped(core::ThreadContext& thread, WatchedType type)
      : depth_(thread.wrapper_depth[static_cast<size_t>(type)]) {
    core::calling_out();
    ++depth_;
  }
  ~InsideWrapped() { --depth_; }
  InsideWrapped(const InsideWrapped&) = delete;
  InsideWrapped& operator=(const InsideWrapped&) = delete;

 private:
  uint8_t& depth_;
};

// Notes that something went past while nobody looked.
void note_unseen(WatchedType type) noexcept;
// Enters what the allocator below has made, and makes its deleter ours.
void note_allocated(WatchedType type, size_t index, core::ThreadContext& thread, c10::DataPtr& data,
                    size_t nbytes) noexcept;

// Calls the observer of failures (registry/allocation_failure.h). Call it in a catch handler.
void note_failed(WatchedType type, size_t nbytes) noexcept;

// Calls the observer of demands (demand_observer.h), if it is time.
void tell_demand(int64_t nbytes) noexcept;

// Calls the allocator below; what that throws goes on unchanged.
template <typename Allocate>
auto allocate_below(WatchedType type, core::ThreadContext& thread, bool outermost, size_t nbytes,
                    const Allocate& allocate) {
  try {
    const InsideWrapped inside(thread, type);
    return allocate();
  } catch (...) {
    if (outermost) note_failed(type, nbytes);
    throw;
  }
}

// Calls the allocator below and notes what it made, if tracking is on and this is the outermost
// wrapper.
template <typename Allocate>
c10::DataPtr allocate_and_note(WatchedType type, size_t index, size_t nbytes,
                               const Allocate& allocate) {
  core::calling_out();  // whoever called has called out, too
  const RegistryState& state = RegistryState::get();
  if (!state.active.load(std::memory_order_relaxed)) {
    if (nbytes > 0) note_unseen(type);
    return allocate();
  }
  core::ThreadContext& thread = core::this_thread();
  const bool outermost = thread.wrapper_depth[static_cast<size_t>(type)] == 0;
  if (outermost && type == WatchedType::kCpu &&
      state.has_demand_observer.load(std::memory_order_relaxed)) {
    tell_demand(static_cast<int64_t>(nbytes));
  }
  c10::DataPtr data = allocate_below(type, thread, outermost, nbytes, allocate);
  if (outermost) note_allocated(type, index, thread, data, nbytes);
  return data;
}

// Enters a block without a DataPtr. `base_deleter` is for a program that puts one around the block
// later.
void note_raw_allocated(core::ThreadContext& thread, core::DeviceKey device, const void* data,
                        size_t nbytes, c10::DeleterFnPtr base_deleter) noexcept;
// Call it before the block goes back to the allocator below.
void note_raw_freed(const void* data) noexcept;

// The deleters of the first wrappers of each type, which nearly all storages have.
extern const std::array<c10::DeleterFnPtr, kWatchedTypes> kFirstDeleters;

// Returns true if the storage is in the table. May return false for one that is.
inline bool is_followed(const c10::StorageImpl& storage) noexcept {
  // The unchecked accessor does not throw on fake storages, nor materialize copy-on-write ones.
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = libtorch_storages::deleter_of(data);
  return data.get() != nullptr && (deleter == kFirstDeleters[0] || deleter == kFirstDeleters[1]);
}

// The maker of the memory of a storage.
enum class BlockOrigin : uint8_t {
  kWatched,    // the table follows it
  kAdoptable,  // a wrapped allocator made it while nobody tracked it
  kForeign,    // another's, or there is none
};
// A few pointer comparisons.
BlockOrigin origin_of(const c10::StorageImpl& storage) noexcept;
// Returns whether it is kAdoptable.
bool can_adopt(const c10::StorageImpl& storage) noexcept;

// Enters such a storage into the table and follows it to its end; its deleter becomes ours, and a
// later resize comes to us. Returns whether it is in the table afterwards. The caller holds a
// reference to the storage. Thread-safe among adopters; the program must not resize or swap this
// storage's data at the same moment, which would be a race with any reader.
bool adopt(c10::StorageImpl& storage) noexcept;

// Do what the functions of registry/live_storages.h promise, for this copy.
std::vector<LiveStorage> live_storages_here(c10::Device device);
void know_storage_here(c10::StorageImpl& storage);
bool owns_watched_block_here(const c10::StorageImpl& storage) noexcept;

// Called around fork, so that no other thread holds these locks in the child.
void lock_adoption_for_fork();
void unlock_adoption_after_fork();

}  // namespace memledger
