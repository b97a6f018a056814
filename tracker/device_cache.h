#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

// What LibTorch's own device allocators tell and do, whatever the device, without linking against
// its libraries.
namespace memledger::device_cache {

// cuda:0 if LibTorch sees a CUDA device, else cpu. Makes no CUDA context.
c10::Device default_device();

// How many CUDA devices LibTorch sees. Makes no CUDA context.
c10::DeviceIndex cuda_devices();

// Bytes allocated now by the allocator's own statistics; nothing if it keeps none (the CPU), or has
// not been used yet.
std::optional<int64_t> allocated_bytes(c10::Device device);

// Hands cached, free blocks back to the driver. Does nothing where there is no cache, or none in
// use.
void release(c10::Device device);

// Gives back the workspaces that LibTorch keeps for cuBLAS, all devices' and threads'; it makes new
// ones where they are needed. Nothing that uses them may run on a device. Does nothing without
// LibTorch's CUDA library.
void release_workspaces() noexcept;

// Hands cached, free pinned host memory back, that of the device type's own allocator for it.
void release_pinned(c10::DeviceType type);

}  // namespace memledger::device_cache
