#pragma once

#include <cuda.h>

#include <vector>

#include "virtual_gpu/answers/cudart.h"

// What the files of the driver share.
namespace memledger::virtual_gpu {

// The primary context of a device; a device has no other.
CUcontext context_of(int device);
bool is_context(CUcontext context);
int device_of(CUcontext context);

// The numbers of the two are the same where both have one.
inline CUresult driver_result(cudaError_t error) { return static_cast<CUresult>(error); }

// Runs a function of the runtime without touching the thread's last error.
template <typename F, typename... A>
CUresult as_runtime(F function, A... arguments) {
  const KeepLastError keep;
  return driver_result(function(arguments...));
}

inline void* pointer_of(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// The functions of a module; one without a name where its code cannot be read. Empty: not a module.
std::vector<CUfunction> functions_of(CUmodule module);

// Ends what hangs on the context of a device that is about to be reset.
void end_context(int device);
// Calls back whoever left something in the context's storage; a part of the above.
void drop_context_storage(int device);

}  // namespace memledger::virtual_gpu
