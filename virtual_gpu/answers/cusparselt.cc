// cuSPARSELt: 2:4 sparse products. Its descriptors are bytes in the caller's own objects, so there
// is nothing to make or free.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/library_sizes.h"
#include "virtual_gpu/workspaces.h"

using namespace memledger::virtual_gpu;

namespace {

constexpr int kInvalidValue = 3;

// What is kept of a matrix, at the start of the caller's descriptor (which has room for 11 KiB, see
// cusparseLtMatDescriptor_t).
struct Matrix {
  uint64_t mark;
  int64_t rows;
  int64_t columns;
  size_t element_bytes;
};
constexpr uint64_t kMark = 0x6d656d6c65646772;  // so that a plan is not taken for one

size_t size_of(int cuda_data_type) {
  switch (cuda_data_type) {
    case 0:  // float
      return 4;
    case 2:   // half
    case 14:  // bfloat16
      return 2;
    default:  // int8, fp8
      return 1;
  }
}

int describe(void* out, int64_t rows, int64_t columns, int type) {
  if (out == nullptr) return kInvalidValue;
  const Matrix matrix{kMark, rows, columns, size_of(type)};
  std::memcpy(out, &matrix, sizeof(matrix));
  return 0;
}

}  // namespace

MEMLEDGER_ANSWER int cusparseLtStructuredDescriptorInit(const void*, void* out, int64_t rows,
                                                        int64_t columns, int64_t, uint32_t,
                                                        int type, int, int) {
  return describe(out, rows, columns, type);
}
MEMLEDGER_ANSWER int cusparseLtDenseDescriptorInit(const void*, void* out, int64_t rows,
                                                   int64_t columns, int64_t, uint32_t, int type,
                                                   int) {
  return describe(out, rows, columns, type);
}

// Half of the elements, and two bits for the place of each that is kept.
MEMLEDGER_ANSWER int cusparseLtSpMMACompressedSize2(const void*, const void* descriptor,
                                                    size_t* compressed, size_t* buffer) {
  if (descriptor == nullptr || compressed == nullptr || buffer == nullptr) return kInvalidValue;
  Matrix matrix;
  std::memcpy(&matrix, descriptor, sizeof(matrix));
  if (matrix.mark != kMark) return kInvalidValue;
  const size_t kept = static_cast<size_t>(matrix.rows) * matrix.columns / 2;
  *compressed = kept * matrix.element_bytes + (kept * 2 + 7) / 8;
  *buffer = 0;
  note_workspace_asked(WorkspaceKind::kCusparseLt, *buffer);
  return 0;
}

MEMLEDGER_ANSWER int cusparseLtMatmulGetWorkspace(const void*, const void*, size_t* bytes) {
  if (bytes == nullptr) return kInvalidValue;
  *bytes = 0;
  note_library_size(LibrarySize::kCusparseLt);
  note_workspace_asked(WorkspaceKind::kCusparseLt, 0);
  return 0;
}

MEMLEDGER_ANSWER int cusparseLtMatmulAlgGetAttribute(const void*, const void*, int, void* out,
                                                     size_t bytes) {
  if (out == nullptr) return kInvalidValue;
  std::memset(out, 0, bytes);
  return 0;
}

MEMLEDGER_DOES_NOTHING(cusparseLtInit)
MEMLEDGER_DOES_NOTHING(cusparseLtDestroy)
MEMLEDGER_DOES_NOTHING(cusparseLtMatDescriptorDestroy)
MEMLEDGER_DOES_NOTHING(cusparseLtMatmulDescriptorInit)
MEMLEDGER_DOES_NOTHING(cusparseLtMatmulDescSetAttribute)
MEMLEDGER_DOES_NOTHING(cusparseLtMatmulAlgSelectionInit)
MEMLEDGER_DOES_NOTHING(cusparseLtMatmulAlgSetAttribute)
MEMLEDGER_DOES_NOTHING(cusparseLtMatmulPlanInit)
MEMLEDGER_DOES_NOTHING(cusparseLtMatmulPlanDestroy)
MEMLEDGER_COMPUTES(cusparseLtMatmulSearch)
MEMLEDGER_COMPUTES(cusparseLtMatmul)
MEMLEDGER_COMPUTES(cusparseLtSpMMACompress2)
