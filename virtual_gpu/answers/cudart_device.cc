// The runtime: devices, their properties, errors, versions.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "virtual_gpu/answers/cudart_modules.h"
#include "virtual_gpu/answers/driver.h"
#include "virtual_gpu/answers/last_error.h"
#include "virtual_gpu/context_memory.h"
#include "virtual_gpu/visible_devices.h"

namespace memledger::virtual_gpu {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

std::atomic<unsigned> device_flags[8] = {};

constexpr int kTexture1D = 131072;
constexpr int kTexture2DHeight = 65536;
constexpr int kTexture3D = 16384;
constexpr int kLayered = 32768;
constexpr int kLayers = 2048;
constexpr int kCubemapLayers = 2046;

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define MEMLEDGER_ERROR(error, text) \
  { error, #error, text }
constexpr ErrorText kErrors[] = {
    MEMLEDGER_ERROR(cudaSuccess, "no error"),
    MEMLEDGER_ERROR(cudaErrorInvalidValue, "invalid argument"),
    MEMLEDGER_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    MEMLEDGER_ERROR(cudaErrorInitializationError, "initialization error"),
    MEMLEDGER_ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    MEMLEDGER_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    MEMLEDGER_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    MEMLEDGER_ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    MEMLEDGER_ERROR(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    MEMLEDGER_ERROR(cudaErrorInvalidHostPointer, "invalid host pointer"),
    MEMLEDGER_ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    MEMLEDGER_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    MEMLEDGER_ERROR(cudaErrorInsufficientDriver,
                    "CUDA driver version is insufficient for CUDA runtime version"),
    MEMLEDGER_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    MEMLEDGER_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    MEMLEDGER_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    MEMLEDGER_ERROR(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    MEMLEDGER_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    MEMLEDGER_ERROR(cudaErrorNoKernelImageForDevice,
                    "no kernel image is available for execution on the device"),
    MEMLEDGER_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    MEMLEDGER_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    MEMLEDGER_ERROR(cudaErrorNotReady, "device not ready"),
    MEMLEDGER_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    MEMLEDGER_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    MEMLEDGER_ERROR(cudaErrorPeerAccessUnsupported,
                    "peer access is not supported between these two devices"),
    MEMLEDGER_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    MEMLEDGER_ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    MEMLEDGER_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                    "part or all of the requested memory range is already mapped"),
    MEMLEDGER_ERROR(cudaErrorHostMemoryNotRegistered,
                    "pointer does not correspond to a registered memory region"),
    MEMLEDGER_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    MEMLEDGER_ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    MEMLEDGER_ERROR(cudaErrorNotPermitted, "operation not permitted"),
    MEMLEDGER_ERROR(cudaErrorNotSupported, "operation not supported"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureUnsupported,
                    "operation not permitted when stream is capturing"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureInvalidated,
                    "operation failed due to a previous error during capture"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureMerge,
                    "operation would result in a merge of separate capture sequences"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureUnmatched,
                    "capture was not ended in the same stream as it began"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureIsolation,
                    "dependency created on uncaptured work in another stream"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureImplicit,
                    "operation would make the legacy stream depend on a capturing blocking stream"),
    MEMLEDGER_ERROR(cudaErrorCapturedEvent,
                    "operation not permitted on an event last recorded in a capturing stream"),
    MEMLEDGER_ERROR(cudaErrorStreamCaptureWrongThread,
                    "attempt to terminate a thread-local capture sequence from another thread"),
    MEMLEDGER_ERROR(cudaErrorIllegalState,
                    "the operation cannot be performed in the present state"),
    MEMLEDGER_ERROR(cudaErrorGraphExecUpdateFailure,
                    "the graph update was not performed because it included changes which violated "
                    "constraints specific to instantiated graph update"),
    MEMLEDGER_ERROR(cudaErrorUnknown, "unknown error"),
};
#undef MEMLEDGER_ERROR

const ErrorText* find_error(cudaError_t error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

// A bus number for each device, as on a board of eight.
int pci_bus_of_machine(int number) { return 0x17 + 0x10 * number; }
int pci_bus(int device) { return pci_bus_of_machine(Machine::get().machine_number(device)); }

template <int kValue>
int fixed(const Profile&, int) {
  return kValue;
}

template <auto kMember>
int member(const Profile& profile, int) {
  return profile.*kMember;
}

bool is_hopper(const Profile& profile) { return profile.major >= 9; }

struct Attribute {
  int attribute;
  int (*value)(const Profile& profile, int device);
};

// What is not here is 0: what the devices lack (time limits, being integrated, multicast, access to
// pageable memory …), and what is newer than this table.
constexpr Attribute kAttributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, fixed<kMaxThreadsPerBlock>},
    {cudaDevAttrMaxBlockDimX, fixed<1024>},
    {cudaDevAttrMaxBlockDimY, fixed<1024>},
    {cudaDevAttrMaxBlockDimZ, fixed<64>},
    {cudaDevAttrMaxGridDimX, fixed<std::numeric_limits<int>::max()>},
    {cudaDevAttrMaxGridDimY, fixed<65535>},
    {cudaDevAttrMaxGridDimZ, fixed<65535>},
    {cudaDevAttrMaxSharedMemoryPerBlock, fixed<kSharedMemoryPerBlock>},
    {cudaDevAttrTotalConstantMemory, fixed<64 << 10>},
    {cudaDevAttrWarpSize, fixed<kWarpSize>},
    {cudaDevAttrMaxPitch, fixed<std::numeric_limits<int>::max()>},
    {cudaDevAttrMaxRegistersPerBlock, fixed<kRegistersPerBlock>},
    {cudaDevAttrClockRate, member<&Profile::clock_khz>},
    {cudaDevAttrTextureAlignment, fixed<512>},
    {cudaDevAttrGpuOverlap, fixed<1>},
    {cudaDevAttrMultiProcessorCount, member<&Profile::multiprocessors>},
    {cudaDevAttrCanMapHostMemory, fixed<1>},
    {cudaDevAttrMaxTexture1DWidth, fixed<kTexture1D>},
    {cudaDevAttrMaxTexture2DWidth, fixed<kTexture1D>},
    {cudaDevAttrMaxTexture2DHeight, fixed<kTexture2DHeight>},
    {cudaDevAttrMaxTexture3DWidth, fixed<kTexture3D>},
    {cudaDevAttrMaxTexture3DHeight, fixed<kTexture3D>},
    {cudaDevAttrMaxTexture3DDepth, fixed<kTexture3D>},
    {cudaDevAttrMaxTexture2DLayeredWidth, fixed<kLayered>},
    {cudaDevAttrMaxTexture2DLayeredHeight, fixed<kLayered>},
    {cudaDevAttrMaxTexture1DLayeredWidth, fixed<kLayered>},
    {cudaDevAttrMaxTexture2DLayeredLayers, fixed<kLayers>},
    {cudaDevAttrMaxTexture1DLayeredLayers, fixed<kLayers>},
    {44, fixed<1>},  // gathers from two-dimensional textures, by the driver's number
    {cudaDevAttrMaxTexture2DGatherWidth, fixed<kLayered>},
    {cudaDevAttrMaxTexture2DGatherHeight, fixed<kLayered>},
    {cudaDevAttrMaxTexture3DWidthAlt, fixed<kTexture3D / 2>},
    {cudaDevAttrMaxTexture3DHeightAlt, fixed<kTexture3D / 2>},
    {cudaDevAttrMaxTexture3DDepthAlt, fixed<2 * kTexture3D>},
    {cudaDevAttrMaxTextureCubemapWidth, fixed<kLayered>},
    {cudaDevAttrMaxTextureCubemapLayeredWidth, fixed<kLayered>},
    {cudaDevAttrMaxTextureCubemapLayeredLayers, fixed<kCubemapLayers>},
    {cudaDevAttrMaxSurface1DWidth, fixed<kLayered>},
    {cudaDevAttrMaxSurface2DWidth, fixed<kTexture1D>},
    {cudaDevAttrMaxSurface2DHeight, fixed<kTexture2DHeight>},
    {cudaDevAttrMaxSurface3DWidth, fixed<kTexture3D>},
    {cudaDevAttrMaxSurface3DHeight, fixed<kTexture3D>},
    {cudaDevAttrMaxSurface3DDepth, fixed<kTexture3D>},
    {cudaDevAttrMaxSurface1DLayeredWidth, fixed<kLayered>},
    {cudaDevAttrMaxSurface1DLayeredLayers, fixed<kLayers>},
    {cudaDevAttrMaxSurface2DLayeredWidth, fixed<kLayered>},
    {cudaDevAttrMaxSurface2DLayeredHeight, fixed<kLayered>},
    {cudaDevAttrMaxSurface2DLayeredLayers, fixed<kLayers>},
    {cudaDevAttrMaxSurfaceCubemapWidth, fixed<kLayered>},
    {cudaDevAttrMaxSurfaceCubemapLayeredWidth, fixed<kLayered>},
    {cudaDevAttrMaxSurfaceCubemapLayeredLayers, fixed<kCubemapLayers>},
    {cudaDevAttrMaxTexture1DLinearWidth, fixed<1 << 28>},
    {cudaDevAttrMaxTexture2DLinearWidth, fixed<kTexture1D>},
    {cudaDevAttrMaxTexture2DLinearHeight, fixed<65000>},
    {cudaDevAttrMaxTexture2DLinearPitch, fixed<2097120>},
    {cudaDevAttrMaxTexture2DMipmappedWidth, fixed<kLayered>},
    {cudaDevAttrMaxTexture2DMipmappedHeight, fixed<kLayered>},
    {cudaDevAttrMaxTexture1DMipmappedWidth, fixed<kLayered>},
    {cudaDevAttrSurfaceAlignment, fixed<512>},
    {cudaDevAttrConcurrentKernels, fixed<1>},
    {cudaDevAttrEccEnabled, member<&Profile::error_correction>},
    {cudaDevAttrPciBusId, [](const Profile&, int device) { return pci_bus(device); }},
    {cudaDevAttrMemoryClockRate, member<&Profile::memory_clock_khz>},
    {cudaDevAttrGlobalMemoryBusWidth, member<&Profile::memory_bus_bits>},
    {cudaDevAttrL2CacheSize, member<&Profile::l2_cache_bytes>},
    {cudaDevAttrMaxThreadsPerMultiProcessor, member<&Profile::max_threads_per_multiprocessor>},
    {cudaDevAttrAsyncEngineCount, member<&Profile::async_engines>},
    {cudaDevAttrUnifiedAddressing, fixed<1>},
    {cudaDevAttrTexturePitchAlignment, fixed<32>},
    {cudaDevAttrComputeCapabilityMajor, member<&Profile::major>},
    {cudaDevAttrComputeCapabilityMinor, member<&Profile::minor>},
    {cudaDevAttrStreamPrioritiesSupported, fixed<1>},
    {cudaDevAttrGlobalL1CacheSupported, fixed<1>},
    {cudaDevAttrLocalL1CacheSupported, fixed<1>},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor,
     member<&Profile::shared_memory_per_multiprocessor>},
    {cudaDevAttrMaxRegistersPerMultiprocessor, fixed<kRegistersPerMultiprocessor>},
    {cudaDevAttrManagedMemory, fixed<1>},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, member<&Profile::single_to_double_ratio>},
    {cudaDevAttrConcurrentManagedAccess, fixed<1>},
    {cudaDevAttrComputePreemptionSupported, fixed<1>},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, fixed<1>},
    {cudaDevAttrCooperativeLaunch, fixed<1>},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, member<&Profile::shared_memory_per_block_optin>},
    {cudaDevAttrCanFlushRemoteWrites, fixed<0>},
    {cudaDevAttrHostRegisterSupported, fixed<1>},
    {cudaDevAttrMaxBlocksPerMultiprocessor, member<&Profile::max_blocks_per_multiprocessor>},
    {cudaDevAttrMaxPersistingL2CacheSize, member<&Profile::persisting_l2_cache_bytes>},
    {cudaDevAttrMaxAccessPolicyWindowSize,
     [](const Profile& profile, int) { return profile.major >= 8 ? 128 << 20 : 0; }},
    {cudaDevAttrReservedSharedMemoryPerBlock, member<&Profile::reserved_shared_memory_per_block>},
    {cudaDevAttrSparseCudaArraySupported, fixed<1>},
    {cudaDevAttrHostRegisterReadOnlySupported, fixed<1>},
    {cudaDevAttrTimelineSemaphoreInteropSupported, fixed<1>},
    {cudaDevAttrMemoryPoolsSupported, fixed<1>},
    {cudaDevAttrMemoryPoolSupportedHandleTypes, fixed<0>},  // nothing is shared between processes
    {cudaDevAttrClusterLaunch,
     [](const Profile& profile, int) { return is_hopper(profile) ? 1 : 0; }},
    {cudaDevAttrDeferredMappingCudaArraySupported, fixed<1>},
    {cudaDevAttrMemSyncDomainCount,
     [](const Profile& profile, int) { return is_hopper(profile) ? 4 : 1; }},
    {cudaDevAttrNumaId, fixed<-1>},
    {139, member<&Profile::pci_device_id>},  // cudaDevAttrGpuPciDeviceId, from CUDA 13 on
    {cudaDevAttrHostNumaId, fixed<0>},
    {96, fixed<1>},  // cooperative launches on several devices
    // Tensor maps, and pointers to functions that are the same everywhere.
    {127, [](const Profile& profile, int) { return is_hopper(profile) ? 1 : 0; }},
    {129, fixed<1>},
    // The driver's number of virtual memory management, which the runtime does not name. It is
    // supported; sharing its handles where devices are shared, as file descriptors.
    {102, fixed<1>},
    {103, [](const Profile&, int) { return Machine::get().is_shared() ? 1 : 0; }},
};

