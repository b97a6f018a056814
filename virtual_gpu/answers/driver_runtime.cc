// The driver: what a CUDA runtime that is linked into a program asks beyond what LibTorch asks.
// Nearly all of it is what the runtime's own answers say.
#include <algorithm>
#include <cstring>

#include "virtual_gpu/answers/driver.h"

using namespace memledger::virtual_gpu;

namespace {

template <typename T>
const T* as_runtimes(const void* structure) {
  return static_cast<const T*>(structure);
}

}  // namespace

// Devices and contexts.

MEMLEDGER_ANSWER CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                                  CUdevice device, CUdevice peer) {
  return as_runtime(cudaDeviceGetP2PAttribute, value, static_cast<cudaDeviceP2PAttr>(attribute),
                    device, peer);
}

MEMLEDGER_ANSWER CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return is_context(peer) ? as_runtime(cudaDeviceDisablePeerAccess, device_of(peer))
                          : CUDA_ERROR_INVALID_CONTEXT;
}

extern "C" CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context);
MEMLEDGER_ANSWER CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  if (!context) return cuCtxGetDevice(device);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  *device = device_of(context);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxSynchronize_v2(CUcontext context);
MEMLEDGER_ANSWER CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (!context) return cuCtxSynchronize();
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  return driver_result(stream_result(streams().synchronize_device(device_of(context))));
}

MEMLEDGER_ANSWER CUresult cuCtxGetFlags(unsigned* flags) {
  return as_runtime(cudaGetDeviceFlags, flags);
}

MEMLEDGER_ANSWER CUresult cuCtxGetApiVersion(CUcontext context, unsigned* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  if (context && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  constexpr unsigned kOfContexts = 3020;
  *version = kOfContexts;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return as_runtime(cudaDeviceGetLimit, value, static_cast<cudaLimit>(limit));
}
MEMLEDGER_ANSWER CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return as_runtime(cudaDeviceSetLimit, static_cast<cudaLimit>(limit), value);
}

MEMLEDGER_ANSWER CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}
MEMLEDGER_ANSWER CUresult cuCtxSetCacheConfig(CUfunc_cache) { return CUDA_SUCCESS; }

MEMLEDGER_ANSWER CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}
MEMLEDGER_ANSWER CUresult cuCtxSetSharedMemConfig(CUsharedconfig) { return CUDA_SUCCESS; }

MEMLEDGER_ANSWER CUresult cuCtxResetPersistingL2Cache() { return CUDA_SUCCESS; }

// Memory.

MEMLEDGER_ANSWER CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  const KeepLastError keep;
  return driver_result(cudaMallocManaged(reinterpret_cast<void**>(address), bytes, flags));
}

MEMLEDGER_ANSWER CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                             size_t height, unsigned) {
  const KeepLastError keep;
  return driver_result(cudaMallocPitch(reinterpret_cast<void**>(address), pitch, width, height));
}

MEMLEDGER_ANSWER CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return as_runtime(cudaHostRegister, pointer, bytes, flags);
}
MEMLEDGER_ANSWER CUresult cuMemHostUnregister(void* pointer) {
  return as_runtime(cudaHostUnregister, pointer);
}
MEMLEDGER_ANSWER CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer,
                                                       unsigned) {
  const KeepLastError keep;
  return driver_result(
      device_address_of(reinterpret_cast<void**>(address), pointer, __builtin_return_address(0)));
}
MEMLEDGER_ANSWER CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return as_runtime(cudaHostGetFlags, flags, pointer);
}

MEMLEDGER_ANSWER CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes,
                                                 unsigned flags) {
  return as_runtime(cudaStreamAttachMemAsync, stream, pointer_of(address), bytes, flags);
}

MEMLEDGER_ANSWER CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                                 void** data, CUdeviceptr address) {
  if (!count || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  // All attributes of an address that CUDA does not know are zero, which is no error.
  const bool is_known = Machine::get().find(pointer_of(address)).has_value();
  for (unsigned i = 0; i < count; ++i) {
    size_t bytes = 0;
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      case CU_POINTER_ATTRIBUTE_MAPPED:
      case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        bytes = sizeof(unsigned);
        break;
      default:
        bytes = sizeof(void*);
        break;
    }
    std::memset(data[i], 0, bytes);
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      const int none = -2;  // CUDA's number for a pointer of no device
      std::memcpy(data[i], &none, sizeof none);
    }
    if (is_known) cuPointerGetAttribute(data[i], attributes[i], address);
  }
  return CUDA_SUCCESS;
}

// Pools.

MEMLEDGER_ANSWER CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return as_runtime(cudaDeviceGetDefaultMemPool, pool, device);
}
MEMLEDGER_ANSWER CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return as_runtime(cudaDeviceGetMemPool, pool, device);
}
MEMLEDGER_ANSWER CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return as_runtime(cudaDeviceSetMemPool, device, pool);
}

// The structures of pools are laid out alike in the driver and the runtime.
static_assert(sizeof(CUmemPoolProps) == sizeof(cudaMemPoolProps));
static_assert(sizeof(CUmemAccessDesc) == sizeof(cudaMemAccessDesc));
static_assert(sizeof(CUmemLocation) == sizeof(cudaMemLocation));

MEMLEDGER_ANSWER CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return as_runtime(cudaMemPoolCreate, pool, as_runtimes<cudaMemPoolProps>(properties));
}
MEMLEDGER_ANSWER CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return as_runtime(cudaMemPoolDestroy, pool);
}
MEMLEDGER_ANSWER CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  return as_runtime(cudaMemPoolTrimTo, pool, keep_bytes);
}
MEMLEDGER_ANSWER CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                                void* value) {
  return as_runtime(cudaMemPoolSetAttribute, pool, static_cast<cudaMemPoolAttr>(attribute), value);
}
MEMLEDGER_ANSWER CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                                void* value) {
  return as_runtime(cudaMemPoolGetAttribute, pool, static_cast<cudaMemPoolAttr>(attribute), value);
}
MEMLEDGER_ANSWER CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access,
                                             size_t count) {
  return as_runtime(cudaMemPoolSetAccess, pool, as_runtimes<cudaMemAccessDesc>(access), count);
}
MEMLEDGER_ANSWER CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool,
                                             CUmemLocation* location) {
  const KeepLastError keep;
  return driver_result(cudaMemPoolGetAccess(reinterpret_cast<cudaMemAccessFlags*>(flags), pool,
                                            reinterpret_cast<cudaMemLocation*>(location)));
}
MEMLEDGER_ANSWER CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes,
                                                  CUmemoryPool pool, CUstream stream) {
  const KeepLastError keep;
  return driver_result(
      cudaMallocFromPoolAsync(reinterpret_cast<void**>(address), bytes, pool, stream));
}

// Streams and events.

// cuda.h of CUDA 12.6 does not know it.
extern "C" CUresult cuStreamGetDevice(CUstream stream, CUdevice* device);
// What streams have set for them (L2 windows, policies of synchronization) changes nothing here.
#undef cuEventElapsedTime
