#include "registry/allocation_failure.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <exception>

#include "registry/hooks/block_hooks.h"
#include "registry/hooks/stack_sampler.h"
#include "registry/record_values.h"
#include "registry/second_copy/copies.h"

namespace memledger {
namespace {

std::atomic<AllocationFailureObserver> observer_in_use{nullptr};

// CUDA allocators allocate on the device that is current on this thread.
c10::Device device_asked(WatchedType type) {
  if (type == WatchedType::kCpu) return c10::Device(c10::DeviceType::CPU);
  return c10::impl::getDeviceGuardImpl(device_type_of(type))->getDevice();
}

void tell(AllocationFailureObserver observer, WatchedType type, size_t nbytes,
          std::string_view message) noexcept {
  try {
    AllocationFailure failure;
    static_cast<Birthplace&>(failure) = birthplace_value(core::this_thread().birthplace());
    failure.requested_bytes = static_cast<int64_t>(nbytes);
    failure.device = device_asked(type);
    failure.stack = StackSampler::take_with_operator(core::this_thread());
    failure.message = message;
    observer(failure);
  } catch (...) {
    RegistryState::get().swallowed_exceptions.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

AllocationFailureObserver set_allocation_failure_observer(
    AllocationFailureObserver observer) noexcept {
  if (const CopyOffer* const first = first_copy())
    return first->services->set_failure_observer(observer);
  return observer_in_use.exchange(observer, std::memory_order_acq_rel);
}

void note_failed(WatchedType type, size_t nbytes) noexcept {
  static thread_local bool telling = false;
  const AllocationFailureObserver observer = observer_in_use.load(std::memory_order_acquire);
  if (observer == nullptr || telling) return;
  telling = true;
  try {
    throw;
  } catch (const c10::Error& error) {
    // what() would symbolize a whole stack first, which takes seconds.
    tell(observer, type, nbytes, error.what_without_backtrace());
  } catch (const std::exception& error) {
    tell(observer, type, nbytes, error.what());
  } catch (...) {
    tell(observer, type, nbytes, "");
  }
  telling = false;
}

}  // namespace memledger