// The driver of CUDA 13.0 knows 147.
constexpr int kAttributesEnd = std::max<int>(cudaDevAttrMax, 148);

std::optional<ContextLimit> context_limit_of(int limit) {
  switch (limit) {
    case cudaLimitStackSize:
      return ContextLimit::kStack;
    case cudaLimitMallocHeapSize:
      return ContextLimit::kHeap;
    case cudaLimitPrintfFifoSize:
      return ContextLimit::kPrintf;
    default:
      return std::nullopt;
  }
}

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int runtime_result(int error) { return result(static_cast<cudaError_t>(error)); }

KeepLastError::KeepLastError() : kept_(last_error) {}
KeepLastError::~KeepLastError() { last_error = kept_; }

namespace {
// Whether the exit handlers that were registered before the first context are still to come.
std::atomic<bool> is_unloading{false};

void note_first_context() {
  static const int at_exit = std::atexit([] { is_unloading = true; });
  (void)at_exit;
}
}  // namespace

cudaError_t ready() {
  Machine& machine = Machine::get();
  if (!machine.is_device(current_device())) return cudaErrorNoDevice;
  if (!machine.make_context(current_device())) return cudaErrorMemoryAllocation;
  note_first_context();
  return cudaSuccess;
}

cudaError_t answerable() { return is_unloading ? cudaErrorCudartUnloading : cudaSuccess; }

