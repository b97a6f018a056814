// cuBLASLt: descriptors can be made and set, every product is said to have an algorithm.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/objects.h"

namespace memledger::virtual_gpu {
namespace {

constexpr int kAllocFailed = 3;
constexpr int kInvalidValue = 7;

// Nothing of a descriptor is read back.
struct LtObject {
  int unused = 0;
};

struct LtHeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

}  // namespace
}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

MEMLEDGER_ANSWER size_t cublasLtGetVersion() {
  return 130100;
}  // 13.1, what LibTorch 2.11 asks for

MEMLEDGER_ANSWER int cublasLtCreate(LtObject** handle) {
  return make_object(handle, kInvalidValue, kAllocFailed);
}
MEMLEDGER_ANSWER int cublasLtDestroy(LtObject* handle) { return drop_object(handle); }
MEMLEDGER_ANSWER int cublasLtMatmulDescCreate(LtObject** descriptor, int, int) {
  return make_object(descriptor, kInvalidValue, kAllocFailed);
}
MEMLEDGER_ANSWER int cublasLtMatmulDescDestroy(LtObject* descriptor) {
  return drop_object(descriptor);
}
MEMLEDGER_ANSWER int cublasLtMatrixLayoutCreate(LtObject** layout, int, uint64_t, uint64_t,
                                                int64_t) {
  return make_object(layout, kInvalidValue, kAllocFailed);
}
MEMLEDGER_ANSWER int cublasLtMatrixLayoutDestroy(LtObject* layout) { return drop_object(layout); }
MEMLEDGER_ANSWER int cublasLtMatmulPreferenceCreate(LtObject** preference) {
  return make_object(preference, kInvalidValue, kAllocFailed);
}
MEMLEDGER_ANSWER int cublasLtMatmulPreferenceDestroy(LtObject* preference) {
  return drop_object(preference);
}

// The workspace that LibTorch hands to a product is its own choice (a fixed size for the device),
// made before it asks here. The answer says 0, which fits any preference.
MEMLEDGER_ANSWER int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*,
                                                    int requested, LtHeuristicResult* results,
                                                    int* returned) {
  if (requested < 1 || results == nullptr || returned == nullptr) return kInvalidValue;
  results[0] = {};
  results[0].waves = 1;
  *returned = 1;
  return 0;
}

MEMLEDGER_DOES_NOTHING(cublasLtMatmulDescSetAttribute)
MEMLEDGER_DOES_NOTHING(cublasLtMatrixLayoutSetAttribute)
MEMLEDGER_DOES_NOTHING(cublasLtMatmulPreferenceSetAttribute)
MEMLEDGER_COMPUTES(cublasLtMatmul)
