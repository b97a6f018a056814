// The runtime: memory, copies, pools.
#include <algorithm>
#include <cstring>

#include "virtual_gpu/answers/cudart.h"
#include "virtual_gpu/graph_memory.h"
#include "virtual_gpu/reads.h"
#include "virtual_gpu/unwatched_reads.h"

namespace memledger::virtual_gpu {
namespace {

bool is_on_device(const std::optional<Region>& region) {
  return region && region->kind == MemoryKind::kDevice;
}

}  // namespace

cudaError_t transfer(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = ready()) return error;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  if (!bytes) return cudaSuccess;
  if (!destination || !source) return cudaErrorInvalidValue;
  Machine& machine = Machine::get();
  const std::optional<Region> to = machine.find(destination);
  const std::optional<Region> from = machine.find(source);
  const bool to_device = is_on_device(to);
  const bool from_device = is_on_device(from);

  // Pinned and managed memory is the device's, too, and the host's.
  const bool wants_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool wants_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault) {
    if (wants_to_device ? !to : to_device) return cudaErrorInvalidValue;
    if (wants_from_device ? !from : from_device) return cudaErrorInvalidValue;
  }
  if (to_device && !machine.is_device_range(destination, bytes)) return cudaErrorInvalidValue;
  if (from_device && !machine.is_device_range(source, bytes)) return cudaErrorInvalidValue;

  const uintptr_t to_address = reinterpret_cast<uintptr_t>(destination);
  const uintptr_t from_address = reinterpret_cast<uintptr_t>(source);
  if (to_device && from_device) {
    machine.copy_on_device(to_address, from_address, bytes);
  } else if (to_device) {
    machine.copy_to_device(to_address, source, bytes);
  } else if (from_device) {
    machine.copy_to_host(destination, from_address, bytes);
  } else {
    std::memmove(destination, source, bytes);
  }
  return cudaSuccess;
}

cudaError_t fill(void* pointer, unsigned value, size_t width_bytes, size_t count) {
  if (const cudaError_t error = ready()) return error;
  const size_t bytes = width_bytes * count;
  if (!bytes) return cudaSuccess;
  Machine& machine = Machine::get();
  const std::optional<Region> region = machine.find(pointer);
  if (!region) return cudaErrorInvalidValue;
  const bool one_value = width_bytes == 1 || value == 0;
  if (region->kind == MemoryKind::kDevice) {
    if (!machine.is_device_range(pointer, bytes)) return cudaErrorInvalidValue;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (one_value) {
      machine.fill(address, static_cast<unsigned char>(value), bytes);
    } else {
      machine.forget(address, bytes);
    }
    return cudaSuccess;
  }
  auto* at = static_cast<unsigned char*>(pointer);
  for (size_t i = 0; i < count; ++i, at += width_bytes) std::memcpy(at, &value, width_bytes);
  return cudaSuccess;
}

namespace {

cudaError_t transfer_2d(void* destination, size_t destination_pitch, const void* source,
                        size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  if (width > destination_pitch || width > source_pitch) return cudaErrorInvalidPitchValue;
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        transfer(static_cast<char*>(destination) + row * destination_pitch,
                 static_cast<const char*>(source) + row * source_pitch, width, kind);
    if (error) return error;
  }
  return cudaSuccess;
}

