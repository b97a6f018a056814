// cuSPARSE: matrices are described, products do nothing. Only the device knows how many entries a
// product of sparse matrices has. It is assumed to be the share `reads=` of the maximum. If that
// share is 1, it is the number that evenly spread entries give, except at the high end of a dry
// run, which takes the maximum.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/objects.h"
#include "virtual_gpu/library_sizes.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/solver_sizes.h"
#include "virtual_gpu/workspaces.h"

namespace memledger::virtual_gpu {
namespace {

constexpr int kAllocFailed = 2;
constexpr int kInvalidValue = 3;

struct Sparse {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t entries = 0;
  int64_t value_bytes = 0;
};

struct Dense {
  int64_t columns = 0;
};

struct Object {
  int unused = 0;
};

bool wants_most() { return Machine::get().specification().workspaces == WorkspaceEnd::kUpper; }

size_t chosen(const WorkSize& size) { return wants_most() ? size.most : size.least; }

// CUDA's numbers of types. Complex values of half precision are taken for larger ones.
int64_t bytes_of(int cuda_data_type) {
  switch (cuda_data_type) {
    case 2:   // half
    case 14:  // bfloat16
      return 2;
    case 1:  // double
    case 4:  // complex of float
      return 8;
    case 5:  // complex of double
      return 16;
    default:
      return 4;
  }
}

// The products of entries in a product of sparse matrices. Their number depends on the indices.
struct Products {
  double count = 0;
  int64_t entries = 0;  // of the result
};

// At most, each entry of one matrix meets a whole row or column of the other.
Products most_products(const Sparse& a, const Sparse& b) {
  const double count = std::min(static_cast<double>(a.entries) * static_cast<double>(b.columns),
                                static_cast<double>(a.rows) * static_cast<double>(b.entries));
  const double places = static_cast<double>(a.rows) * static_cast<double>(b.columns);
  return {count, static_cast<int64_t>(std::min(count, places))};
}

// Takes entries to be spread evenly, and returns how many places of the result they hit then.
Products even_products(const Sparse& a, const Sparse& b) {
  const double places = static_cast<double>(a.rows) * static_cast<double>(b.columns);
  if (a.columns == 0 || places == 0) return {};
  const double count = static_cast<double>(a.entries) * static_cast<double>(b.entries) /
                       static_cast<double>(a.columns);
  return {count, static_cast<int64_t>(std::min(count, -places * std::expm1(-count / places)))};
}

// What the specification says of sizes that only the device knows.
Products products_of(const Sparse& a, const Sparse& b) {
  const uint32_t millionths = Machine::get().specification().assumed_millionths;
  if (wants_most()) return most_products(a, b);
  if (millionths >= kMillion) return even_products(a, b);
  const Products most = most_products(a, b);
  const double share = static_cast<double>(millionths) / kMillion;
  return {most.count * share, static_cast<int64_t>(static_cast<double>(most.entries) * share)};
}

// Bound cuSPARSE's own answers from above.
size_t block_rows_bytes(int64_t rows) { return static_cast<size_t>(40 * rows + 4096); }
size_t sum_rows_bytes(int64_t rows) { return static_cast<size_t>(rows / 128 + 1024); }

// An H200 took 24 bytes for each product; the upper end has room for what else there is.
size_t product_work_bytes(const Products& products) {
  constexpr double kBytes = 24;
  constexpr size_t kBeside = size_t{32} << 20;
  const auto bytes = static_cast<size_t>(products.count * kBytes);
  return wants_most() ? bytes + bytes / 16 + kBeside : bytes;
}

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

int make_matrix(Sparse** out, int64_t rows, int64_t columns, int64_t entries, int value_type) {
  const int status = make_object(out, kInvalidValue, kAllocFailed);
  if (status == 0) **out = {rows, columns, entries, bytes_of(value_type)};
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

MEMLEDGER_ANSWER int cusparseCreateDnMat(Dense** out, int64_t, int64_t columns, int64_t, void*, int,
                                         int) {
  const int status = make_object(out, kInvalidValue, kAllocFailed);
  if (status == 0) (*out)->columns = columns;
  return status;
}
MEMLEDGER_ANSWER int cusparseDestroyDnMat(Dense* matrix) { return drop_object(matrix); }
MEMLEDGER_ANSWER int cusparseCreateDnVec(Object** out, int64_t, void*, int) { return make(out); }
MEMLEDGER_ANSWER int cusparseDestroyDnVec(Object* vector) { return drop_object(vector); }
MEMLEDGER_ANSWER int cusparseCreateCoo(Sparse** out, int64_t rows, int64_t columns, int64_t entries,
                                       void*, void*, void*, int, int, int value_type) {
  return make_matrix(out, rows, columns, entries, value_type);
}
MEMLEDGER_ANSWER int cusparseCreateCsr(Sparse** out, int64_t rows, int64_t columns, int64_t entries,
                                       void*, void*, void*, int, int, int, int value_type) {
  return make_matrix(out, rows, columns, entries, value_type);
}
MEMLEDGER_ANSWER int cusparseCreateBsr(Sparse** out, int64_t block_rows, int64_t block_columns,
                                       int64_t blocks, int64_t rows, int64_t columns) {
  constexpr int kLargest = 5;  // as nothing gives the type here
  return make_matrix(out, block_rows * rows, block_columns * columns, blocks * rows * columns,
                     kLargest);
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
  return a == nullptr ? kInvalidValue
                      : give(chosen(sparse_product_work(a->rows, a->entries)), bytes);
}
MEMLEDGER_ANSWER int cusparseSpMV_bufferSize(void*, int, const void*, const Sparse* a, const void*,
                                             const void*, const void*, int, int, size_t* bytes) {
  return a == nullptr ? kInvalidValue
                      : give(chosen(sparse_product_work(a->rows, a->entries)), bytes);
}
MEMLEDGER_ANSWER int cusparseSDDMM_bufferSize(void*, int, int, const void*, const void*,
                                              const void*, const void*, const Sparse* c, int, int,
                                              size_t* bytes) {
  return c == nullptr ? kInvalidValue
                      : give(chosen(sparse_product_work(c->rows, c->entries)), bytes);
}
// A solver keeps the levels of its rows.
MEMLEDGER_ANSWER int cusparseSpSM_bufferSize(void*, int, int, const void*, const Sparse* a,
                                             const void*, const Dense* result, int, int, void*,
                                             size_t* bytes) {
  if (a == nullptr || result == nullptr) return kInvalidValue;
  return give(chosen(sparse_solve_work(a->rows, a->entries, result->columns, a->value_bytes)),
              bytes);
}
MEMLEDGER_ANSWER int cusparseSpSV_bufferSize(void*, int, const void*, const Sparse* a, const void*,
                                             const void*, int, int, void*, size_t* bytes) {
  if (a == nullptr) return kInvalidValue;
  return give(chosen(sparse_solve_work(a->rows, a->entries, 0, a->value_bytes)), bytes);
}

// Called twice each: without a buffer for its size, then with it.
MEMLEDGER_ANSWER int cusparseSpGEMM_workEstimation(void*, int, int, const void*, const Sparse* a,
                                                   const Sparse* b, const void*, Sparse*, int, int,
                                                   void*, size_t* bytes, void* buffer) {
  if (a == nullptr || b == nullptr || bytes == nullptr) return kInvalidValue;
  if (buffer != nullptr) note_library_work();
  const auto entries = a->entries + b->entries;
  return buffer != nullptr ? 0 : give(chosen(sparse_product_work(a->rows, entries)), bytes);
}
MEMLEDGER_ANSWER int cusparseSpGEMM_compute(void*, int, int, const void*, const Sparse* a,
                                            const Sparse* b, const void*, Sparse* c, int, int,
                                            void*, size_t* bytes, void* buffer) {
  if (a == nullptr || b == nullptr || bytes == nullptr) return kInvalidValue;
  const Products products = products_of(*a, *b);
  if (buffer == nullptr) return give(product_work_bytes(products), bytes);
  note_library_work();
  note_library_size(LibrarySize::kSparseProduct);
  if (c != nullptr) c->entries = products.entries;
  return 0;
}
MEMLEDGER_COMPUTES(cusparseSpGEMM_copy)

MEMLEDGER_ANSWER int cusparseXcoosort_bufferSizeExt(void*, int, int, int entries, const int*,
                                                    const int*, size_t* bytes) {
  return give(chosen(sparse_sort_work(entries)), bytes);
}
MEMLEDGER_ANSWER int cusparseXcsrsort_bufferSizeExt(void*, int, int, int entries, const int*,
                                                    const int*, size_t* bytes) {
  return give(chosen(sparse_sort_work(entries)), bytes);
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
  MEMLEDGER_ANSWER int cusparse##T##bsrsm2_bufferSize(void*, int, int, int, int rows, int, int,  \
                                                      void*, void*, const int*, const int*, int, \
                                                      void*, int* bytes) {                       \
    return give_int(wants_most() ? block_rows_bytes(rows) : 0, bytes);                           \
  }                                                                                              \
  MEMLEDGER_ANSWER int cusparse##T##bsrsv2_bufferSize(void*, int, int, int rows, int, void*,     \
                                                      void*, const int*, const int*, int, void*, \
                                                      int* bytes) {                              \
    return give_int(wants_most() ? block_rows_bytes(rows) : 0, bytes);                           \
  }                                                                                              \
  MEMLEDGER_ANSWER int cusparse##T##csrgeam2_bufferSizeExt(                                      \
      void*, int rows, int, const void*, void*, int, const void*, const int*, const int*,        \
      const void*, void*, int, const void*, const int*, const int*, void*, const void*,          \
      const int*, const int*, size_t* bytes) {                                                   \
    return give(wants_most() ? sum_rows_bytes(rows) : 0, bytes);                                 \
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
