// The driver: what LibTorch, its run-time compiler and Triton ask of it. Most of it is what the
// runtime answers.
#include <cuda.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "virtual_gpu/answers/driver.h"

using namespace memledger::virtual_gpu;

namespace {

CUresult driver(cudaError_t error) { return driver_result(error); }

PhysicalMemory* memory_of(CUmemGenericAllocationHandle handle) {
  return reinterpret_cast<PhysicalMemory*>(handle);
}

// The primary context of a device is the address of its place in this array.
char contexts[8];

}  // namespace

namespace memledger::virtual_gpu {

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }

bool is_context(CUcontext context) {
  const char* const place = reinterpret_cast<const char*>(context);
  return place >= contexts && place < contexts + Machine::get().device_count();
}

int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<const char*>(context) - contexts);
}

}  // namespace memledger::virtual_gpu

namespace {

// What a thread's calls are for. Without a context of its own it has the runtime's, once there is
// one.
struct Current {
  bool has_context;
  int device;
};

thread_local bool has_current_context = false;

// What cuCtxPopCurrent goes back to: a stack of each thread. As a thread ends, others' destructors
// may still push and pop, so nothing here has a destructor: what was not popped is dropped last.
struct Pushed {
  Current context;
  Pushed* below;
};

pthread_key_t stack_key() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, [](void* top) {
      for (auto* pushed = static_cast<Pushed*>(top); pushed != nullptr;) {
        Pushed* const below = pushed->below;
        delete pushed;
        pushed = below;
      }
    });
    return made;
  }();
  return key;
}

Pushed* top_of_stack() { return static_cast<Pushed*>(pthread_getspecific(stack_key())); }

Current current() { return {has_current_context, current_device()}; }

void make_current(const Current& current) {
  has_current_context = current.has_context;
  set_current_device(current.device);
}

CUresult check_device(CUdevice device) {
  return Machine::get().is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

void pop_context() {
  Pushed* const top = top_of_stack();
  if (top == nullptr) {
    has_current_context = false;
    return;
  }
  make_current(top->context);
  pthread_setspecific(stack_key(), top->below);
  delete top;
}

}  // namespace

MEMLEDGER_ANSWER CUresult cuInit(unsigned) {
  return Machine::get().device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

MEMLEDGER_ANSWER CUresult cuDriverGetVersion(int* version) {
  return as_runtime(cudaDriverGetVersion, version);
}

MEMLEDGER_ANSWER CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuGetProcAddress_v2(const char* name, void** function, int version,
                                              cuuint64_t, CUdriverProcAddressQueryResult* status) {
  if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
  *function = find_driver_function(name, version);
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// As CUDA 11 has it.
#undef cuGetProcAddress
MEMLEDGER_ANSWER CUresult cuGetProcAddress(const char* name, void** function, int version,
                                           cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// The driver has nothing to log.

#if CUDA_VERSION >= 12090
MEMLEDGER_ANSWER CUresult cuLogsRegisterCallback(CUlogsCallback callback, void*,
                                                 CUlogsCallbackHandle* handle) {
  static char nothing;
  if (!callback) return CUDA_ERROR_INVALID_VALUE;
  if (handle) *handle = reinterpret_cast<CUlogsCallbackHandle>(&nothing);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }
#endif

// Devices and contexts.

MEMLEDGER_ANSWER CUresult cuDeviceGetCount(int* count) {
  // Programs ask so whether CUDA has been started in this process.
  if (!Machine::is_made()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = Machine::get().device_count();
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = ordinal;
  return check_device(ordinal);
}

MEMLEDGER_ANSWER CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_device(device)) return error;
  std::snprintf(name, static_cast<size_t>(length), "%s",
                Machine::get().profile(device).device_name.c_str());
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_device(device)) return error;
  char bytes[16];
  device_uuid(bytes, device);
  std::memcpy(uuid, bytes, sizeof bytes);
  return CUDA_SUCCESS;
}

// The name has the version in CUDA 12's header only as a macro, so the plain one needs an exported
// symbol of its own.
#undef cuDeviceGetUuid
MEMLEDGER_ANSWER CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

MEMLEDGER_ANSWER CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_device(device)) return error;
  *bytes = Machine::get().capacity(device);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                               CUdevice device) {
  return driver(device_attribute(value, attribute, device));
}