cudaError_t transfer_3d(const cudaPitchedPtr& destination, const cudaPos& to,
                        const cudaPitchedPtr& source, const cudaPos& from, const cudaExtent& extent,
                        cudaMemcpyKind kind) {
  for (size_t slice = 0; slice < extent.depth; ++slice) {
    char* const d = static_cast<char*>(destination.ptr) +
                    ((to.z + slice) * destination.ysize + to.y) * destination.pitch + to.x;
    const char* const s = static_cast<const char*>(source.ptr) +
                          ((from.z + slice) * source.ysize + from.y) * source.pitch + from.x;
    const cudaError_t error =
        transfer_2d(d, destination.pitch, s, source.pitch, extent.width, extent.height, kind);
    if (error) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t transfer_3d(const cudaMemcpy3DParms& copy) {
  return transfer_3d(copy.dstPtr, copy.dstPos, copy.srcPtr, copy.srcPos, copy.extent, copy.kind);
}

namespace {

cudaError_t check_stream(cudaStream_t stream) {
  return is_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

// The host waits where CUDA makes it wait: for what comes from a device into pageable memory, and
// for all that is not asynchronous, except between devices.
void wait_after_copy(const void* destination, const void* source, cudaStream_t stream,
                     bool asynchronous) {
  if (!Machine::get().specification().late_events) return;
  Streams::CaptureInfo capture;
  streams().capture_info(stream, current_device(), &capture);
  if (capture.status != CaptureStatus::kNone) return;  // a node for later
  const std::optional<Region> to = Machine::get().find(destination);
  const std::optional<Region> from = Machine::get().find(source);
  const bool into_pageable = !to && is_on_device(from);
  const bool between_devices = is_on_device(to) && is_on_device(from);
  if (into_pageable || (!asynchronous && !between_devices))
    streams().wait_for_stream(stream, current_device());
}

// A copy that is captured has not been done.
void observe_read(void* destination, const void* source, size_t bytes, cudaStream_t stream) {
  if (!reads_are_observed() || !bytes) return;
  if (!is_on_device(Machine::get().find(source)) || is_on_device(Machine::get().find(destination)))
    return;
  Streams::CaptureInfo capture;
  streams().capture_info(stream, current_device(), &capture);
  if (capture.status == CaptureStatus::kNone) tell_of_read(destination, source, bytes);
}

// A copy behind a host function that has not run comes after it. Where CUDA makes the host wait,
// it waits; memory that is not pinned, which the program may free at once, is read at once.
template <typename F>
cudaError_t copy_behind_host_functions(const void* destination, const void* source,
                                       cudaStream_t stream, bool asynchronous, const F& work) {
  const std::optional<Region> to = Machine::get().find(destination);
  const std::optional<Region> from = Machine::get().find(source);
  const bool host_waits = !to || (!asynchronous && !(is_on_device(to) && is_on_device(from)));
  if (!host_waits)
    return on_stream(stream, NodeKind::kCopy, work,
                     from ? Streams::Order::kInStream : Streams::Order::kAtOnce);
  const auto done = std::make_shared<cudaError_t>(cudaSuccess);
  if (const cudaError_t error = on_stream(stream, NodeKind::kCopy, [=] { return *done = work(); }))
    return error;
  Streams::CaptureInfo capture;
  streams().capture_info(stream, current_device(), &capture);
  if (capture.status != CaptureStatus::kNone) return cudaSuccess;
  streams().wait_for_stream(stream, current_device());
  return *done;
}

template <typename F>
cudaError_t copy(const void* destination, const void* source, cudaStream_t stream,
                 bool asynchronous, const F& work) {
  if (streams().has_queued())
    return copy_behind_host_functions(destination, source, stream, asynchronous, work);
  const cudaError_t error = on_stream(stream, NodeKind::kCopy, work);
  if (error == cudaSuccess) wait_after_copy(destination, source, stream, asynchronous);
  return error;
}

// An int, as a value that is no cudaMemcpyKind must not become one.
cudaError_t check_direction(int kind) {
  const bool known = kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
  return known ? cudaSuccess : cudaErrorInvalidMemcpyDirection;
}

}  // namespace

cudaError_t copy_on_stream(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                           cudaStream_t stream, bool asynchronous) {
  if (const cudaError_t error = ready()) return error;
  if (const cudaError_t error = check_direction(kind)) return error;
  const cudaError_t error = copy(destination, source, stream, asynchronous,
                                 [=] { return transfer(destination, source, bytes, kind); });
  if (error == cudaSuccess) observe_read(destination, source, bytes, stream);
  return error;
}

cudaError_t copy_3d_on_stream(const cudaMemcpy3DParms& parameters, cudaStream_t stream,
                              bool asynchronous) {
  if (const cudaError_t error = ready()) return error;
  if (parameters.srcArray || parameters.dstArray) return cudaErrorInvalidValue;
  if (const cudaError_t error = check_direction(parameters.kind)) return error;
  return copy(parameters.dstPtr.ptr, parameters.srcPtr.ptr, stream, asynchronous,
              [parameters] { return transfer_3d(parameters); });
}

cudaError_t fill_on_stream(void* pointer, size_t pitch, unsigned value, size_t width_bytes,
                           size_t count, size_t height, cudaStream_t stream, bool asynchronous) {
  if (const cudaError_t error = ready()) return error;
  const cudaError_t error = on_stream(stream, NodeKind::kFill, [=] {
    for (size_t row = 0; row < height; ++row) {
      const cudaError_t failed =
          fill(static_cast<char*>(pointer) + row * pitch, value, width_bytes, count);
      if (failed) return failed;
    }
    return cudaSuccess;
  });
  // The host waits for a fill of its own memory alone.
  if (error != cudaSuccess || asynchronous || !Machine::get().specification().late_events)
    return error;
  const std::optional<Region> region = Machine::get().find(pointer);
  if (region && !is_on_device(region)) streams().wait_for_stream(stream, current_device());
  return error;
}

namespace {

cudaError_t copy_2d_on_stream(void* destination, size_t destination_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream, bool asynchronous) {
  if (const cudaError_t error = ready()) return error;
  if (const cudaError_t error = check_direction(kind)) return error;
  return copy(destination, source, stream, asynchronous, [=] {
    return transfer_2d(destination, destination_pitch, source, source_pitch, width, height, kind);
  });
}

cudaError_t allocate(void** pointer, size_t bytes) {
  if (!pointer) return cudaErrorInvalidValue;
  if (const cudaError_t error = ready()) return error;
  if (const cudaError_t error = check_capture()) return error;
  *pointer = nullptr;
  if (!bytes) return cudaSuccess;
  *pointer = Machine::get().allocate(current_device(), bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t allocate_host(void** pointer, size_t bytes) {
  if (!pointer) return cudaErrorInvalidValue;
  if (const cudaError_t error = ready()) return error;
  if (const cudaError_t error = check_capture()) return error;
  *pointer = nullptr;
  if (!bytes) return cudaSuccess;
  *pointer = Machine::get().allocate_host(current_device(), bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t free_memory(void* pointer) {
  switch (free_of_graph(pointer)) {
    case FreedFromGraph::kFreed:
      return cudaSuccess;
    case FreedFromGraph::kFreedAlready:
      return cudaErrorInvalidValue;
    case FreedFromGraph::kNoneOfGraphs:
      break;
  }
  return Machine::get().free(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

constexpr size_t kPitch = 512;

MemoryPool* pool_of(cudaMemPool_t handle) { return reinterpret_cast<MemoryPool*>(handle); }
cudaMemPool_t handle_of(MemoryPool* pool) { return reinterpret_cast<cudaMemPool_t>(pool); }

// The pool that cudaMallocAsync takes from, where the program set one.
std::atomic<MemoryPool*> chosen_pool[8] = {};

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

MEMLEDGER_ANSWER cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return result(allocate(pointer, bytes));
}

MEMLEDGER_ANSWER cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
  if (!pointer || !bytes) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  *pointer = Machine::get().allocate_managed(current_device(), bytes);
  return result(*pointer ? cudaSuccess : cudaErrorMemoryAllocation);
}

MEMLEDGER_ANSWER cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width,
                                             size_t height) {
  if (!pitch) return result(cudaErrorInvalidValue);
  *pitch = round_up(width, kPitch);
  return result(allocate(pointer, *pitch * height));
}

MEMLEDGER_ANSWER cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  if (!pitched) return result(cudaErrorInvalidValue);
  *pitched = {nullptr, round_up(extent.width, kPitch), extent.width, extent.height};
  return result(allocate(&pitched->ptr, pitched->pitch * extent.height * extent.depth));
}

MEMLEDGER_ANSWER cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t error = ready()) return result(error);
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = check_capture()) return result(error);
  // cudaFree waits for the device.
  if (const std::optional<Region> region = Machine::get().find(pointer))
    streams().wait_for_device(region->device);
  return result(free_memory(pointer));
}

MEMLEDGER_ANSWER cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return result(allocate_host(pointer, bytes));
}
MEMLEDGER_ANSWER cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return result(allocate_host(pointer, bytes));
}

MEMLEDGER_ANSWER cudaError_t cudaFreeHost(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = check_capture()) return result(error);
  if (const std::optional<Region> region = Machine::get().find(pointer))
    streams().wait_for_device(region->device);
  return result(Machine::get().free_host(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  if (!pointer || !bytes) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  return result(Machine::get().register_host(current_device(), pointer, bytes)
                    ? cudaSuccess
                    : cudaErrorHostMemoryAlreadyRegistered);
}

MEMLEDGER_ANSWER cudaError_t cudaHostUnregister(void* pointer) {
  return result(Machine::get().unregister_host(pointer) ? cudaSuccess
                                                        : cudaErrorHostMemoryNotRegistered);
}

cudaError_t memledger::virtual_gpu::device_address_of(void** address, void* pointer,
                                                      const void* caller) {
  if (!address) return result(cudaErrorInvalidValue);
  const std::optional<Region> region = Machine::get().find(pointer);
  if (!region || region->kind == MemoryKind::kDevice) return result(cudaErrorInvalidValue);
  *address = pointer;
  note_host_address_asked(caller);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer,
                                                      unsigned) {
  return device_address_of(device_pointer, pointer, __builtin_return_address(0));
}

MEMLEDGER_ANSWER cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  const std::optional<Region> region = Machine::get().find(pointer);
  if (!flags || !region || region->kind == MemoryKind::kDevice)
    return result(cudaErrorInvalidValue);
  *flags = cudaHostAllocPortable | cudaHostAllocMapped;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (!free_bytes || !total_bytes) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = answerable()) return result(error);
  if (const cudaError_t error = ready()) return result(error);
  const MemoryInfo info = Machine::get().memory_info(current_device());
  *free_bytes = info.free_bytes;
  *total_bytes = info.total_bytes;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                      const void* pointer) {
  if (!attributes) return result(cudaErrorInvalidValue);
  if (!Machine::get().device_count()) return result(cudaErrorNoDevice);
  std::memset(attributes, 0, sizeof *attributes);
  const std::optional<Region> region = Machine::get().find(pointer);
  if (!region) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  attributes->device = region->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  switch (region->kind) {
    case MemoryKind::kDevice:
      attributes->type = cudaMemoryTypeDevice;
      break;
    case MemoryKind::kManaged:
      attributes->type = cudaMemoryTypeManaged;
      attributes->hostPointer = const_cast<void*>(pointer);
      break;
    case MemoryKind::kPinned:
    case MemoryKind::kRegistered:
      attributes->type = cudaMemoryTypeHost;
      attributes->hostPointer = const_cast<void*>(pointer);
      break;
  }
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes,
                                        cudaMemcpyKind kind) {
  return result(copy_on_stream(destination, source, bytes, kind, nullptr, false));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes,
                                             cudaMemcpyKind kind, cudaStream_t stream) {
  return result(copy_on_stream(destination, source, bytes, kind, stream, true));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpy2D(void* destination, size_t destination_pitch,
                                          const void* source, size_t source_pitch, size_t width,
                                          size_t height, cudaMemcpyKind kind) {
  return result(copy_2d_on_stream(destination, destination_pitch, source, source_pitch, width,
                                  height, kind, nullptr, false));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch,
                                               const void* source, size_t source_pitch,
                                               size_t width, size_t height, cudaMemcpyKind kind,
                                               cudaStream_t stream) {
  return result(copy_2d_on_stream(destination, destination_pitch, source, source_pitch, width,
                                  height, kind, stream, true));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  return result(p ? copy_3d_on_stream(*p, nullptr, false) : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  return result(p ? copy_3d_on_stream(*p, stream, true) : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpyPeer(void* destination, int destination_device,
                                            const void* source, int source_device, size_t bytes) {
  Machine& machine = Machine::get();
  if (!machine.is_device(destination_device) || !machine.is_device(source_device))
    return result(cudaErrorInvalidDevice);
  return result(copy_on_stream(destination, source, bytes, cudaMemcpyDefault, nullptr, false));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpyPeerAsync(void* destination, int destination_device,
                                                 const void* source, int source_device,
                                                 size_t bytes, cudaStream_t stream) {
  const Machine& machine = Machine::get();
  if (!machine.is_device(destination_device) || !machine.is_device(source_device))
    return result(cudaErrorInvalidDevice);
  return result(copy_on_stream(destination, source, bytes, cudaMemcpyDefault, stream, true));
}

MEMLEDGER_ANSWER cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return result(
      fill_on_stream(pointer, 0, static_cast<unsigned char>(value), 1, bytes, 1, nullptr, false));
}

MEMLEDGER_ANSWER cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes,
                                             cudaStream_t stream) {
  return result(
      fill_on_stream(pointer, 0, static_cast<unsigned char>(value), 1, bytes, 1, stream, true));
}

MEMLEDGER_ANSWER cudaError_t cudaMemset2D(void* pointer, size_t pitch, int value, size_t width,
                                          size_t height) {
  return result(fill_on_stream(pointer, pitch, static_cast<unsigned char>(value), 1, width, height,
                               nullptr, false));
}

MEMLEDGER_ANSWER cudaError_t cudaMemset2DAsync(void* pointer, size_t pitch, int value, size_t width,
                                               size_t height, cudaStream_t stream) {
  return result(fill_on_stream(pointer, pitch, static_cast<unsigned char>(value), 1, width, height,
                               stream, true));
}

#if CUDART_VERSION >= 13000
MEMLEDGER_ANSWER cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned,
                                                  cudaStream_t) {
  return cudaSuccess;
}
MEMLEDGER_ANSWER cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return cudaSuccess;
}
#else
MEMLEDGER_ANSWER cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) {
  return cudaSuccess;
}
MEMLEDGER_ANSWER cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) {
  return cudaSuccess;
}
#endif
MEMLEDGER_ANSWER cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) {
  return cudaSuccess;
}

