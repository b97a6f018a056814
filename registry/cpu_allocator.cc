#include "registry/cpu_allocator.h"

#include "registry/watched_blocks.h"

namespace memledger {
namespace {

Wrappers& wrappers() { return Wrappers::of(WatchedType::kCpu); }

}  // namespace

bool TrackingCpuAllocator::is_in_front() noexcept {
  c10::Allocator* const front = wrappers().front();
  return front != nullptr && c10::GetAllocator(c10::DeviceType::CPU) == front;
}

void TrackingCpuAllocator::put_in_front() {
  c10::Allocator* const current = c10::GetAllocator(c10::DeviceType::CPU);
  if (wrappers().contains(current)) return;
  const size_t index = wrappers().count();
  // The program has set an allocator of its own: what came through it until now went unseen.
  if (index > 0) note_unseen(WatchedType::kCpu);
  if (index == Wrappers::kMax || current == nullptr) return;
  auto* const wrapper = new TrackingCpuAllocator(current, index);
  wrappers().add(wrapper, current, current->raw_deleter());
  register_wrapper(c10::DeviceType::CPU, wrapper);
}

c10::DataPtr TrackingCpuAllocator::allocate(size_t nbytes) {
  return allocate_watched(WatchedType::kCpu, index_, nbytes, [&] { return base_->allocate(nbytes); });
}

c10::DeleterFnPtr TrackingCpuAllocator::raw_deleter() const {
  return raw_deleter_of(WatchedType::kCpu, index_, base_->raw_deleter());
}

bool TrackingCpuAllocator::is_simple_data_ptr(const c10::DataPtr& data) const { return base_->is_simple_data_ptr(data); }

void TrackingCpuAllocator::copy_data(void* dest, const void* src, size_t count) const { base_->copy_data(dest, src, count); }

const CopyOffer* TrackingCpuAllocator::memledger_copy() const noexcept { return ::memledger_copy(); }

}  // namespace memledger
