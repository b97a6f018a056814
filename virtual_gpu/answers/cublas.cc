// cuBLAS: nothing is computed. What is kept is what can be asked back, and results that a caller
// reads on the host are zeros.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/objects.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/workspaces.h"

namespace memledger::virtual_gpu {
namespace {

constexpr int kNotInitialized = 1;
constexpr int kAllocFailed = 3;
constexpr int kInvalidValue = 7;
constexpr int kPointerModeHost = 0;
constexpr int kCopyToDevice = 1;
constexpr int kCopyToHost = 2;
constexpr int kMappingError = 11;

struct Cublas {
  void* stream = nullptr;
  int math_mode = 0;
  int pointer_mode = kPointerModeHost;
  int atomics_mode = 0;
  int multiprocessor_target = 0;
  int device = 0;
  uintptr_t addresses = 0;
};

// What a handle takes of the device, which is part of the context's memory. Where it lies decides
// which addresses the program's next blocks have.
constexpr size_t kHandleBytes = size_t{2} << 20;

void take_addresses(Cublas& handle) {
  Machine& machine = Machine::get();
  const int device = current_device();
  if (!machine.is_device(device) || machine.specification().ascending_addresses) return;
  handle.device = device;
  handle.addresses = machine.take_addresses(device, kHandleBytes);
}

size_t size_of(int cuda_data_type) {
  switch (cuda_data_type) {
    case 2:   // half
    case 14:  // bfloat16
      return 2;
    case 1:  // double
    case 4:  // complex float
      return 8;
    case 5:  // complex double
      return 16;
    default:
      return 4;
  }
}

int give_result(const Cublas* handle, void* result, size_t bytes) {
  if (handle == nullptr) return kNotInitialized;
  note_library_work();
  if (handle->pointer_mode == kPointerModeHost && result != nullptr) std::memset(result, 0, bytes);
  return 0;
}

// An index of BLAS counts from 1, and is 0 for an empty vector.
int give_index(const Cublas* handle, int n, int* result) {
  if (handle == nullptr) return kNotInitialized;
  note_library_work();
  if (handle->pointer_mode == kPointerModeHost && result != nullptr) *result = n > 0 ? 1 : 0;
  return 0;
}

int give_info(int* info) {
  note_library_work();
  if (info != nullptr) *info = 0;
  return 0;
}

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

extern "C" int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream);
extern "C" int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                 size_t width, size_t height, int kind, void* stream);

namespace {

int copy_matrix(int rows, int columns, int element_size, const void* from, int from_rows, void* to,
                int to_rows, int kind, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const size_t size = static_cast<size_t>(element_size);
  return cudaMemcpy2DAsync(to, to_rows * size, from, from_rows * size, rows * size, columns, kind,
                           stream) == 0
             ? 0
             : kMappingError;
}

// The info of each matrix lies on the device. Where small copies are remembered, what lay there
// before must not be taken for it.
int clear_infos(const Cublas* handle, int* infos, int batch) {
  if (handle == nullptr) return kNotInitialized;
  note_library_work();
  if (infos == nullptr || batch < 1) return 0;
  return cudaMemsetAsync(infos, 0, batch * sizeof(int), handle->stream) == 0 ? 0 : kMappingError;
}

}  // namespace

MEMLEDGER_ANSWER int cublasCreate_v2(Cublas** handle) {
  const int status = make_object(handle, kInvalidValue, kAllocFailed);
  if (status == 0) take_addresses(**handle);
  return status;
}
MEMLEDGER_ANSWER int cublasDestroy_v2(Cublas* handle) {
  if (handle == nullptr) return kNotInitialized;
  Machine::get().give_addresses(handle->device, handle->addresses, kHandleBytes);
  return drop_object(handle);
}
MEMLEDGER_ANSWER int cublasSetStream_v2(Cublas* handle, void* stream) {
  if (handle == nullptr) return kNotInitialized;
  handle->stream = stream;
  return 0;
}
MEMLEDGER_ANSWER int cublasGetStream_v2(const Cublas* handle, void** stream) {
  if (handle == nullptr) return kNotInitialized;
  *stream = handle->stream;
  return 0;
}
MEMLEDGER_ANSWER int cublasSetWorkspace_v2(const Cublas* handle, void*, size_t bytes) {
  if (handle == nullptr) return kNotInitialized;
  note_workspace_asked(WorkspaceKind::kCublas, bytes);
  note_workspace_used(WorkspaceKind::kCublas);
  return 0;
}
MEMLEDGER_ANSWER int cublasSetMathMode(Cublas* handle, int mode) {
  if (handle == nullptr) return kNotInitialized;
  handle->math_mode = mode;
  return 0;
}
MEMLEDGER_ANSWER int cublasGetMathMode(const Cublas* handle, int* mode) {
  if (handle == nullptr) return kNotInitialized;
  *mode = handle->math_mode;
  return 0;
}
MEMLEDGER_ANSWER int cublasSetPointerMode_v2(Cublas* handle, int mode) {
  if (handle == nullptr) return kNotInitialized;
  handle->pointer_mode = mode;
  return 0;
}
MEMLEDGER_ANSWER int cublasGetPointerMode_v2(const Cublas* handle, int* mode) {
  if (handle == nullptr) return kNotInitialized;
  *mode = handle->pointer_mode;
  return 0;
}
MEMLEDGER_ANSWER int cublasSetAtomicsMode(Cublas* handle, int mode) {
  if (handle == nullptr) return kNotInitialized;
  handle->atomics_mode = mode;
  return 0;
}
MEMLEDGER_ANSWER int cublasGetAtomicsMode(const Cublas* handle, int* mode) {
  if (handle == nullptr) return kNotInitialized;
  *mode = handle->atomics_mode;
  return 0;
}
MEMLEDGER_ANSWER int cublasSetSmCountTarget(Cublas* handle, int count) {
  if (handle == nullptr) return kNotInitialized;
  handle->multiprocessor_target = count;
  return 0;
}
MEMLEDGER_ANSWER int cublasGetSmCountTarget(const Cublas* handle, int* count) {
  if (handle == nullptr) return kNotInitialized;
  *count = handle->multiprocessor_target;
  return 0;
}
MEMLEDGER_ANSWER int cublasGetVersion_v2(const Cublas*, int* version) {
  *version = 130100;  // 13.1, what LibTorch 2.11 asks for
  return 0;
}
MEMLEDGER_ANSWER const char* cublasGetStatusString(int status) {
  return status == 0 ? "CUBLAS_STATUS_SUCCESS" : "cuBLAS error";
}
MEMLEDGER_ANSWER const char* cublasGetStatusName(int status) {
  return cublasGetStatusString(status);
}