// Stream-ordered memory.

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (!pool) return result(cudaErrorInvalidValue);
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  *pool = handle_of(Machine::get().default_pool(device));
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  if (!pool) return result(cudaErrorInvalidValue);
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  MemoryPool* const chosen = chosen_pool[device].load();
  *pool = handle_of(chosen ? chosen : Machine::get().default_pool(device));
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  if (!Machine::get().is_device(device)) return result(cudaErrorInvalidDevice);
  int device_of_pool = -1;
  Machine::get().with_pool(pool_of(pool), [&](const MemoryPool& p) { device_of_pool = p.device; });
  if (device_of_pool != device) return result(cudaErrorInvalidValue);
  chosen_pool[device] = pool_of(pool);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool,
                                               const cudaMemPoolProps* properties) {
  if (!pool || !properties) return result(cudaErrorInvalidValue);
  if (properties->location.type != cudaMemLocationTypeDevice ||
      properties->handleTypes != cudaMemHandleTypeNone) {
    MEMLEDGER_SAY_REFUSED(
        "a pool of a virtual GPU lies on a device and cannot be shared with other processes.");
    return result(cudaErrorNotSupported);
  }
  if (!Machine::get().is_device(properties->location.id)) return result(cudaErrorInvalidDevice);
  *pool = handle_of(Machine::get().make_pool(properties->location.id));
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  for (std::atomic<MemoryPool*>& chosen : chosen_pool) {
    MemoryPool* destroyed = pool_of(pool);
    chosen.compare_exchange_strong(destroyed, nullptr);
  }
  return result(Machine::get().destroy_pool(pool_of(pool)) ? cudaSuccess : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes,
                                                     cudaMemPool_t pool, cudaStream_t stream) {
  if (!pointer || !Machine::get().is_pool(pool_of(pool))) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = check_stream(stream)) return result(error);
  if (const cudaError_t error = ready()) return result(error);
  *pointer = nullptr;
  if (!bytes) return cudaSuccess;
  Streams::CaptureInfo capture;
  streams().capture_info(stream, current_device(), &capture);
  if (capture.status != CaptureStatus::kNone)
    return result(capture_allocation(pointer, bytes, pool_of(pool)->device, stream, capture));
  const Streams::Submission submission =
      streams().submit(stream, current_device(), NodeKind::kAllocate, nullptr);
  if (submission.error != StreamError::kNone) return result(stream_result(submission.error));
  *pointer = Machine::get().allocate_from(pool_of(pool), bytes);
  return result(*pointer ? cudaSuccess : cudaErrorMemoryAllocation);
}

