#include "registry/hooks/cpu_allocator.h"

#include "registry/hooks/block_hooks.h"

namespace memledger {
namespace {

Wrappers& wrappers() { return Wrappers::of(WatchedType::kCpu); }

}  // namespace

bool TrackingCpuAllocator::is_in_front() noexcept {
  return wrappers().contains(c10::GetAllocator(c10::DeviceType::CPU));
}

void TrackingCpuAllocator::put_in_front() {
  core::calling_out();
  c10::Allocator* const current = c10::GetAllocator(c10::DeviceType::CPU);
  if (wrappers().contains(current)) return;
  // The program has set an allocator of its own, and what came through it until now went unseen.
  const size_t count = wrappers().count();
  if (count > 0) note_unseen(WatchedType::kCpu);
  if (current == nullptr) return;
  size_t index = wrappers().standing_before(current);
  if (index < Wrappers::kMax) {
    // Another allocator may lie at the address of one that ended.
    wrappers().set_base_deleter(index, current->raw_deleter());
  } else {
    if (count == Wrappers::kMax) return;
    wrappers().add(new TrackingCpuAllocator(current, count), current, current->raw_deleter());
    index = count;
  }
  register_wrapper(c10::DeviceType::CPU, wrappers().wrapper(index));
}

c10::DataPtr TrackingCpuAllocator::allocate(size_t nbytes) {
  return allocate_and_note(WatchedType::kCpu, index_, nbytes,
                           [&] { return base_->allocate(nbytes); });
}

c10::DeleterFnPtr TrackingCpuAllocator::raw_deleter() const {
  return raw_deleter_of(WatchedType::kCpu, index_, base_->raw_deleter());
}

bool TrackingCpuAllocator::is_simple_data_ptr(const c10::DataPtr& data) const {
  return base_->is_simple_data_ptr(data);
}

void TrackingCpuAllocator::copy_data(void* dest, const void* src, size_t count) const {
  base_->copy_data(dest, src, count);
}

const CopyOffer* TrackingCpuAllocator::memledger_copy() const noexcept {
  return ::memledger_copy();
}

}  // namespace memledger
