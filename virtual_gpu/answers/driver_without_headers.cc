// The driver: functions whose answer does not depend on their parameters. cuda.h is not included,
// as its declarations would contradict.
#include "virtual_gpu/answer_macros.h"

namespace {

constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
constexpr char kOneContext[] = "a device of the virtual machine has its primary context only.";
constexpr char kNoArrays[] = "a virtual GPU has no arrays, textures and surfaces.";
constexpr char kNoParameters[] = "what parameters a kernel has is not known.";
constexpr char kNoExternal[] = "a virtual GPU shares nothing with other programs and devices.";

}  // namespace

MEMLEDGER_REFUSES(cuCtxCreate, kNotSupported, kOneContext)
MEMLEDGER_REFUSES(cuCtxCreate_v2, kNotSupported, kOneContext)
MEMLEDGER_REFUSES(cuCtxCreate_v3, kNotSupported, kOneContext)
MEMLEDGER_REFUSES(cuCtxCreate_v4, kNotSupported, kOneContext)
MEMLEDGER_REFUSES(cuGreenCtxCreate, kNotSupported, kOneContext)

MEMLEDGER_DOES_NOTHING(cuProfilerStart)
MEMLEDGER_DOES_NOTHING(cuProfilerStop)
MEMLEDGER_DOES_NOTHING(cuFlushGPUDirectRDMAWrites)

// Where managed memory lies is not modelled: it is the host's.
MEMLEDGER_DOES_NOTHING(cuMemPrefetchAsync)
MEMLEDGER_DOES_NOTHING(cuMemPrefetchAsync_v2)
MEMLEDGER_DOES_NOTHING(cuMemAdvise)
MEMLEDGER_DOES_NOTHING(cuMemAdvise_v2)

MEMLEDGER_REFUSES(cuFuncGetParamInfo, kNotSupported, kNoParameters)
MEMLEDGER_REFUSES(cuKernelGetParamInfo, kNotSupported, kNoParameters)
MEMLEDGER_REFUSES(cuLibraryGetUnifiedFunction, kNotSupported, "functions have no address here.")

MEMLEDGER_REFUSES(cuArrayCreate, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuArrayCreate_v2, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuArray3DCreate, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuArray3DCreate_v2, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuMipmappedArrayCreate, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuTexObjectCreate, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuSurfObjectCreate, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuModuleGetTexRef, kNotSupported, kNoArrays)
MEMLEDGER_REFUSES(cuModuleGetSurfRef, kNotSupported, kNoArrays)

MEMLEDGER_REFUSES(cuImportExternalMemory, kNotSupported, kNoExternal)
MEMLEDGER_REFUSES(cuImportExternalSemaphore, kNotSupported, kNoExternal)
MEMLEDGER_REFUSES(cuGraphicsGLRegisterBuffer, kNotSupported, kNoExternal)
MEMLEDGER_REFUSES(cuGraphicsGLRegisterImage, kNotSupported, kNoExternal)
MEMLEDGER_REFUSES(cuMemPoolExportToShareableHandle, kNotSupported, kNoExternal)
MEMLEDGER_REFUSES(cuMemPoolImportFromShareableHandle, kNotSupported, kNoExternal)