MEMLEDGER_ANSWER cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = check_stream(stream)) return result(error);
  if (!Machine::get().device_count()) return result(cudaErrorNoDevice);
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetMemPool(&pool, stream_device(stream));
  return cudaMallocFromPoolAsync(pointer, bytes, pool, stream);
}

MEMLEDGER_ANSWER cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (const cudaError_t error = check_stream(stream)) return result(error);
  if (!pointer) return cudaSuccess;
  Streams::CaptureInfo capture;
  streams().capture_info(stream, current_device(), &capture);
  if (capture.status != CaptureStatus::kNone) return result(capture_free(pointer, stream, capture));
  const Streams::Submission submission =
      streams().submit(stream, current_device(), NodeKind::kFree, nullptr);
  if (submission.error != StreamError::kNone) return result(stream_result(submission.error));
  return result(free_memory(pointer));
}

MEMLEDGER_ANSWER cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes) {
  const bool is_pool = Machine::get().trim(pool_of(pool), keep_bytes);
  return result(is_pool ? cudaSuccess : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                                     void* value) {
  if (!value) return result(cudaErrorInvalidValue);
  cudaError_t error = cudaSuccess;
  const bool is_pool = Machine::get().with_pool(pool_of(pool), [&](MemoryPool& p) {
    const uint64_t number =
        attribute >= cudaMemPoolAttrReleaseThreshold ? *static_cast<uint64_t*>(value) : 0;
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        break;
      case cudaMemPoolAttrReleaseThreshold:
        p.release_threshold = number;
        break;
      // The high-water marks can only be set back.
      case cudaMemPoolAttrReservedMemHigh:
        number ? error = cudaErrorInvalidValue : (p.reserved_high = p.reserved, cudaSuccess);
        break;
      case cudaMemPoolAttrUsedMemHigh:
        number ? error = cudaErrorInvalidValue : (p.used_high = p.used, cudaSuccess);
        break;
      default:
        error = cudaErrorInvalidValue;
        break;
    }
  });
  return result(is_pool ? error : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                                     void* value) {
  if (!value) return result(cudaErrorInvalidValue);
  cudaError_t error = cudaSuccess;
  const bool is_pool = Machine::get().with_pool(pool_of(pool), [&](const MemoryPool& p) {
    auto& number = *static_cast<uint64_t*>(value);
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        *static_cast<int*>(value) = 1;
        break;
      case cudaMemPoolAttrReleaseThreshold:
        number = p.release_threshold;
        break;
      case cudaMemPoolAttrReservedMemCurrent:
        number = p.reserved;
        break;
      case cudaMemPoolAttrReservedMemHigh:
        number = p.reserved_high;
        break;
      case cudaMemPoolAttrUsedMemCurrent:
        number = p.used;
        break;
      case cudaMemPoolAttrUsedMemHigh:
        number = p.used_high;
        break;
      default:
        error = cudaErrorInvalidValue;
        break;
    }
  });
  return result(is_pool ? error : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc*,
                                                  size_t) {
  return result(Machine::get().is_pool(pool_of(pool)) ? cudaSuccess : cudaErrorInvalidValue);
}

MEMLEDGER_ANSWER cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool,
                                                  cudaMemLocation*) {
  if (!flags || !Machine::get().is_pool(pool_of(pool))) return result(cudaErrorInvalidValue);
  *flags = cudaMemAccessFlagsProtReadWrite;
  return cudaSuccess;
}