void pci_bus_id(char* text, int length, int machine_number) {
  std::snprintf(text, length, "0000:%02X:00.0",
                static_cast<unsigned>(pci_bus_of_machine(machine_number)) & 0xff);
}

int machine_number_at_pci_bus(const char* text) {
  // The domain may be left out or be longer.
  const char* wanted = std::strchr(text, ':');
  const char* tail = wanted && std::strchr(wanted + 1, ':') ? wanted + 1 : text;
  for (int number = 0; number < Machine::get().machine_count(); ++number) {
    char id[16];
    pci_bus_id(id, sizeof id, number);
    if (strcasecmp(tail, id + 5) == 0) return number;
  }
  return -1;
}

void device_uuid(char (&uuid)[16], int device) {
  std::memcpy(uuid, uuid_of(Machine::get().machine_number(device)).data(), sizeof uuid);
}

cudaError_t device_attribute(int* value, int attribute, int device) {
  Machine& machine = Machine::get();
  if (!value) return cudaErrorInvalidValue;
  if (!machine.is_device(device)) return cudaErrorInvalidDevice;
  *value = 0;
  if (attribute <= 0 || attribute >= kAttributesEnd) return cudaErrorInvalidValue;
  for (const Attribute& known : kAttributes) {
    if (known.attribute == attribute) *value = known.value(machine.profile(device), device);
  }
  return cudaSuccess;
}

}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

