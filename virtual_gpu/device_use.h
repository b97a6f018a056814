#pragma once

#include <cstddef>
#include <cstdint>

// What the program has taken of each device so far, whoever asked: segments of LibTorch's
// allocator, memory that libraries took, contexts.
extern "C" {

struct memledger_virtual_gpu_use {
  const char* name;  // NVIDIA H200; lives as long as the process
  uint64_t total_bytes;
  uint64_t context_bytes;  // part of what is used; 0 before the device's first use
  uint64_t used_bytes;
  uint64_t peak_bytes;  // the maximum in use at one time
  // How often memory was refused where LibTorch does not empty its cache and ask again: to a
  // library that takes some for itself, such as NCCL, and to stream-ordered allocations
  // (cudaMallocAsync).
  uint64_t unretried_failures;
};

// Writes up to `capacity` rows, one per device that CUDA shows, and returns how many there are.
// Found by name (dlsym): nullptr where no virtual GPU is there.
__attribute__((visibility("default"))) size_t memledger_virtual_gpu_uses(
    memledger_virtual_gpu_use* rows, size_t capacity);

// Whether the program has used a device. Takes no lock, so it may be asked while the program forks.
__attribute__((visibility("default"))) bool memledger_virtual_gpu_is_used();

// Restarts the peaks of all devices, with what is used now.
__attribute__((visibility("default"))) void memledger_virtual_gpu_reset_peaks();

}  // extern "C"