MEMLEDGER_ANSWER CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_device(device)) return error;
  *major = Machine::get().profile(device).major;
  *minor = Machine::get().profile(device).minor;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  return as_runtime(cudaDeviceGetPCIBusId, text, length, device);
}

MEMLEDGER_ANSWER CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  return as_runtime(cudaDeviceGetByPCIBusId, device, text);
}

MEMLEDGER_ANSWER CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return as_runtime(cudaDeviceCanAccessPeer, can, device, peer);
}

MEMLEDGER_ANSWER CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags,
                                                     int* active) {
  if (const CUresult error = check_device(device)) return error;
  if (flags) *flags = 0;
  if (active) *active = Machine::get().has_context(device);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_device(device)) return error;
  if (!Machine::get().make_context(device)) return CUDA_ERROR_OUT_OF_MEMORY;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return check_device(device);
}
MEMLEDGER_ANSWER CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned) {
  return check_device(device);
}

MEMLEDGER_ANSWER CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (const CUresult error = check_device(device)) return error;
  end_context(device);
  Machine::get().reset(device);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuCtxSetCurrent(CUcontext context) {
  // Without one the top of the thread's stack goes, as in CUDA.
  if (!context) {
    pop_context();
    return CUDA_SUCCESS;
  }
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  make_current({true, device_of(context)});
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuCtxGetCurrent(CUcontext* context) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  // The runtime makes the primary context current for its threads.
  const bool current = has_current_context || (Machine::get().device_count() &&
                                               Machine::get().has_context(current_device()));
  *context = current ? context_of(current_device()) : nullptr;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  auto* const pushed = new (std::nothrow) Pushed{current(), top_of_stack()};
  if (pushed == nullptr || pthread_setspecific(stack_key(), pushed) != 0) {
    delete pushed;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  make_current({true, device_of(context)});
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  CUcontext popped = nullptr;
  cuCtxGetCurrent(&popped);
  if (!popped) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = popped;
  pop_context();
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuCtxGetDevice(CUdevice* device) {
  return as_runtime(cudaGetDevice, device);
}
MEMLEDGER_ANSWER CUresult cuCtxSynchronize() { return as_runtime(cudaDeviceSynchronize); }

MEMLEDGER_ANSWER CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return as_runtime(cudaDeviceGetStreamPriorityRange, least, greatest);
}

MEMLEDGER_ANSWER CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return is_context(peer) ? as_runtime(cudaDeviceEnablePeerAccess, device_of(peer), flags)
                          : CUDA_ERROR_INVALID_CONTEXT;
}

// Memory.

MEMLEDGER_ANSWER CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return as_runtime(cudaMemGetInfo, free_bytes, total_bytes);
}

MEMLEDGER_ANSWER CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
  const KeepLastError keep;
  return driver(cudaMalloc(reinterpret_cast<void**>(address), bytes));
}

MEMLEDGER_ANSWER CUresult cuMemFree_v2(CUdeviceptr address) {
  return as_runtime(cudaFree, pointer_of(address));
}

MEMLEDGER_ANSWER CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  const KeepLastError keep;
  return driver(cudaHostAlloc(pointer, bytes, 0));
}

MEMLEDGER_ANSWER CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return as_runtime(cudaHostAlloc, pointer, bytes, flags);
}

MEMLEDGER_ANSWER CUresult cuMemFreeHost(void* pointer) { return as_runtime(cudaFreeHost, pointer); }

MEMLEDGER_ANSWER CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  const KeepLastError keep;
  return driver(cudaMallocAsync(reinterpret_cast<void**>(address), bytes, stream));
}

MEMLEDGER_ANSWER CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return as_runtime(cudaFreeAsync, pointer_of(address), stream);
}