MEMLEDGER_ANSWER cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

MEMLEDGER_ANSWER cudaError_t cudaPeekAtLastError() { return last_error; }

MEMLEDGER_ANSWER const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* known = find_error(error);
  return known ? known->name : "unrecognized error code";
}

MEMLEDGER_ANSWER const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* known = find_error(error);
  return known ? known->text : "unrecognized error code";
}

MEMLEDGER_ANSWER cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return result(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

MEMLEDGER_ANSWER cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return result(cudaErrorInvalidValue);
  *count = Machine::get().device_count();
  return *count ? cudaSuccess : result(cudaErrorNoDevice);
}

MEMLEDGER_ANSWER cudaError_t cudaGetDevice(int* device) {
  if (!device) return result(cudaErrorInvalidValue);
  if (!Machine::get().device_count()) return result(cudaErrorNoDevice);
  *device = current_device();
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaSetDevice(int device) {
  Machine& machine = Machine::get();
  if (!machine.is_device(device))
    return result(machine.device_count() ? cudaErrorInvalidDevice : cudaErrorNoDevice);
  set_current_device(device);
  return result(ready());
}

MEMLEDGER_ANSWER cudaError_t cudaInitDevice(int device, unsigned flags, unsigned) {
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  if (!Machine::get().make_context(device)) return result(cudaErrorMemoryAllocation);
  device_flags[device] = flags;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaSetValidDevices(int*, int) { return cudaSuccess; }

MEMLEDGER_ANSWER cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) {
  if (!device) return result(cudaErrorInvalidValue);
  *device = 0;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaSetDeviceFlags(unsigned flags) {
  if (!Machine::get().device_count()) return result(cudaErrorNoDevice);
  device_flags[current_device()] = flags;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  if (!flags) return result(cudaErrorInvalidValue);
  if (!Machine::get().device_count()) return result(cudaErrorNoDevice);
  *flags = device_flags[current_device()];
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = ready()) return result(error);
  return result(stream_result(streams().synchronize_device(current_device())));
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceReset() {
  if (!Machine::get().device_count()) return result(cudaErrorNoDevice);
  end_context(current_device());
  Machine::get().reset(current_device());
  last_error = cudaSuccess;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                    int device) {
  return result(device_attribute(value, attribute, device));
}

MEMLEDGER_ANSWER cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Machine& machine = Machine::get();
  if (!properties) return result(cudaErrorInvalidValue);
  if (!machine.is_device(device)) return result(cudaErrorInvalidDevice);
  const Profile& profile = machine.profile(device);
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    device_attribute(&value, which, device);
    return value;
  };

  cudaDeviceProp p;
  std::memset(&p, 0, sizeof p);
  std::snprintf(p.name, sizeof p.name, "%s", profile.device_name.c_str());
  char uuid[16];
  device_uuid(uuid, device);
  std::memcpy(&p.uuid, uuid, sizeof uuid);
  p.totalGlobalMem = machine.capacity(device);
  p.sharedMemPerBlock = kSharedMemoryPerBlock;
  p.regsPerBlock = kRegistersPerBlock;
  p.warpSize = kWarpSize;
  p.memPitch = attribute(cudaDevAttrMaxPitch);
  p.maxThreadsPerBlock = kMaxThreadsPerBlock;
  p.maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX);
  p.maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY);
  p.maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ);
  p.maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX);
  p.maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY);
  p.maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ);
  p.totalConstMem = attribute(cudaDevAttrTotalConstantMemory);
  p.major = profile.major;
  p.minor = profile.minor;
  p.textureAlignment = attribute(cudaDevAttrTextureAlignment);
  p.texturePitchAlignment = attribute(cudaDevAttrTexturePitchAlignment);
  p.multiProcessorCount = profile.multiprocessors;
  p.canMapHostMemory = 1;
  p.maxTexture1D = kTexture1D;
  p.maxTexture1DMipmap = kLayered;
  p.maxTexture2D[0] = kTexture1D;
  p.maxTexture2D[1] = kTexture2DHeight;
  p.maxTexture2DMipmap[0] = p.maxTexture2DMipmap[1] = kLayered;
  p.maxTexture3D[0] = p.maxTexture3D[1] = p.maxTexture3D[2] = kTexture3D;
  p.maxTextureCubemap = kLayered;
  p.maxTexture1DLayered[0] = kLayered;
  p.maxTexture1DLayered[1] = kLayers;
  p.maxTexture2DLayered[0] = p.maxTexture2DLayered[1] = kLayered;
  p.maxTexture2DLayered[2] = kLayers;
  p.surfaceAlignment = attribute(cudaDevAttrSurfaceAlignment);
  p.concurrentKernels = 1;
  p.ECCEnabled = profile.error_correction;
  p.pciBusID = pci_bus(device);
  p.asyncEngineCount = profile.async_engines;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = profile.memory_bus_bits;
  p.l2CacheSize = profile.l2_cache_bytes;
  p.persistingL2CacheMaxSize = profile.persisting_l2_cache_bytes;
  p.maxThreadsPerMultiProcessor = profile.max_threads_per_multiprocessor;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = 1;
  p.localL1CacheSupported = 1;
  p.sharedMemPerMultiprocessor = profile.shared_memory_per_multiprocessor;
  p.regsPerMultiprocessor = kRegistersPerMultiprocessor;
  p.managedMemory = 1;
  p.multiGpuBoardGroupID = device;
  p.concurrentManagedAccess = 1;
  p.computePreemptionSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.sharedMemPerBlockOptin = profile.shared_memory_per_block_optin;
  p.maxBlocksPerMultiProcessor = profile.max_blocks_per_multiprocessor;
  p.accessPolicyMaxWindowSize = attribute(cudaDevAttrMaxAccessPolicyWindowSize);
  p.reservedSharedMemPerBlock = profile.reserved_shared_memory_per_block;
  p.hostRegisterSupported = 1;
  p.sparseCudaArraySupported = 1;
  p.hostRegisterReadOnlySupported = 1;
  p.timelineSemaphoreInteropSupported = 1;
  p.memoryPoolsSupported = 1;
  p.deferredMappingCudaArraySupported = 1;
  p.clusterLaunch = profile.major >= 9;
