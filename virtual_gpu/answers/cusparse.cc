// cuSPARSE: matrices are described, products do nothing. A sparse result has as many entries as its
// bound says or, where its number is only known on the device, none.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/objects.h"
#include "virtual_gpu/workspaces.h"

namespace memledger::virtual_gpu {
namespace {

constexpr int kAllocFailed = 2;
constexpr int kInvalidValue = 3;

struct Sparse {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t entries = 0;
};

struct Object {
  int unused = 0;
};

// Each of a row's partial results is 16 bytes at most; a product over entries is balanced in
// chunks, with one carry each.
constexpr int64_t kEntriesPerChunk = 1024;
constexpr size_t kCarryBytes = 16;
// Sorting moves pairs of 4-byte indices through a second copy of them, besides the counters of its
// passes.
constexpr size_t kIndexPairBytes = 8;
constexpr size_t kCounterBytes = 256;

size_t product_bytes(int64_t entries) { return (entries / kEntriesPerChunk + 1) * kCarryBytes; }
size_t sort_bytes(int64_t entries) { return entries * kIndexPairBytes * 2 + kCounterBytes; }

int give(size_t value, size_t* bytes) {
  if (bytes == nullptr) return kInvalidValue;
  *bytes = value;
  note_workspace_asked(WorkspaceKind::kCusparse, value);
  return 0;
}

int give_int(size_t value, int* bytes) {
  if (bytes == nullptr) return kInvalidValue;
  size_t result = 0;
  const int status = give(value, &result);
  *bytes = static_cast<int>(result);
  return status;
}

int make(Object** out) { return make_object(out, kInvalidValue, kAllocFailed); }

int make_matrix(Sparse** out, int64_t rows, int64_t columns, int64_t entries) {
  const int status = make_object(out, kInvalidValue, kAllocFailed);
  if (status == 0) **out = {rows, columns, entries};
  return status;
}

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

#define OBJECT(create, destroy)                                   \
  MEMLEDGER_ANSWER int create(Object** out) { return make(out); } \
  MEMLEDGER_ANSWER int destroy(Object* object) { return drop_object(object); }
OBJECT(cusparseCreate, cusparseDestroy)
OBJECT(cusparseCreateMatDescr, cusparseDestroyMatDescr)
OBJECT(cusparseCreateBsrsm2Info, cusparseDestroyBsrsm2Info)
OBJECT(cusparseCreateBsrsv2Info, cusparseDestroyBsrsv2Info)
OBJECT(cusparseSpGEMM_createDescr, cusparseSpGEMM_destroyDescr)
OBJECT(cusparseSpSM_createDescr, cusparseSpSM_destroyDescr)
OBJECT(cusparseSpSV_createDescr, cusparseSpSV_destroyDescr)
#undef OBJECT

MEMLEDGER_ANSWER int cusparseGetVersion(void*, int* version) {
  *version = 12603;
  return 0;
}
MEMLEDGER_ANSWER const char* cusparseGetErrorString(int status) {
  return status == 0 ? "success" : "cuSPARSE error";
}
MEMLEDGER_ANSWER const char* cusparseGetErrorName(int status) {
  return cusparseGetErrorString(status);
}

MEMLEDGER_ANSWER int cusparseCreateDnMat(Object** out, int64_t, int64_t, int64_t, void*, int, int) {
  return make(out);
}
MEMLEDGER_ANSWER int cusparseDestroyDnMat(Object* matrix) { return drop_object(matrix); }
MEMLEDGER_ANSWER int cusparseCreateDnVec(Object** out, int64_t, void*, int) { return make(out); }
MEMLEDGER_ANSWER int cusparseDestroyDnVec(Object* vector) { return drop_object(vector); }
MEMLEDGER_ANSWER int cusparseCreateCoo(Sparse** out, int64_t rows, int64_t columns, int64_t entries,
                                       void*, void*, void*, int, int, int) {
  return make_matrix(out, rows, columns, entries);
}
MEMLEDGER_ANSWER int cusparseCreateCsr(Sparse** out, int64_t rows, int64_t columns, int64_t entries,
                                       void*, void*, void*, int, int, int, int) {
  return make_matrix(out, rows, columns, entries);
}
MEMLEDGER_ANSWER int cusparseCreateBsr(Sparse** out, int64_t block_rows, int64_t block_columns,
                                       int64_t blocks, int64_t rows, int64_t columns) {
  return make_matrix(out, block_rows * rows, block_columns * columns, blocks * rows * columns);
}
MEMLEDGER_ANSWER int cusparseDestroySpMat(Sparse* matrix) { return drop_object(matrix); }
MEMLEDGER_ANSWER int cusparseSpMatGetSize(const Sparse* matrix, int64_t* rows, int64_t* columns,
                                          int64_t* entries) {
  if (matrix == nullptr) return kInvalidValue;
  *rows = matrix->rows;
  *columns = matrix->columns;
  *entries = matrix->entries;
  return 0;
}

MEMLEDGER_ANSWER int cusparseSpMM_bufferSize(void*, int, int, const void*, const Sparse* a,
                                             const void*, const void*, const void*, int, int,
                                             size_t* bytes) {
  return a == nullptr ? kInvalidValue : give(product_bytes(a->entries), bytes);
}
MEMLEDGER_ANSWER int cusparseSpMV_bufferSize(void*, int, const void*, const Sparse* a, const void*,
                                             const void*, const void*, int, int, size_t* bytes) {
  return a == nullptr ? kInvalidValue : give(product_bytes(a->entries), bytes);
}
MEMLEDGER_ANSWER int cusparseSDDMM_bufferSize(void*, int, int, const void*, const void*,
                                              const void*, const void*, const Sparse* c, int, int,
                                              size_t* bytes) {
  return c == nullptr ? kInvalidValue : give(product_bytes(c->entries), bytes);
}
// A solver keeps the levels of its rows.
MEMLEDGER_ANSWER int cusparseSpSM_bufferSize(void*, int, int, const void*, const Sparse* a,
                                             const void*, const void*, int, int, void*,
                                             size_t* bytes) {
  return a == nullptr ? kInvalidValue
                      : give(a->rows * kIndexPairBytes + product_bytes(a->entries), bytes);
}
MEMLEDGER_ANSWER int cusparseSpSV_bufferSize(void*, int, const void*, const Sparse* a, const void*,
                                             const void*, int, int, void*, size_t* bytes) {
  return a == nullptr ? kInvalidValue
                      : give(a->rows * kIndexPairBytes + product_bytes(a->entries), bytes);
}

// Called twice each: without a buffer for its size, then with it. An upper bound of the products is
// not known without reading indices; the entries of both factors stand for it.
MEMLEDGER_ANSWER int cusparseSpGEMM_workEstimation(void*, int, int, const void*, const Sparse* a,
                                                   const Sparse* b, const void*, Sparse*, int, int,
                                                   void*, size_t* bytes, void* buffer) {
  if (a == nullptr || b == nullptr || bytes == nullptr) return kInvalidValue;
  if (buffer != nullptr) note_library_work();
  return buffer != nullptr ? 0 : give(product_bytes(a->entries + b->entries), bytes);
}
MEMLEDGER_ANSWER int cusparseSpGEMM_compute(void*, int, int, const void*, const Sparse* a,
                                            const Sparse* b, const void*, Sparse*, int, int, void*,
                                            size_t* bytes, void* buffer) {
  if (a == nullptr || b == nullptr || bytes == nullptr) return kInvalidValue;
  if (buffer != nullptr) note_library_work();
  return buffer != nullptr ? 0 : give(sort_bytes(a->entries + b->entries), bytes);
}
MEMLEDGER_COMPUTES(cusparseSpGEMM_copy)

MEMLEDGER_ANSWER int cusparseXcoosort_bufferSizeExt(void*, int, int, int entries, const int*,
                                                    const int*, size_t* bytes) {
  return give(sort_bytes(entries), bytes);
}
MEMLEDGER_ANSWER int cusparseXcsrsort_bufferSizeExt(void*, int, int, int entries, const int*,
                                                    const int*, size_t* bytes) {
  return give(sort_bytes(entries), bytes);
}

// The sum of two matrices: its number of entries is the device's to count, or the host's; unknown
// here, it is that of no entry shared.
MEMLEDGER_ANSWER int cusparseXcsrgeam2Nnz(void*, int, int, const void*, int entries_a, const int*,
                                          const int*, const void*, int entries_b, const int*,
                                          const int*, const void*, int*, int* total, void*) {
  note_library_work();
  if (total != nullptr) *total = entries_a + entries_b;
  return 0;
}

MEMLEDGER_ANSWER int cusparseXbsrsm2_zeroPivot(void*, void*, int* position) {
  if (position != nullptr) *position = -1;
  return 0;
}
MEMLEDGER_ANSWER int cusparseXbsrsv2_zeroPivot(void*, void*, int* position) {
  if (position != nullptr) *position = -1;
  return 0;
}

#define TYPED(T)                                                                                 \
  MEMLEDGER_ANSWER int cusparse##T##bsrsm2_bufferSize(void*, int, int, int, int rows, int,       \
                                                      int blocks, void*, void*, const int*,      \
                                                      const int*, int, void*, int* bytes) {      \
    return give_int(rows * kIndexPairBytes + product_bytes(blocks), bytes);                      \
  }                                                                                              \
  MEMLEDGER_ANSWER int cusparse##T##bsrsv2_bufferSize(void*, int, int, int rows, int blocks,     \
                                                      void*, void*, const int*, const int*, int, \
                                                      void*, int* bytes) {                       \
    return give_int(rows * kIndexPairBytes + product_bytes(blocks), bytes);                      \
  }                                                                                              \
  MEMLEDGER_ANSWER int cusparse##T##csrgeam2_bufferSizeExt(                                      \
      void*, int rows, int, const void*, void*, int, const void*, const int*, const int*,        \
      const void*, void*, int, const void*, const int*, const int*, void*, const void*,          \
      const int*, const int*, size_t* bytes) {                                                   \
    return give(rows * kIndexPairBytes, bytes);                                                  \
  }                                                                                              \
  MEMLEDGER_COMPUTES(cusparse##T##bsrmm)                                                         \
  MEMLEDGER_COMPUTES(cusparse##T##bsrmv)                                                         \
  MEMLEDGER_COMPUTES(cusparse##T##bsrsm2_analysis)                                               \
  MEMLEDGER_COMPUTES(cusparse##T##bsrsm2_solve)                                                  \
  MEMLEDGER_COMPUTES(cusparse##T##bsrsv2_analysis)                                               \
  MEMLEDGER_COMPUTES(cusparse##T##bsrsv2_solve)                                                  \
  MEMLEDGER_COMPUTES(cusparse##T##csrgeam2)
TYPED(S)
TYPED(D)
TYPED(C)
TYPED(Z)
#undef TYPED

MEMLEDGER_DOES_NOTHING(cusparseSetStream)
MEMLEDGER_DOES_NOTHING(cusparseSetPointerMode)
MEMLEDGER_DOES_NOTHING(cusparseSetMatDiagType)
MEMLEDGER_DOES_NOTHING(cusparseSetMatFillMode)
MEMLEDGER_DOES_NOTHING(cusparseSetMatIndexBase)
MEMLEDGER_DOES_NOTHING(cusparseSetMatType)
MEMLEDGER_DOES_NOTHING(cusparseSpMatSetAttribute)
MEMLEDGER_DOES_NOTHING(cusparseCsrSetPointers)
MEMLEDGER_DOES_NOTHING(cusparseCsrSetStridedBatch)
MEMLEDGER_DOES_NOTHING(cusparseDnMatSetStridedBatch)
MEMLEDGER_COMPUTES(cusparseCreateIdentityPermutation)
MEMLEDGER_COMPUTES(cusparseXcoo2csr)
MEMLEDGER_COMPUTES(cusparseXcoosortByRow)
MEMLEDGER_COMPUTES(cusparseXcsrsort)
MEMLEDGER_COMPUTES(cusparseSpMM)
MEMLEDGER_COMPUTES(cusparseSpMV)
MEMLEDGER_COMPUTES(cusparseSDDMM)
MEMLEDGER_COMPUTES(cusparseSDDMM_preprocess)
MEMLEDGER_COMPUTES(cusparseSpSM_analysis)
MEMLEDGER_COMPUTES(cusparseSpSM_solve)
MEMLEDGER_COMPUTES(cusparseSpSV_analysis)
MEMLEDGER_COMPUTES(cusparseSpSV_solve)