MEMLEDGER_ANSWER CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes,
                                                  CUdeviceptr address) {
  const std::optional<Region> region = Machine::get().find(pointer_of(address));
  if (!region) return CUDA_ERROR_NOT_FOUND;
  if (begin) *begin = region->begin;
  if (bytes) *bytes = region->bytes;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                                CUdeviceptr address) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<Region> region = Machine::get().find(pointer_of(address));
  if (!region) return CUDA_ERROR_INVALID_VALUE;
  const bool on_device = region->kind == MemoryKind::kDevice;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = context_of(region->device);
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = address;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (on_device) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = pointer_of(address);
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = region->begin;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = region->kind == MemoryKind::kManaged;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = region->device;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = region->begin;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = region->bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = 1;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<unsigned*>(data) = 0;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuPointerSetAttribute(const void*, CUpointer_attribute, CUdeviceptr) {
  return CUDA_SUCCESS;
}

// Virtual memory management, which expandable segments are made of.

MEMLEDGER_ANSWER CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                                        const CUmemAllocationProp*,
                                                        CUmemAllocationGranularity_flags) {
  if (!granularity) return CUDA_ERROR_INVALID_VALUE;
  *granularity = Machine::kPage;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                              CUdeviceptr, unsigned long long flags) {
  if (!address || !bytes || bytes % Machine::kPage || (alignment & (alignment - 1)) || flags)
    return CUDA_ERROR_INVALID_VALUE;
  *address = Machine::get().reserve(bytes, alignment, current_device());
  return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

MEMLEDGER_ANSWER CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return Machine::get().release_reservation(address, bytes) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                      const CUmemAllocationProp* properties,
                                      unsigned long long flags) {
  if (!handle || !properties || !bytes || bytes % Machine::kPage || flags)
    return CUDA_ERROR_INVALID_VALUE;
  // NCCL asks for the host's, and does without.
  if (properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    MEMLEDGER_SAY_REFUSED("physical memory of a virtual GPU lies on a device.");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // Programs try this kind first and take another where it is not there.
  if (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult error = check_device(properties->location.id)) return error;
  PhysicalMemory* const memory = Machine::get().create_physical(properties->location.id, bytes);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(memory);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Machine::get().release_physical(memory_of(handle)) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                      void* address) {
  PhysicalMemory* const memory = Machine::get().mapped_at(address);
  if (!handle || !memory || !Machine::get().retain_physical(memory))
    return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(memory);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                                   CUmemGenericAllocationHandle handle, unsigned long long flags) {
  // A mapping of a part is not supported by CUDA either.
  if (offset || flags) return CUDA_ERROR_INVALID_VALUE;
  return Machine::get().map(address, bytes, memory_of(handle)) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return Machine::get().unmap(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                         const CUmemAccessDesc* access, size_t count) {
  if (!access || !count || !bytes) return CUDA_ERROR_INVALID_VALUE;
  return Machine::get().is_device_range(pointer_of(address), bytes) ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation*,
                                         CUdeviceptr address) {
  if (!flags || !Machine::get().find(pointer_of(address))) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  const std::optional<PhysicalMemory> memory = Machine::get().physical(memory_of(handle));
  if (!properties || !memory) return CUDA_ERROR_INVALID_VALUE;
  std::memset(properties, 0, sizeof *properties);
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = memory->device;
  return CUDA_SUCCESS;
}

#define MEMLEDGER_NO_MULTICAST "a virtual GPU has no multicast memory; its attribute says so."

MEMLEDGER_ANSWER CUresult cuMulticastCreate(CUmemGenericAllocationHandle*,
                                            const CUmulticastObjectProp*) {
  MEMLEDGER_SAY_REFUSED(MEMLEDGER_NO_MULTICAST);
  return CUDA_ERROR_NOT_SUPPORTED;
}

MEMLEDGER_ANSWER CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) {
  MEMLEDGER_SAY_REFUSED(MEMLEDGER_NO_MULTICAST);
  return CUDA_ERROR_NOT_SUPPORTED;
}

MEMLEDGER_ANSWER CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t,
                                            size_t) {
  MEMLEDGER_SAY_REFUSED(MEMLEDGER_NO_MULTICAST);
  return CUDA_ERROR_NOT_SUPPORTED;
}