MEMLEDGER_ANSWER int cublasSetMatrixAsync(int rows, int columns, int size, const void* from,
                                          int from_rows, void* to, int to_rows, void* stream) {
  return copy_matrix(rows, columns, size, from, from_rows, to, to_rows, kCopyToDevice, stream);
}
MEMLEDGER_ANSWER int cublasGetMatrixAsync(int rows, int columns, int size, const void* from,
                                          int from_rows, void* to, int to_rows, void* stream) {
  return copy_matrix(rows, columns, size, from, from_rows, to, to_rows, kCopyToHost, stream);
}
// A vector is a matrix with one row, its elements `increment` apart.
MEMLEDGER_ANSWER int cublasSetVectorAsync(int n, int size, const void* from, int from_increment,
                                          void* to, int to_increment, void* stream) {
  return copy_matrix(1, n, size, from, from_increment, to, to_increment, kCopyToDevice, stream);
}
MEMLEDGER_ANSWER int cublasGetVectorAsync(int n, int size, const void* from, int from_increment,
                                          void* to, int to_increment, void* stream) {
  return copy_matrix(1, n, size, from, from_increment, to, to_increment, kCopyToHost, stream);
}

// Scalars.
#define DOT(name, bytes)                                                              \
  MEMLEDGER_ANSWER int name(const Cublas* h, int, const void*, int, const void*, int, \
                            void* result) {                                           \
    return give_result(h, result, bytes);                                             \
  }
DOT(cublasSdot_v2, 4)
DOT(cublasDdot_v2, 8)
DOT(cublasCdotu_v2, 8)
DOT(cublasCdotc_v2, 8)
DOT(cublasZdotu_v2, 16)
DOT(cublasZdotc_v2, 16)
#undef DOT
#define DOT_EX(name)                                                                            \
  MEMLEDGER_ANSWER int name(const Cublas* h, int, const void*, int, int, const void*, int, int, \
                            void* result, int type, int) {                                      \
    return give_result(h, result, size_of(type));                                               \
  }
DOT_EX(cublasDotEx)
DOT_EX(cublasDotcEx)
#undef DOT_EX
#define NORM(name, bytes)                                                           \
  MEMLEDGER_ANSWER int name(const Cublas* h, int, const void*, int, void* result) { \
    return give_result(h, result, bytes);                                           \
  }
NORM(cublasSnrm2_v2, 4)
NORM(cublasDnrm2_v2, 8)
NORM(cublasScnrm2_v2, 4)
NORM(cublasDznrm2_v2, 8)
NORM(cublasSasum_v2, 4)
NORM(cublasDasum_v2, 8)
NORM(cublasScasum_v2, 4)
NORM(cublasDzasum_v2, 8)
#undef NORM
#define INDEX(name)                                                                  \
  MEMLEDGER_ANSWER int name(const Cublas* h, int n, const void*, int, int* result) { \
    return give_index(h, n, result);                                                 \
  }
INDEX(cublasIsamax_v2)
INDEX(cublasIdamax_v2)
INDEX(cublasIcamax_v2)
INDEX(cublasIzamax_v2)
INDEX(cublasIsamin_v2)
INDEX(cublasIdamin_v2)
INDEX(cublasIcamin_v2)
INDEX(cublasIzamin_v2)
#undef INDEX

