#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

// LibTorch's own device allocators, reached without linking against the devices' libraries.
namespace memledger::device_cache {

// Returns cuda:0 if LibTorch sees a CUDA device, else cpu. Makes no CUDA context.
c10::Device default_device();

// Returns how many CUDA devices LibTorch sees. Makes no CUDA context.
c10::DeviceIndex cuda_devices();

// Returns the bytes allocated now by the allocator's own statistics; nothing if it keeps none (the
// CPU), or has not been used yet.
std::optional<int64_t> allocated_bytes(c10::Device device);

// Gives cached, free blocks back to the driver. Does nothing where no cache is in use.
void release(c10::Device device);

// Gives back the workspaces that LibTorch keeps for cuBLAS, for all devices and threads; it makes
// new ones when it needs them. Nothing may run on a device that uses them. Does nothing without
// LibTorch's CUDA library.
void release_workspaces() noexcept;

// Gives cached, free pinned host memory back, of the device type's own allocator for it.
void release_pinned(c10::DeviceType type);

}  // namespace memledger::device_cache
