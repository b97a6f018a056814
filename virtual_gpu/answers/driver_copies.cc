// The driver: copies and fills, which are the runtime's.
#include <cuda.h>

#include <cstring>

#include "virtual_gpu/answers/cudart.h"

using namespace memledger::virtual_gpu;

namespace {

CUresult driver(cudaError_t error) { return static_cast<CUresult>(error); }

void* pointer_of(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult copy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  return driver(copy_on_stream(destination, source, bytes, kind, nullptr, false));
}

CUresult copy_async(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                    CUstream stream) {
  return driver(copy_on_stream(destination, source, bytes, kind, stream, true));
}

CUresult fill_sync(CUdeviceptr address, size_t pitch, unsigned value, size_t width_bytes,
                   size_t count, size_t height) {
  return driver(fill_on_stream(pointer_of(address), pitch, value, width_bytes, count, height,
                               nullptr, false));
}

CUresult fill_async(CUdeviceptr address, size_t pitch, unsigned value, size_t width_bytes,
                    size_t count, size_t height, CUstream stream) {
  return driver(
      fill_on_stream(pointer_of(address), pitch, value, width_bytes, count, height, stream, true));
}

bool is_array(CUmemorytype type) { return type == CU_MEMORYTYPE_ARRAY; }

const void* source_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? host : pointer_of(device);
}
void* destination_of(CUmemorytype type, void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? host : pointer_of(device);
}

// A size of 0 stands for rows and slices that follow each other without a gap.
cudaPitchedPtr pitched(void* pointer, size_t pitch, size_t height, size_t least_pitch,
                       size_t least_height) {
  return {pointer, pitch ? pitch : least_pitch, least_pitch, height ? height : least_height};
}

CUresult copy_3d(const CUDA_MEMCPY3D& c, CUstream stream, bool asynchronous) {
  if (is_array(c.srcMemoryType) || is_array(c.dstMemoryType)) {
    MEMLEDGER_SAY_REFUSED("a virtual GPU has no CUDA arrays.");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (c.srcLOD || c.dstLOD) return CUDA_ERROR_INVALID_VALUE;
  cudaMemcpy3DParms copy;
  std::memset(&copy, 0, sizeof copy);
  copy.srcPtr = pitched(const_cast<void*>(source_of(c.srcMemoryType, c.srcHost, c.srcDevice)),
                        c.srcPitch, c.srcHeight, c.srcXInBytes + c.WidthInBytes, c.srcY + c.Height);
  copy.dstPtr = pitched(destination_of(c.dstMemoryType, c.dstHost, c.dstDevice), c.dstPitch,
                        c.dstHeight, c.dstXInBytes + c.WidthInBytes, c.dstY + c.Height);
  copy.srcPos = {c.srcXInBytes, c.srcY, c.srcZ};
  copy.dstPos = {c.dstXInBytes, c.dstY, c.dstZ};
  copy.extent = {c.WidthInBytes, c.Height, c.Depth};
  copy.kind = cudaMemcpyDefault;
  return driver(copy_3d_on_stream(copy, stream, asynchronous));
}

CUresult copy_2d(const CUDA_MEMCPY2D& c, CUstream stream, bool asynchronous) {
  CUDA_MEMCPY3D copy;
  std::memset(&copy, 0, sizeof copy);
  copy.srcXInBytes = c.srcXInBytes;
  copy.srcY = c.srcY;
  copy.srcMemoryType = c.srcMemoryType;
  copy.srcHost = c.srcHost;
  copy.srcDevice = c.srcDevice;
  copy.srcPitch = c.srcPitch;
  copy.dstXInBytes = c.dstXInBytes;
  copy.dstY = c.dstY;
  copy.dstMemoryType = c.dstMemoryType;
  copy.dstHost = c.dstHost;
  copy.dstDevice = c.dstDevice;
  copy.dstPitch = c.dstPitch;
  copy.WidthInBytes = c.WidthInBytes;
  copy.Height = c.Height;
  copy.Depth = 1;
  return copy_3d(copy, stream, asynchronous);
}

}  // namespace

MEMLEDGER_ANSWER CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void* source,
                                          size_t bytes) {
  return copy(pointer_of(destination), source, bytes, cudaMemcpyHostToDevice);
}

MEMLEDGER_ANSWER CUresult cuMemcpyDtoH_v2(void* destination, CUdeviceptr source, size_t bytes) {
  return copy(destination, pointer_of(source), bytes, cudaMemcpyDeviceToHost);
}