// Batched factorizations and solvers: `info` is on the host, other than the per-matrix results.
#define FOR_REAL_AND_COMPLEX(do_it) do_it(S) do_it(D) do_it(C) do_it(Z)
#define BATCHED(T)                                                                                 \
  MEMLEDGER_ANSWER int cublas##T##geqrfBatched(void*, int, int, void*, int, void*, int* info,      \
                                               int) {                                              \
    return give_info(info);                                                                        \
  }                                                                                                \
  MEMLEDGER_ANSWER int cublas##T##getrsBatched(void*, int, int, int, const void*, int, const int*, \
                                               void*, int, int* info, int) {                       \
    return give_info(info);                                                                        \
  }                                                                                                \
  MEMLEDGER_ANSWER int cublas##T##gelsBatched(const Cublas* h, int, int, int, int, void*, int,     \
                                              void*, int, int* info, int* infos, int batch) {      \
    give_info(info);                                                                               \
    return clear_infos(h, infos, batch);                                                           \
  }                                                                                                \
  MEMLEDGER_ANSWER int cublas##T##getrfBatched(const Cublas* h, int, void*, int, int*, int* infos, \
                                               int batch) {                                        \
    return clear_infos(h, infos, batch);                                                           \
  }                                                                                                \
  MEMLEDGER_ANSWER int cublas##T##getriBatched(const Cublas* h, int, const void*, int, const int*, \
                                               void*, int, int* infos, int batch) {                \
    return clear_infos(h, infos, batch);                                                           \
  }                                                                                                \
  MEMLEDGER_ANSWER int cublas##T##matinvBatched(const Cublas* h, int, const void*, int, void*,     \
                                                int, int* infos, int batch) {                      \
    return clear_infos(h, infos, batch);                                                           \
  }                                                                                                \
  MEMLEDGER_COMPUTES(cublas##T##trsmBatched)                                                       \
  MEMLEDGER_COMPUTES(cublas##T##gemmBatched)                                                       \
  MEMLEDGER_COMPUTES(cublas##T##gemmStridedBatched)                                                \
  MEMLEDGER_COMPUTES(cublas##T##gemvBatched)                                                       \
  MEMLEDGER_COMPUTES(cublas##T##gemvStridedBatched)
FOR_REAL_AND_COMPLEX(BATCHED)
#undef BATCHED

// Everything else works on device memory alone.
#define LEVELS(T)                         \
  MEMLEDGER_COMPUTES(cublas##T##axpy_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##copy_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##swap_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##scal_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##rot_v2)   \
  MEMLEDGER_COMPUTES(cublas##T##rotg_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##gemv_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##gemm_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##symm_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##symv_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##syr_v2)   \
  MEMLEDGER_COMPUTES(cublas##T##syr2_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##syrk_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##syr2k_v2) \
  MEMLEDGER_COMPUTES(cublas##T##trmm_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##trmv_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##trsm_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##trsv_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##geam)     \
  MEMLEDGER_COMPUTES(cublas##T##dgmm)
FOR_REAL_AND_COMPLEX(LEVELS)
#undef LEVELS
#define REAL(T)                          \
  MEMLEDGER_COMPUTES(cublas##T##ger_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##rotm_v2) \
  MEMLEDGER_COMPUTES(cublas##T##rotmg_v2)
REAL(S)
REAL(D)
#undef REAL
#define COMPLEX(T)                        \
  MEMLEDGER_COMPUTES(cublas##T##geru_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##gerc_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##hemm_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##hemv_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##her_v2)   \
  MEMLEDGER_COMPUTES(cublas##T##her2_v2)  \
  MEMLEDGER_COMPUTES(cublas##T##her2k_v2) \
  MEMLEDGER_COMPUTES(cublas##T##herk_v2)
COMPLEX(C)
COMPLEX(Z)
#undef COMPLEX
#undef FOR_REAL_AND_COMPLEX

MEMLEDGER_COMPUTES(cublasCsrot_v2)
MEMLEDGER_COMPUTES(cublasZdrot_v2)
MEMLEDGER_COMPUTES(cublasCsscal_v2)
MEMLEDGER_COMPUTES(cublasZdscal_v2)
MEMLEDGER_COMPUTES(cublasHgemm)
MEMLEDGER_COMPUTES(cublasHgemmBatched)
MEMLEDGER_COMPUTES(cublasHgemmStridedBatched)
MEMLEDGER_COMPUTES(cublasSgemmEx)
MEMLEDGER_COMPUTES(cublasCgemmEx)
MEMLEDGER_COMPUTES(cublasCgemm3m)
MEMLEDGER_COMPUTES(cublasZgemm3m)
MEMLEDGER_COMPUTES(cublasGemmEx)
MEMLEDGER_COMPUTES(cublasGemmBatchedEx)
MEMLEDGER_COMPUTES(cublasGemmStridedBatchedEx)
MEMLEDGER_COMPUTES(cublasSgemmGroupedBatched)
MEMLEDGER_COMPUTES(cublasDgemmGroupedBatched)
MEMLEDGER_COMPUTES(cublasGemmGroupedBatchedEx)
MEMLEDGER_COMPUTES(cublasScalEx)
MEMLEDGER_COMPUTES(cublasAxpyEx)