#if CUDART_VERSION < 13000
  p.clockRate = profile.clock_khz;
  p.memoryClockRate = profile.memory_clock_khz;
  p.deviceOverlap = 1;
  p.singleToDoublePrecisionPerfRatio = profile.single_to_double_ratio;
#else
  p.deviceNumaId = -1;
  p.gpuPciDeviceID = static_cast<unsigned>(profile.pci_device_id);
#endif
  *properties = p;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!text || length < 13) return result(cudaErrorInvalidValue);
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  if (const cudaError_t error = answerable()) return result(error);
  pci_bus_id(text, length, Machine::get().machine_number(device));
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  if (!device || !text) return result(cudaErrorInvalidValue);
  const int number = machine_number_at_pci_bus(text);
  const int found = number < 0 ? -1 : Machine::get().device_of_machine(number);
  if (!Machine::get().is_device(found)) return result(cudaErrorInvalidDevice);
  *device = found;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  if (!value) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  const std::optional<ContextLimit> known = context_limit_of(limit);
  *value = known ? context_limit(current_device(), *known) : 0;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  if (const cudaError_t error = ready()) return result(error);
  const std::optional<ContextLimit> known = context_limit_of(limit);
  if (!known) return cudaSuccess;
  if (!set_context_limit(current_device(), *known, value)) return result(cudaErrorMemoryAllocation);
  // Those with more local memory than a smaller stack have to ask for it again.
  forget_loaded_kernels();
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  if (!config) return result(cudaErrorInvalidValue);
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  Machine& machine = Machine::get();
  if (!can) return result(cudaErrorInvalidValue);
  if (!machine.is_device(device) || !machine.is_device(peer)) return result(cudaErrorInvalidDevice);
  *can = device != peer && have_peers(machine.profile(device), machine.profile(peer));
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (flags) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  if (!Machine::get().is_device(peer) || peer == current_device())
    return result(cudaErrorInvalidDevice);
  if (!have_peers(Machine::get().profile(current_device()), Machine::get().profile(peer)))
    return result(cudaErrorPeerAccessUnsupported);
  return result(Machine::get().enable_peer(current_device(), peer)
                    ? cudaSuccess
                    : cudaErrorPeerAccessAlreadyEnabled);
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  if (const cudaError_t error = ready()) return result(error);
  if (!Machine::get().is_device(peer)) return result(cudaErrorInvalidDevice);
  return result(Machine::get().disable_peer(current_device(), peer)
                    ? cudaSuccess
                    : cudaErrorPeerAccessNotEnabled);
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute,
                                                       int device, int peer) {
  Machine& machine = Machine::get();
  if (!value) return result(cudaErrorInvalidValue);
  if (!machine.is_device(device) || !machine.is_device(peer) || device == peer)
    return result(cudaErrorInvalidDevice);
  *value = attribute != cudaDevP2PAttrPerformanceRank &&
           have_peers(machine.profile(device), machine.profile(peer));
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }

MEMLEDGER_DOES_NOTHING(cudaProfilerStart)
MEMLEDGER_DOES_NOTHING(cudaProfilerStop)