#undef MEMLEDGER_NO_MULTICAST

// Streams and events are the runtime's.

MEMLEDGER_ANSWER CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return as_runtime(cudaStreamCreateWithFlags, stream, flags);
}

MEMLEDGER_ANSWER CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags,
                                                     int priority) {
  return as_runtime(cudaStreamCreateWithPriority, stream, flags, priority);
}

MEMLEDGER_ANSWER CUresult cuStreamDestroy_v2(CUstream stream) {
  return as_runtime(cudaStreamDestroy, stream);
}
MEMLEDGER_ANSWER CUresult cuStreamSynchronize(CUstream stream) {
  return as_runtime(cudaStreamSynchronize, stream);
}
MEMLEDGER_ANSWER CUresult cuStreamQuery(CUstream stream) {
  return as_runtime(cudaStreamQuery, stream);
}
MEMLEDGER_ANSWER CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return as_runtime(cudaStreamWaitEvent, stream, event, flags);
}

MEMLEDGER_ANSWER CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const KeepLastError keep;
  return driver(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}

MEMLEDGER_ANSWER CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return as_runtime(cudaStreamBeginCapture, stream, static_cast<cudaStreamCaptureMode>(mode));
}

MEMLEDGER_ANSWER CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return as_runtime(cudaStreamEndCapture, stream, graph);
}

MEMLEDGER_ANSWER CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  const KeepLastError keep;
  return driver(
      cudaThreadExchangeStreamCaptureMode(reinterpret_cast<cudaStreamCaptureMode*>(mode)));
}

MEMLEDGER_ANSWER CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                                      unsigned long long flags) {
  return as_runtime(cudaGraphInstantiateWithFlags, executable, graph, flags);
}

MEMLEDGER_ANSWER CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  return as_runtime(cudaGraphLaunch, executable, stream);
}

MEMLEDGER_ANSWER CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
  return as_runtime(cudaGraphUpload, executable, stream);
}

MEMLEDGER_ANSWER CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return as_runtime(cudaGraphExecDestroy, executable);
}

MEMLEDGER_ANSWER CUresult cuGraphDestroy(CUgraph graph) {
  return as_runtime(cudaGraphDestroy, graph);
}

MEMLEDGER_ANSWER CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  *context = context_of(stream_device(stream));
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address,
                                                  cuuint32_t value, unsigned) {
  return driver(fill_on_stream(pointer_of(address), 0, value, 4, 1, 1, stream, true));
}

// All work before it is done, so what it waits for cannot come later.
MEMLEDGER_ANSWER CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr, cuuint32_t,
                                                 unsigned) {
  const KeepLastError keep;
  return driver(on_stream(stream, NodeKind::kEmpty, [] { return cudaSuccess; }));
}

MEMLEDGER_ANSWER CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return as_runtime(cudaEventCreateWithFlags, event, flags);
}
MEMLEDGER_ANSWER CUresult cuEventRecord(CUevent event, CUstream stream) {
  return as_runtime(cudaEventRecord, event, stream);
}
MEMLEDGER_ANSWER CUresult cuEventQuery(CUevent event) { return as_runtime(cudaEventQuery, event); }
MEMLEDGER_ANSWER CUresult cuEventSynchronize(CUevent event) {
  return as_runtime(cudaEventSynchronize, event);
}
MEMLEDGER_ANSWER CUresult cuEventDestroy_v2(CUevent event) {
  return as_runtime(cudaEventDestroy, event);
}

MEMLEDGER_ANSWER CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return as_runtime(cudaLaunchHostFunc, stream, function, data);
}

// A descriptor for copies within kernels: its content is read by kernels only.
MEMLEDGER_ANSWER CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t,
                                                 void*, const cuuint64_t*, const cuuint64_t*,
                                                 const cuuint32_t*, const cuuint32_t*,
                                                 CUtensorMapInterleave, CUtensorMapSwizzle,
                                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (!map) return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}