MEMLEDGER_ANSWER CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source,
                                          size_t bytes) {
  return copy(pointer_of(destination), pointer_of(source), bytes, cudaMemcpyDeviceToDevice);
}

MEMLEDGER_ANSWER CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void* source,
                                               size_t bytes, CUstream stream) {
  return copy_async(pointer_of(destination), source, bytes, cudaMemcpyHostToDevice, stream);
}

MEMLEDGER_ANSWER CUresult cuMemcpyDtoHAsync_v2(void* destination, CUdeviceptr source, size_t bytes,
                                               CUstream stream) {
  return copy_async(destination, pointer_of(source), bytes, cudaMemcpyDeviceToHost, stream);
}

MEMLEDGER_ANSWER CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source,
                                               size_t bytes, CUstream stream) {
  return copy_async(pointer_of(destination), pointer_of(source), bytes, cudaMemcpyDeviceToDevice,
                    stream);
}

MEMLEDGER_ANSWER CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  return copy(pointer_of(destination), pointer_of(source), bytes, cudaMemcpyDefault);
}

MEMLEDGER_ANSWER CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                                        CUstream stream) {
  return copy_async(pointer_of(destination), pointer_of(source), bytes, cudaMemcpyDefault, stream);
}

// Addresses of all devices are apart, so the contexts add nothing.
MEMLEDGER_ANSWER CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext, CUdeviceptr source,
                                       CUcontext, size_t bytes) {
  return copy(pointer_of(destination), pointer_of(source), bytes, cudaMemcpyDefault);
}

MEMLEDGER_ANSWER CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext, CUdeviceptr source,
                                            CUcontext, size_t bytes, CUstream stream) {
  return copy_async(pointer_of(destination), pointer_of(source), bytes, cudaMemcpyDefault, stream);
}

MEMLEDGER_ANSWER CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy ? copy_2d(*copy, nullptr, false) : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return copy ? copy_2d(*copy, nullptr, false) : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy ? copy_2d(*copy, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy ? copy_3d(*copy, nullptr, false) : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy ? copy_3d(*copy, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

MEMLEDGER_ANSWER CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count) {
  return fill_sync(address, 0, value, 1, count, 1);
}

MEMLEDGER_ANSWER CUresult cuMemsetD16_v2(CUdeviceptr address, unsigned short value, size_t count) {
  return fill_sync(address, 0, value, 2, count, 1);
}

MEMLEDGER_ANSWER CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned value, size_t count) {
  return fill_sync(address, 0, value, 4, count, 1);
}

MEMLEDGER_ANSWER CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count,
                                          CUstream stream) {
  return fill_async(address, 0, value, 1, count, 1, stream);
}

MEMLEDGER_ANSWER CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count,
                                           CUstream stream) {
  return fill_async(address, 0, value, 2, count, 1, stream);
}

MEMLEDGER_ANSWER CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count,
                                           CUstream stream) {
  return fill_async(address, 0, value, 4, count, 1, stream);
}

MEMLEDGER_ANSWER CUresult cuMemsetD2D8_v2(CUdeviceptr address, size_t pitch, unsigned char value,
                                          size_t width, size_t height) {
  return fill_sync(address, pitch, value, 1, width, height);
}

MEMLEDGER_ANSWER CUresult cuMemsetD2D16_v2(CUdeviceptr address, size_t pitch, unsigned short value,
                                           size_t width, size_t height) {
  return fill_sync(address, pitch, value, 2, width, height);
}

MEMLEDGER_ANSWER CUresult cuMemsetD2D32_v2(CUdeviceptr address, size_t pitch, unsigned value,
                                           size_t width, size_t height) {
  return fill_sync(address, pitch, value, 4, width, height);
}

MEMLEDGER_ANSWER CUresult cuMemsetD2D8Async(CUdeviceptr address, size_t pitch, unsigned char value,
                                            size_t width, size_t height, CUstream stream) {
  return fill_async(address, pitch, value, 1, width, height, stream);
}

MEMLEDGER_ANSWER CUresult cuMemsetD2D16Async(CUdeviceptr address, size_t pitch,
                                             unsigned short value, size_t width, size_t height,
                                             CUstream stream) {
  return fill_async(address, pitch, value, 2, width, height, stream);
}

MEMLEDGER_ANSWER CUresult cuMemsetD2D32Async(CUdeviceptr address, size_t pitch, unsigned value,
                                             size_t width, size_t height, CUstream stream) {
  return fill_async(address, pitch, value, 4, width, height, stream);
}
