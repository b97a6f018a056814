// What cuDNN asks of libcuda.so.1 before it plans with an engine that it compiles at run time:
// modules and kernels that nobody launches. There is no device: its static CUDA runtime fails at
// once, as without a driver. cuDNN gives up such engines where one of these functions is missing.
#include <cstddef>

#define DRIVER_FUNCTION extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kNoDevice = 100;
constexpr int kNotSupported = 801;
constexpr int kVersion = 13000;

int something = 0;  // stands for every library, kernel and link

int give(void** out) {
  if (out != nullptr) *out = &something;
  return 0;
}

}  // namespace

DRIVER_FUNCTION int cuInit(unsigned) { return kNoDevice; }
DRIVER_FUNCTION int cuDriverGetVersion(int* version) {
  if (version != nullptr) *version = kVersion;
  return 0;
}
DRIVER_FUNCTION int cuDeviceGet() { return kNoDevice; }
DRIVER_FUNCTION int cuDeviceGetCount(int* count) {
  if (count != nullptr) *count = 0;
  return kNoDevice;
}
DRIVER_FUNCTION int cuGetErrorName(int, const char** text) {
  if (text != nullptr) *text = "CUDA_ERROR_NO_DEVICE";
  return 0;
}
DRIVER_FUNCTION int cuGetErrorString(int, const char** text) {
  if (text != nullptr) *text = "no CUDA-capable device is detected";
  return 0;
}

DRIVER_FUNCTION int cuCtxGetCurrent(void** context) { return give(context); }
DRIVER_FUNCTION int cuCtxPushCurrent() { return 0; }
DRIVER_FUNCTION int cuCtxPopCurrent(void** context) { return give(context); }
DRIVER_FUNCTION int cuCtxGetLimit(size_t* value, int) {
  if (value != nullptr) *value = 0;
  return 0;
}
DRIVER_FUNCTION int cuStreamGetCtx(void*, void** context) { return give(context); }

DRIVER_FUNCTION int cuLibraryLoadData(void** library) { return give(library); }
DRIVER_FUNCTION int cuLibraryLoadFromFile(void** library) { return give(library); }
DRIVER_FUNCTION int cuLibraryUnload() { return 0; }
DRIVER_FUNCTION int cuLibraryGetKernel(void** kernel) { return give(kernel); }
DRIVER_FUNCTION int cuKernelGetAttribute(int* value) {
  if (value != nullptr) *value = 0;
  return 0;
}
DRIVER_FUNCTION int cuKernelSetAttribute() { return 0; }
DRIVER_FUNCTION int cuOccupancyMaxPotentialClusterSize(int* size) {
  constexpr int kPortableClusterSize = 8;
  if (size != nullptr) *size = kPortableClusterSize;
  return 0;
}

DRIVER_FUNCTION int cuLinkCreate() { return kNotSupported; }
DRIVER_FUNCTION int cuLinkAddData() { return kNotSupported; }
DRIVER_FUNCTION int cuLinkComplete() { return kNotSupported; }
DRIVER_FUNCTION int cuLinkDestroy() { return kNotSupported; }
DRIVER_FUNCTION int cuLaunchKernel() { return kNoDevice; }
DRIVER_FUNCTION int cuLaunchKernelEx() { return kNoDevice; }
DRIVER_FUNCTION int cuLaunchCooperativeKernel() { return kNoDevice; }
