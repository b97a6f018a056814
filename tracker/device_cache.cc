#include "tracker/device_cache.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

#include "registry/device_statistics.h"
#include "registry/libtorch/cuda_symbols.h"

namespace memledger::device_cache {
namespace {

// Returns null unless the device's allocator caches and is in use.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu() || !allocator_is_usable(device.type())) return nullptr;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

c10::Device default_device() {
  return at::detail::getCUDAHooks().hasCUDA() ? c10::Device(c10::DeviceType::CUDA, 0)
                                              : c10::Device(c10::DeviceType::CPU);
}

c10::DeviceIndex cuda_devices() {
  if (!at::detail::getCUDAHooks().hasCUDA()) return 0;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
}

std::optional<int64_t> allocated_bytes(c10::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.index()).allocated_bytes[kAggregate].current;
}

void release(c10::Device device) {
  if (c10::DeviceAllocator* const allocator = allocator_of(device)) allocator->emptyCache();
}

void release_workspaces() noexcept {
  // at::cuda::clearCublasWorkspaces()
  void* const clear = find_symbol_of_loaded_library("_ZN2at4cuda21clearCublasWorkspacesEv");
  if (clear == nullptr) return;
  try {
    reinterpret_cast<void (*)()>(clear)();
  } catch (const std::exception&) {  // they stay, and Courtesy lists them
  }
}

void release_pinned(c10::DeviceType type) {
  // Without the device's library there is none, and LibTorch may say so by an exception.
  if (type == c10::DeviceType::CUDA && !at::detail::getCUDAHooks().hasCUDA()) return;
  if (at::HostAllocator* const allocator = at::getHostAllocator(type)) allocator->empty_cache();
}

}  // namespace memledger::device_cache
