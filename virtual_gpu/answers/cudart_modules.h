#pragma once

#include <optional>
#include <string>

#include "virtual_gpu/answers/cudart.h"
#include "virtual_gpu/device_code.h"

// What compiled device code registers with the runtime when it is loaded: its kernels and variables
// by the addresses of their stand-ins on the host.
namespace memledger::virtual_gpu {

// Loads the code of a kernel for the thread's device: what its variables and its local memory take
// is taken. Fails with cudaErrorNoKernelImageForDevice where no code of it runs there, and with
// cudaErrorMemoryAllocation. A kernel that nobody registered is taken to run.
cudaError_t load_kernel(const void* stub);

// What the code for the thread's device says of a kernel.
struct KernelFacts {
  cudaError_t error = cudaSuccess;
  int binary_version = 0;  // as 86
  int ptx_version = 0;
  KernelCode code;  // zeros where the code cannot be read
};
KernelFacts facts_of_kernel(const void* stub);

// The size of a variable, by its stand-in; nothing where it is none.
std::optional<size_t> variable_bytes(const void* symbol);

// All code has to be loaded again, as after a reset.
void forget_loaded_kernels();

}  // namespace memledger::virtual_gpu
