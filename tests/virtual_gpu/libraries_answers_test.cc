// The math libraries' functions as a program calls them: the answers are linked in, no library is
// preloaded. A device of compute capability 9.0, which is the default.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "virtual_gpu/cudnn_version.h"
#include "virtual_gpu/library_sizes.h"
#include "virtual_gpu/solver_sizes.h"
#include "virtual_gpu/workspace_model.h"
#include "virtual_gpu/workspaces.h"

extern "C" {
int cudaDeviceReset();
int cudaMalloc(void**, size_t);
int cudaMemGetInfo(size_t*, size_t*);
int cudaFree(void*);
int cudaEventCreate(void**);
int cudaEventDestroy(void*);
int cudaEventRecord(void*, void*);
int cudaEventElapsedTime(float*, void*, void*);
int cudaMemcpy(void*, const void*, size_t, int);
int cudaMemset(void*, int, size_t);
size_t cudnnGetVersion();
int cudnnGetProperty(int, int*);
void cudnnGetLastErrorString(char*, size_t);
int cudnnCreate(void**);
int cudnnDestroy(void*);
int cudnnSetStream(void*, void*);
int cudnnGetStream(void*, void**);
int cudnnCreateTensorDescriptor(void**);
int cudnnDestroyTensorDescriptor(void*);
int cudnnSetTensorNdDescriptor(void*, int, int, const int*, const int*);
int cudnnGetTensorNdDescriptor(void*, int, int*, int*, int*, int*);
int cudnnCreateFilterDescriptor(void**);
int cudnnDestroyFilterDescriptor(void*);
int cudnnSetFilterNdDescriptor(void*, int, int, int, const int*);
int cudnnCreateConvolutionDescriptor(void**);
int cudnnDestroyConvolutionDescriptor(void*);
int cudnnSetConvolutionNdDescriptor(void*, int, const int*, const int*, const int*, int, int);
int cudnnGetConvolutionForwardWorkspaceSize(void*, void*, void*, void*, void*, int, size_t*);
int cudnnCreateRNNDescriptor(void**);
int cudnnDestroyRNNDescriptor(void*);
int cudnnSetRNNDescriptor_v8(void*, int, int, int, int, int, int, int, int, int32_t, int32_t,
                             int32_t, int32_t, void*, uint32_t);
int cudnnGetRNNWeightSpaceSize(void*, void*, size_t*);
int cudnnGetRNNWeightParams(void*, void*, int32_t, size_t, const void*, int32_t, void*, void**,
                            void*, void**);
int cudnnBackendCreateDescriptor(int, void**);
int cudnnBackendDestroyDescriptor(void*);
int cudnnBackendSetAttribute(void*, int, int, int64_t, const void*);
int cudnnBackendGetAttribute(void*, int, int, int64_t, int64_t*, void*);
int cudnnBackendFinalize(void*);
int cudnnBackendExecute(void*, void*, void*);
int cudnnCreateCTCLossDescriptor(void**);
int cudnnDestroyCTCLossDescriptor(void*);
int cudnnSetCTCLossDescriptor_v9(void*, int, int, int, int);
int cudnnGetCTCLossWorkspaceSize(void*, void*, void*, const int*, const int*, const int*, int,
                                 void*, size_t*);
int cudnnGetCTCLossWorkspaceSize_v8(void*, int, void*, void*, void*, size_t*);
int cudnnDropoutGetStatesSize(void*, size_t*);
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*, void*, void*,
                                                             void*, void*, size_t*);
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*, void*, void*,
                                                      void*, void*, void*, size_t*);
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*, void*, size_t*);
int cublasCreate_v2(void**);
int cublasDestroy_v2(void*);
int cublasSetPointerMode_v2(void*, int);
int cublasSdot_v2(void*, int, const float*, int, const float*, int, float*);
int cublasIsamax_v2(void*, int, const float*, int, int*);
int cublasSgetrsBatched(void*, int, int, int, const void*, int, const int*, void*, int, int*, int);
int cublasSgemmEx();
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*,
                                   int*);
int cufftCreate(int*);
int cufftXtMakePlanMany(int, int, long long*, long long*, long long, long long, int, long long*,
                        long long, long long, int, long long, size_t*, int);
int cusolverDnCreate(void**);
int cusolverDnDestroy(void*);
int cusolverDnSsyevd_bufferSize(void*, int, int, int, const float*, int, const float*, int*);
int cusolverDnXgeqrf_bufferSize(void*, void*, int64_t, int64_t, int, const void*, int64_t, int,
                                const void*, int, size_t*, size_t*);
int cusolverDnSgesvdaStridedBatched(void*, int, int, int, int, const float*, int, long long, float*,
                                    long long, float*, int, long long, float*, int, long long,
                                    float*, int, int*, double*, int);
int cusolverDnSgetrf_bufferSize(void*, int, int, float*, int, int*);
int cusparseCreateCsr(void**, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int, int);
int cusparseSpMatGetSize(void*, int64_t*, int64_t*, int64_t*);
int cusparseDestroySpMat(void*);
int cusparseSpGEMM_workEstimation(void*, int, int, const void*, void*, void*, const void*, void*,
                                  int, int, void*, size_t*, void*);
int cusparseSpGEMM_compute(void*, int, int, const void*, void*, void*, const void*, void*, int, int,
                           void*, size_t*, void*);
int cusparseXcsrgeam2Nnz(void*, int, int, const void*, int, const int*, const int*, const void*,
                         int, const int*, const int*, const void*, int*, int*, void*);
int cusparseLtStructuredDescriptorInit(const void*, void*, int64_t, int64_t, int64_t, uint32_t, int,
                                       int, int);
int cusparseLtSpMMACompressedSize2(const void*, const void*, size_t*, size_t*);
struct Extent {
  unsigned x, y, z;
};
int cudaLaunchKernel(const void*, Extent, Extent, void**, size_t, void*);
struct UniqueId {
  char bytes[128];
};
int ncclGetUniqueId(UniqueId*);
int ncclCommInitRank(void**, int, UniqueId, int);
int ncclCommCount(void*, int*);
int ncclCommUserRank(void*, int*);
int ncclCommSplit(void*, int, int, void**, void*);
int ncclCommGetAsyncError(void*, int*);
int ncclAllGather(const void*, void*, size_t, int, void*, void*);
int ncclBcast(void*, size_t, int, int, void*, void*);
int ncclBroadcast(const void*, void*, size_t, int, int, void*, void*);
int ncclCommDestroy(void*);
int ncclCommAbort(void*);
int ncclCommInitRankConfig(void**, int, UniqueId, int, const void*);
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int ncclReduceScatter(const void*, void*, size_t, int, int, void*, void*);
int ncclSend(const void*, size_t, int, int, void*, void*);
int ncclRecv(void*, size_t, int, int, void*, void*);
const char* ncclGetErrorString(int);
const char* ncclGetLastError(const void*);
}

namespace memledger::virtual_gpu {
namespace {

constexpr int kInt64 = 3, kDescriptorType = 15;

// Frees descriptors when the test ends.
class Graph {
 public:
  ~Graph() {
    for (void* const descriptor : descriptors_) cudnnBackendDestroyDescriptor(descriptor);
  }

  void* make(int type) {
    void* descriptor = nullptr;
    REQUIRE(cudnnBackendCreateDescriptor(type, &descriptor) == 0);
    descriptors_.push_back(descriptor);
    return descriptor;
  }
  void set(void* descriptor, int name, const std::vector<int64_t>& values) {
    REQUIRE(cudnnBackendSetAttribute(descriptor, name, kInt64, static_cast<int64_t>(values.size()),
                                     values.data()) == 0);
  }
  void set(void* descriptor, int name, void* value) {
    REQUIRE(cudnnBackendSetAttribute(descriptor, name, kDescriptorType, 1, &value) == 0);
  }
  void set_enumerator(void* descriptor, int name, int type, int value) {
    REQUIRE(cudnnBackendSetAttribute(descriptor, name, type, 1, &value) == 0);
  }
  void* finalized(void* descriptor) {
    REQUIRE(cudnnBackendFinalize(descriptor) == 0);
    return descriptor;
  }

  void* tensor(const std::vector<int64_t>& extents) {
    std::vector<int64_t> strides(extents.size());
    int64_t stride = 1;
    for (size_t i = extents.size(); i-- > 0;) {
      strides[i] = stride;
      stride *= extents[i];
    }
    void* const result = make(17);
    set_enumerator(result, 901, 1, 0);
    set(result, 902, extents);
    set(result, 903, strides);
    return finalized(result);
  }

  // A forward convolution of 16 x 64 x 56 x 56 with 64 filters of 3 x 3.
  void* forward() {
    void* const description = make(1);
    set(description, 102, {1, 1});
    set(description, 103, {1, 1});
    finalized(description);
    void* const operation = make(10);
    set(operation, 702, description);
    set(operation, 703, tensor({64, 64, 3, 3}));
    set(operation, 704, tensor({16, 64, 56, 56}));
    set(operation, 705, tensor({16, 64, 56, 56}));
    finalized(operation);
    void* const graph = make(15);
    set(graph, 801, operation);
    return finalized(graph);
  }

  std::vector<void*> configs(void* graph) {
    void* const heuristics = make(4);
    set(heuristics, 201, graph);
    finalized(heuristics);
    int64_t count = 0;
    REQUIRE(cudnnBackendGetAttribute(heuristics, 202, kDescriptorType, 0, &count, nullptr) == 0);
    std::vector<void*> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(make(3));
    REQUIRE(cudnnBackendGetAttribute(heuristics, 202, kDescriptorType, count, &count,
                                     result.data()) == 0);
    return result;
  }

  std::vector<int> notes(void* config) {
    void* engine = make(2);
    int64_t count = 0;
    REQUIRE(cudnnBackendGetAttribute(config, 300, kDescriptorType, 1, &count, &engine) == 0);
    REQUIRE(count == 1);
    std::array<int, 10> found;
    REQUIRE(cudnnBackendGetAttribute(engine, 1303, 11, found.size(), &count, found.data()) == 0);
    return {found.begin(), found.begin() + count};
  }

  void* plan(void* config) {
    void* const result = make(5);
    set(result, 401, config);
    return finalized(result);
  }

  int64_t workspace(void* plan) {
    int64_t count = 0, bytes = -1;
    REQUIRE(cudnnBackendGetAttribute(plan, 402, kInt64, 1, &count, &bytes) == 0);
    REQUIRE(count == 1);
    return bytes;
  }

 private:
  std::vector<void*> descriptors_;
};

const memledger_virtual_gpu_workspace* find_row(
    std::array<memledger_virtual_gpu_workspace, 32>& rows, const std::string& name) {
  const size_t n = memledger_virtual_gpu_workspaces(rows.data(), rows.size());
  for (size_t i = 0; i < n; ++i) {
    if (rows[i].name == name) return &rows[i];
  }
  return nullptr;
}

TEST_CASE("handles are objects of their own, and keep their stream") {
  std::set<void*> handles;
  for (int i = 0; i < 100; ++i) {
    void* handle = nullptr;
    REQUIRE(cudnnCreate(&handle) == 0);
    REQUIRE(handle != nullptr);
    CHECK(handles.insert(handle).second);
  }
  void* const some = *handles.begin();
  void* stream = nullptr;
  CHECK(cudnnSetStream(some, &stream) == 0);
  CHECK(cudnnGetStream(some, &stream) == 0);
  CHECK(stream == &stream);
  for (void* const handle : handles) CHECK(cudnnDestroy(handle) == 0);
  CHECK(cudnnCreate(nullptr) != 0);
}

TEST_CASE("cuDNN's version is one number in two functions") {
  int major = 0, minor = 0, patch = 0;
  REQUIRE(cudnnGetProperty(0, &major) == 0);
  REQUIRE(cudnnGetProperty(1, &minor) == 0);
  REQUIRE(cudnnGetProperty(2, &patch) == 0);
  CHECK(static_cast<size_t>(major * 10000 + minor * 100 + patch) == cudnnGetVersion());
  CHECK(cudnnGetProperty(3, &major) != 0);
}

TEST_CASE("cuDNN's version is that of LibTorch's wheel") {
  using memledger::virtual_gpu::cudnn_version_of;
  CHECK(cudnn_version_of("2.9.1") == 91002);
  CHECK(cudnn_version_of("2.11.0") == 91900);
  CHECK(cudnn_version_of("2.12.1") == 92000);
  CHECK(cudnn_version_of("2.13.0") == 92000);
  CHECK(cudnn_version_of("2.14.1") == 92400);
  for (const char* newest : {"2.15.0", "2.16.0", "3.0.0", "", "2.", "nightly"})
    CHECK(cudnn_version_of(newest) == 92600);
  CHECK(cudnnGetVersion() == memledger::virtual_gpu::default_cudnn_version());
}

TEST_CASE("a tensor descriptor gives back what was set, no more than asked for") {
  void* tensor = nullptr;
  REQUIRE(cudnnCreateTensorDescriptor(&tensor) == 0);
  const int extents[] = {2, 3, 4, 5}, strides[] = {60, 20, 5, 1};
  REQUIRE(cudnnSetTensorNdDescriptor(tensor, 2, 4, extents, strides) == 0);
  int type = -1, n = -1, got_extents[] = {-1, -1, -1, -1}, got_strides[] = {-1, -1, -1, -1};
  REQUIRE(cudnnGetTensorNdDescriptor(tensor, 3, &type, &n, got_extents, got_strides) == 0);
  CHECK(type == 2);
  CHECK(n == 4);
  CHECK(got_extents[2] == 4);
  CHECK(got_strides[0] == 60);
  CHECK(got_extents[3] == -1);
  CHECK(cudnnSetTensorNdDescriptor(tensor, 2, 0, extents, strides) != 0);
  char message[200];
  cudnnGetLastErrorString(message, sizeof(message));
  CHECK(std::string(message).find("without dimensions") != std::string::npos);
  cudnnGetLastErrorString(message, sizeof(message));
  CHECK(std::string(message).empty());
  CHECK(cudnnDestroyTensorDescriptor(tensor) == 0);
}

TEST_CASE(
    "a convolution's graph: the first engine with tensor cores has a note and the larger "
    "workspace, "
    "then one without, then the largest of both") {
  Graph g;
  void* const graph = g.forward();
  const auto configs = g.configs(graph);
  REQUIRE(configs.size() == 4);
  CHECK(g.notes(configs[0]) == std::vector<int>{0});
  CHECK(g.notes(configs[1]).empty());
  CHECK(g.notes(configs[2]) == std::vector<int>{0});
  CHECK(g.notes(configs[3]).empty());
  void* const plan = g.plan(configs[0]);
  CHECK(g.workspace(plan) == (2 * 16 * 64 * 56 * 56 + 64 * 64 * 9) * 4 + 16);
  CHECK(g.workspace(g.plan(configs[1])) == 0);
  // Channels up to whole tiles of 128.
  CHECK(g.workspace(g.plan(configs[2])) == (2 * 16 * 128 * 56 * 56 + 128 * 128 * 9) * 4 + 16);

  std::array<memledger_virtual_gpu_workspace, 32> rows;
  const auto* const row = find_row(rows, "cuDNN convolution forward");
  REQUIRE(row != nullptr);
  const uint64_t used = row->used;
  void* handle = nullptr;
  REQUIRE(cudnnCreate(&handle) == 0);
  CHECK(cudnnBackendExecute(handle, plan, g.finalized(g.make(16))) == 0);
  CHECK(find_row(rows, "cuDNN convolution forward")->used == used + 1);
  CHECK(cudnnDestroy(handle) == 0);
}

// LibTorch, if set to benchmark, runs each plan twice, the second time between two events.
TEST_CASE("plans that are all tried take longer the later they were named, and no longer then") {
  Graph g;
  void *handle = nullptr, *before = nullptr, *after = nullptr;
  REQUIRE(cudnnCreate(&handle) == 0);
  REQUIRE(cudaEventCreate(&before) + cudaEventCreate(&after) == 0);
  void* const pack = g.finalized(g.make(16));
  const auto milliseconds = [&](void* plan) {
    float result = -1;
    CHECK(cudaEventRecord(before, nullptr) == 0);
    CHECK(cudnnBackendExecute(handle, plan, pack) == 0);
    CHECK(cudaEventRecord(after, nullptr) == 0);
    CHECK(cudaEventElapsedTime(&result, before, after) == 0);
    return result;
  };
  float last = -1;
  for (void* const config : g.configs(g.forward())) {
    void* const plan = g.plan(config);
    CHECK(cudnnBackendExecute(handle, plan, pack) == 0);
    const float time = milliseconds(plan);
    CHECK(time > (last < 0 ? -1 : last + 900));
    last = time;
    CHECK(milliseconds(plan) < 500);
  }
  CHECK(last > 2900);
  CHECK(cudaEventDestroy(before) + cudaEventDestroy(after) + cudnnDestroy(handle) == 0);
}

TEST_CASE("descriptors hold what they are made of, whoever destroys it") {
  Graph outer;
  void* plan = nullptr;
  {
    Graph inner;
    plan = outer.plan(inner.configs(inner.forward())[0]);
  }
  CHECK(outer.workspace(plan) > 0);
}

TEST_CASE("misuse is refused: unfinalized parts, changes afterwards, plans of nothing") {
  Graph g;
  void* const operation = g.make(10);
  void* const graph = g.make(15);
  CHECK(cudnnBackendSetAttribute(graph, 801, kDescriptorType, 1, &operation) != 0);
  void* const tensor = g.tensor({2, 3});
  const int64_t extent = 4;
  CHECK(cudnnBackendSetAttribute(tensor, 902, kInt64, 1, &extent) != 0);
  CHECK(cudnnBackendFinalize(g.make(5)) != 0);
  CHECK(cudnnBackendSetAttribute(nullptr, 902, kInt64, 1, &extent) != 0);
  void* const unfinalized = g.make(5);
  void* handle = nullptr;
  REQUIRE(cudnnCreate(&handle) == 0);
  CHECK(cudnnBackendExecute(handle, unfinalized, tensor) != 0);
  CHECK(cudnnDestroy(handle) == 0);
}

TEST_CASE("the older interface's convolution has the same workspace") {
  void *x = nullptr, *y = nullptr, *w = nullptr, *shape = nullptr;
  REQUIRE(cudnnCreateTensorDescriptor(&x) == 0);
  REQUIRE(cudnnCreateTensorDescriptor(&y) == 0);
  REQUIRE(cudnnCreateFilterDescriptor(&w) == 0);
  REQUIRE(cudnnCreateConvolutionDescriptor(&shape) == 0);
  const int extents[] = {16, 64, 56, 56}, strides[] = {64 * 56 * 56, 56 * 56, 56, 1},
            filter[] = {64, 64, 3, 3}, ones[] = {1, 1};
  REQUIRE(cudnnSetTensorNdDescriptor(x, 0, 4, extents, strides) == 0);
  REQUIRE(cudnnSetTensorNdDescriptor(y, 0, 4, extents, strides) == 0);
  REQUIRE(cudnnSetFilterNdDescriptor(w, 0, 0, 4, filter) == 0);
  REQUIRE(cudnnSetConvolutionNdDescriptor(shape, 2, ones, ones, ones, 1, 0) == 0);
  size_t bytes = 0;
  REQUIRE(cudnnGetConvolutionForwardWorkspaceSize(nullptr, x, w, shape, y, 1, &bytes) == 0);
  CHECK(bytes == (2 * 16 * 64 * 56 * 56 + 64 * 64 * 9) * 4 + 16);
  cudnnDestroyTensorDescriptor(x);
  cudnnDestroyTensorDescriptor(y);
  cudnnDestroyFilterDescriptor(w);
  cudnnDestroyConvolutionDescriptor(shape);
}

TEST_CASE("recurrent weights have addresses in the space that is named") {
  void *rnn = nullptr, *matrix = nullptr, *bias = nullptr;
  REQUIRE(cudnnCreateRNNDescriptor(&rnn) == 0);
  REQUIRE(cudnnCreateTensorDescriptor(&matrix) == 0);
  REQUIRE(cudnnCreateTensorDescriptor(&bias) == 0);
  REQUIRE(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 2, 1, 0, 0, 0, 0, 5, 8, 3, 2, nullptr, 0) == 0);
  size_t bytes = 0;
  REQUIRE(cudnnGetRNNWeightSpaceSize(nullptr, rnn, &bytes) == 0);
  CHECK(bytes == 5760);
  auto* const space = reinterpret_cast<void*>(0x100000);
  void *matrix_address = nullptr, *bias_address = nullptr;
  REQUIRE(cudnnGetRNNWeightParams(nullptr, rnn, 1, bytes, space, 4, matrix, &matrix_address, bias,
                                  &bias_address) == 0);
  CHECK(reinterpret_cast<uintptr_t>(matrix_address) == 0x100000 + 1760);
  CHECK(reinterpret_cast<uintptr_t>(bias_address) == 0x100000 + 5120);
  int type = -1, n = 0, extents[3] = {}, strides[3] = {};
  REQUIRE(cudnnGetTensorNdDescriptor(matrix, 3, &type, &n, extents, strides) == 0);
  CHECK(n == 3);
  CHECK(extents[1] == 8);
  CHECK(extents[2] == 3);
  // The projection has no bias.
  REQUIRE(cudnnGetRNNWeightParams(nullptr, rnn, 0, bytes, space, 8, matrix, &matrix_address, bias,
                                  &bias_address) == 0);
  CHECK(bias_address == nullptr);
  CHECK(cudnnGetRNNWeightParams(nullptr, rnn, 4, bytes, space, 0, matrix, &matrix_address, bias,
                                &bias_address) != 0);
  CHECK(cudnnSetRNNDescriptor_v8(rnn, 0, 7, 2, 1, 0, 0, 0, 0, 5, 8, 3, 2, nullptr, 0) != 0);
  cudnnDestroyRNNDescriptor(rnn);
  cudnnDestroyTensorDescriptor(matrix);
  cudnnDestroyTensorDescriptor(bias);
}

TEST_CASE("cuBLAS: results on the host are zeros, on the device they are not touched") {
  void* handle = nullptr;
  REQUIRE(cublasCreate_v2(&handle) == 0);
  float result = 7;
  CHECK(cublasSdot_v2(handle, 3, nullptr, 1, nullptr, 1, &result) == 0);
  CHECK(result == 0);
  int index = 7;
  CHECK(cublasIsamax_v2(handle, 3, nullptr, 1, &index) == 0);
  CHECK(index == 1);
  CHECK(cublasIsamax_v2(handle, 0, nullptr, 1, &index) == 0);
  CHECK(index == 0);
  int info = 7;
  CHECK(cublasSgetrsBatched(handle, 0, 3, 1, nullptr, 3, nullptr, nullptr, 3, &info, 2) == 0);
  CHECK(info == 0);
  REQUIRE(cublasSetPointerMode_v2(handle, 1) == 0);
  result = 7;
  CHECK(cublasSdot_v2(handle, 3, nullptr, 1, nullptr, 1, &result) == 0);
  CHECK(result == 7);
  CHECK(cublasDestroy_v2(handle) == 0);
}

TEST_CASE("cuBLASLt has one algorithm for every product") {
  std::vector<uint64_t> results(3 * 12, ~uint64_t{0});
  int returned = 0;
  REQUIRE(cublasLtMatmulAlgoGetHeuristic(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                         nullptr, 3, results.data(), &returned) == 0);
  CHECK(returned == 1);
  CHECK(results[8] == 0);                 // the workspace
  CHECK((results[9] & 0xffffffff) == 0);  // the state
  CHECK(results[12] == ~uint64_t{0});     // no second result is written
  CHECK(cublasLtMatmulAlgoGetHeuristic(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                       nullptr, 0, results.data(), &returned) != 0);
}

TEST_CASE("cuFFT, cuSOLVER, cuSPARSE: sizes are given") {
  int plan = 0;
  REQUIRE(cufftCreate(&plan) == 0);
  long long lengths[] = {64, 64, 64, 64};
  size_t bytes = 0;
  REQUIRE(cufftXtMakePlanMany(plan, 2, lengths, nullptr, 1, 1, 4, nullptr, 1, 1, 4, 3, &bytes, 4) ==
          0);
  CHECK(bytes == 0);  // the least
  CHECK(cufftXtMakePlanMany(plan, 4, lengths, nullptr, 1, 1, 4, nullptr, 1, 1, 4, 3, &bytes, 4) !=
        0);
  CHECK(cufftXtMakePlanMany(0, 2, lengths, nullptr, 1, 1, 4, nullptr, 1, 1, 4, 3, &bytes, 4) != 0);

  void* solver = nullptr;
  REQUIRE(cusolverDnCreate(&solver) == 0);
  int elements = 0;
  CHECK(cusolverDnSgetrf_bufferSize(solver, 10, 30, nullptr, 10, &elements) == 0);
  CHECK(static_cast<uint64_t>(elements) == lu_work(10, 30).least);
  CHECK(cusolverDnSsyevd_bufferSize(solver, 1, 0, 10, nullptr, 10, nullptr, &elements) == 0);
  CHECK(static_cast<uint64_t>(elements) == eigen_work(10).least);
  // More elements than the older interface can report.
  CHECK(cusolverDnSsyevd_bufferSize(solver, 1, 0, 30000, nullptr, 1, nullptr, &elements) != 0);
  size_t host_bytes = 7;
  CHECK(cusolverDnXgeqrf_bufferSize(solver, nullptr, 5, 10, 1, nullptr, 5, 1, nullptr, 1, &bytes,
                                    &host_bytes) == 0);
  CHECK(bytes == qr_work(5, 10).least * 8);
  CHECK(host_bytes == 0);
  std::array<double, 3> norms = {7, 7, 7};
  CHECK(cusolverDnSgesvdaStridedBatched(solver, 0, 0, 2, 2, nullptr, 2, 4, nullptr, 2, nullptr, 2,
                                        4, nullptr, 2, 4, nullptr, 0, nullptr, norms.data(),
                                        2) == 0);
  CHECK(norms == std::array<double, 3>{0, 0, 7});
  CHECK(cusolverDnDestroy(solver) == 0);

  void* matrix = nullptr;
  REQUIRE(cusparseCreateCsr(&matrix, 5, 7, 11, nullptr, nullptr, nullptr, 2, 2, 0, 0) == 0);
  int64_t rows = 0, columns = 0, entries = 0;
  REQUIRE(cusparseSpMatGetSize(matrix, &rows, &columns, &entries) == 0);
  CHECK(rows == 5);
  CHECK(columns == 7);
  CHECK(entries == 11);
  // Asked without a buffer for its size, then with it.
  CHECK(cusparseSpGEMM_workEstimation(nullptr, 0, 0, nullptr, matrix, matrix, nullptr, nullptr, 0,
                                      0, nullptr, &bytes, nullptr) == 0);
  CHECK(bytes == 0);
  CHECK(cusparseSpGEMM_compute(nullptr, 0, 0, nullptr, matrix, matrix, nullptr, nullptr, 0, 0,
                               nullptr, &bytes, nullptr) == 0);
  CHECK(bytes == 11 * 11 * 24 / 7);  // as if entries lay anywhere alike
  bytes = 5;
  CHECK(cusparseSpGEMM_compute(nullptr, 0, 0, nullptr, matrix, matrix, nullptr, nullptr, 0, 0,
                               nullptr, &bytes, &bytes) == 0);
  CHECK(bytes == 5);
  // A result's size is a value that only the device has.
  void* product = nullptr;
  REQUIRE(cusparseCreateCsr(&product, 5, 7, 0, nullptr, nullptr, nullptr, 2, 2, 0, 0) == 0);
  CHECK(cusparseSpGEMM_compute(nullptr, 0, 0, nullptr, matrix, matrix, nullptr, product, 0, 0,
                               nullptr, &bytes, &bytes) == 0);
  REQUIRE(cusparseSpMatGetSize(product, &rows, &columns, &entries) == 0);
  CHECK(entries == 13);
  CHECK(cusparseDestroySpMat(product) == 0);
  std::array<memledger_virtual_gpu_library_size, 8> sizes{};
  REQUIRE(memledger_virtual_gpu_library_sizes(sizes.data(), sizes.size()) >= 1);
  CHECK(std::string(sizes[0].what) == "cuSPARSE's product of sparse matrices");
  CHECK(sizes[0].count == 2);
  CHECK(sizes[0].has_upper_bound == 1);
  CHECK(cusparseSpGEMM_compute(nullptr, 0, 0, nullptr, nullptr, matrix, nullptr, nullptr, 0, 0,
                               nullptr, &bytes, nullptr) != 0);
  int total = 0;
  CHECK(cusparseXcsrgeam2Nnz(nullptr, 5, 7, nullptr, 3, nullptr, nullptr, nullptr, 4, nullptr,
                             nullptr, nullptr, nullptr, &total, nullptr) == 0);
  CHECK(total == 7);
  CHECK(cusparseDestroySpMat(matrix) == 0);

  std::array<unsigned char, 11 << 10> descriptor{};
  size_t compressed = 0;
  CHECK(cusparseLtSpMMACompressedSize2(nullptr, descriptor.data(), &compressed, &bytes) != 0);
  REQUIRE(cusparseLtStructuredDescriptorInit(nullptr, descriptor.data(), 128, 64, 64, 16, 2, 0,
                                             0) == 0);
  REQUIRE(cusparseLtSpMMACompressedSize2(nullptr, descriptor.data(), &compressed, &bytes) == 0);
  CHECK(compressed == 128 * 64 / 2 * 2 + 128 * 64 / 2 * 2 / 8);
  CHECK(bytes == 0);
}

TEST_CASE("batch norm, CTC and dropout: descriptors reach the model") {
  void *x = nullptr, *loss = nullptr;
  REQUIRE(cudnnCreateTensorDescriptor(&x) == 0);
  const int extents[] = {16, 64, 112, 112}, channels_last[] = {64 * 112 * 112, 1, 112 * 64, 64};
  const int elements = 16 * 64 * 112 * 112;
  REQUIRE(cudnnSetTensorNdDescriptor(x, 0, 4, extents, channels_last) == 0);
  size_t bytes = 7;
  const auto forward = [&](int mode) {
    return cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(nullptr, mode, 0, x, x, x, x,
                                                                    nullptr, &bytes);
  };
  CHECK(forward(2) == 0);
  CHECK(bytes == elements / 8 + 1024);
  CHECK(forward(1) == 0);
  CHECK(bytes == 0);
  CHECK(cudnnGetBatchNormalizationBackwardExWorkspaceSize(nullptr, 2, 0, x, x, x, x, x, x, nullptr,
                                                          &bytes) == 0);
  CHECK(bytes == elements / 12 + 1024);
  CHECK(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(nullptr, 2, 0, nullptr, x, &bytes) ==
        0);
  CHECK(bytes == 0);

  const int probabilities[] = {50, 3, 20}, strides[] = {60, 20, 1}, lengths[] = {4, 10, 7};
  REQUIRE(cudnnSetTensorNdDescriptor(x, 0, 3, probabilities, strides) == 0);
  REQUIRE(cudnnCreateCTCLossDescriptor(&loss) == 0);
  REQUIRE(cudnnSetCTCLossDescriptor_v9(loss, 0, 0, 0, 255) == 0);
  REQUIRE(cudnnGetCTCLossWorkspaceSize(nullptr, x, x, nullptr, lengths, nullptr, 0, loss, &bytes) ==
          0);
  CHECK(bytes == ctc_workspace_bytes(50, 3, 20, 21, 10));
  REQUIRE(cudnnGetCTCLossWorkspaceSize_v8(nullptr, 0, loss, x, x, &bytes) == 0);
  CHECK(bytes == ctc_v8_workspace_bytes(50, 3, 20, 255));
  REQUIRE(cudnnSetTensorNdDescriptor(x, 0, 2, probabilities, strides) == 0);
  CHECK(cudnnGetCTCLossWorkspaceSize_v8(nullptr, 0, loss, x, x, &bytes) != 0);
  cudnnDestroyCTCLossDescriptor(loss);
  cudnnDestroyTensorDescriptor(x);

  REQUIRE(cudnnDropoutGetStatesSize(nullptr, &bytes) == 0);
  CHECK(bytes == 24 * 132 * 2048);
}

TEST_CASE("NCCL: one process stands for any rank") {
  UniqueId id, other;
  REQUIRE(ncclGetUniqueId(&id) == 0);
  REQUIRE(ncclGetUniqueId(&other) == 0);
  CHECK(std::memcmp(&id, &other, sizeof(id)) != 0);
  void* world = nullptr;
  REQUIRE(ncclCommInitRank(&world, 8, id, 3) == 0);
  int ranks = 0, rank = 0, error = 7;
  CHECK(ncclCommCount(world, &ranks) == 0);
  CHECK(ranks == 8);
  CHECK(ncclCommUserRank(world, &rank) == 0);
  CHECK(rank == 3);
  CHECK(ncclCommGetAsyncError(world, &error) == 0);
  CHECK(error == 0);
  void* part = world;
  CHECK(ncclCommSplit(world, -1, 0, &part, nullptr) == 0);
  CHECK(part == nullptr);
  CHECK(ncclCommInitRank(&part, 8, id, 8) != 0);
  CHECK(ncclCommDestroy(world) == 0);
}

// Figures by hand from NCCL 2.28's sources, for 24 collective, 32 point-to-point and 16 multicast
// channels; see virtual_gpu/nccl_memory.h.
TEST_CASE("NCCL: communicators take memory of the device and give it back") {
  constexpr size_t kMiB = 1 << 20;
  constexpr int kFloat = 7;
  const auto free_bytes = [] {
    size_t free_now = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&free_now, &total) == 0);
    return free_now;
  };
  const size_t before = free_bytes();
  const auto taken = [&] { return (before - free_bytes()) / kMiB; };
  UniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == 0);
  void* world = nullptr;
  REQUIRE(ncclCommInitRank(&world, 8, id, 3) == 0);
  CHECK(taken() == 256 + 2 * 24 * 12);  // pool of sends, ring and tree
  CHECK(ncclBroadcast(nullptr, nullptr, 0, kFloat, 0, world, nullptr) == 0);
  CHECK(ncclReduceScatter(nullptr, nullptr, 0, kFloat, 0, world, nullptr) == 0);
  CHECK(taken() == 832);
  CHECK(ncclAllReduce(nullptr, nullptr, 0, kFloat, 0, world, nullptr) == 0);
  CHECK(taken() == 32 * 3 * 2 + 16 * 2 + 2 + 2 * 24 * 12 + 16 * 2 * 8);
  CHECK(ncclAllReduce(nullptr, nullptr, 0, kFloat, 0, world, nullptr) == 0);
  CHECK(taken() == 1058);
  // All-to-all, as LibTorch does it.
  for (int round = 0; round < 2; ++round) {
    for (int peer = 0; peer < 8; ++peer) {
      CHECK(ncclSend(nullptr, 0, kFloat, peer, world, nullptr) == 0);
      CHECK(ncclRecv(nullptr, 0, kFloat, peer, world, nullptr) == 0);
    }
    CHECK(taken() == 1058 + 7 * 32 * 12);
  }
  CHECK(ncclSend(nullptr, 0, kFloat, 8, world, nullptr) != 0);
  void* second = nullptr;
  CHECK(ncclCommSplit(world, 0, 0, &second, nullptr) == 0);
  CHECK(taken() == 1058 + 7 * 32 * 12 + 832);
  CHECK(ncclCommDestroy(world) == 0);
  CHECK(taken() == 832);
  CHECK(ncclCommAbort(second) == 0);
  CHECK(taken() == 0);

  // Two ranks have no tree besides the ring; one has nobody to connect to, but more channels.
  REQUIRE(ncclCommInitRank(&world, 2, id, 0) == 0);
  CHECK(taken() == 256 + 24 * 12);
  CHECK(ncclCommDestroy(world) == 0);
  REQUIRE(ncclCommInitRank(&world, 1, id, 0) == 0);
  CHECK(ncclAllReduce(nullptr, nullptr, 0, kFloat, 0, world, nullptr) == 0);
  CHECK(taken() == 512);
  CHECK(ncclCommDestroy(world) == 0);

  // What the program says of channels and buffers.
  struct {
    size_t bytes;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
  } config{sizeof config, 0xcafebeef, 22809, 1, 4, 1, 8};
  REQUIRE(ncclCommInitRankConfig(&world, 8, id, 3, &config) == 0);
  CHECK(taken() == 64 + 2 * 8 * 12);
  CHECK(ncclCommDestroy(world) == 0);
  setenv("NCCL_MAX_NCHANNELS", "4", 1);
  setenv("NCCL_BUFFSIZE", "1048576", 1);
  REQUIRE(ncclCommInitRank(&world, 8, id, 3) == 0);
  // 128 KiB of a chunk, 16 of them for each channel; 512 KiB + 4.7 MiB + 1 MiB are 8 MiB.
  CHECK(taken() == 8 + 2 * 4 * 10);
  CHECK(ncclCommDestroy(world) == 0);
  unsetenv("NCCL_MAX_NCHANNELS");
  unsetenv("NCCL_BUFFSIZE");

  // Where there is not enough left nothing is taken.
  void* most = nullptr;
  REQUIRE(cudaMalloc(&most, before - 1000 * kMiB) == 0);
  const size_t little = free_bytes();
  REQUIRE(ncclCommInitRank(&world, 8, id, 3) == 0);
  const int status = ncclAllReduce(nullptr, nullptr, 0, kFloat, 0, world, nullptr);
  CHECK(std::string(ncclGetErrorString(status)) == "unhandled cuda error");
  CHECK(std::string(ncclGetLastError(world)).find("out of memory") != std::string::npos);
  CHECK(ncclAllReduce(nullptr, nullptr, 0, kFloat, 0, world, nullptr) == status);
  CHECK(ncclBroadcast(nullptr, nullptr, 0, kFloat, 0, world, nullptr) == 0);
  CHECK(free_bytes() == little - 832 * kMiB);
  CHECK(ncclCommInitRank(&second, 8, id, 3) == status);
  CHECK(second == nullptr);
  CHECK(free_bytes() == little - 832 * kMiB);
  CHECK(cudaFree(most) == 0);

  // A reset takes it with it.
  CHECK(cudaDeviceReset() == 0);
  CHECK(taken() == 0);
  CHECK(ncclCommDestroy(world) == 0);
  CHECK(taken() == 0);
  // Ends what the next case begins.
  CHECK(cudaLaunchKernel(nullptr, {1, 1, 1}, {1, 1, 1}, nullptr, 0, nullptr) == 0);
}

// As DistributedDataParallel does, before it trusts that the model is the same everywhere.
TEST_CASE("NCCL: what ranks tell each other is read back") {
  constexpr int kToDevice = 1, kToHost = 2, kLong = 4, kDouble = 8;
  UniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == 0);
  void *world = nullptr, *mine = nullptr, *all = nullptr;
  REQUIRE(cudaMalloc(&mine, sizeof(int64_t)) == 0);
  REQUIRE(cudaMalloc(&all, 3 * sizeof(int64_t)) == 0);
  const int64_t count = 42;
  std::array<int64_t, 3> read;
  const auto check_read = [&](const std::array<int64_t, 3>& expected) {
    read.fill(7);
    REQUIRE(cudaMemcpy(read.data(), all, sizeof(read), kToHost) == 0);
    INFO(read[0] << " " << read[1] << " " << read[2] << ", not " << expected[0] << " "
                 << expected[1] << " " << expected[2]);
    CHECK(read == expected);
  };
  const auto write = [&](void* to) {
    REQUIRE(cudaMemcpy(to, &count, sizeof(count), kToDevice) == 0);
  };
  const auto run_kernels = [](int kernels) {
    for (int i = 0; i < kernels; ++i)
      REQUIRE(cudaLaunchKernel(nullptr, {1, 1, 1}, {1, 1, 1}, nullptr, 0, nullptr) == 0);
  };
  REQUIRE(ncclCommInitRank(&world, 3, id, 1) == 0);
  // Copies alone, as Gloo's are: until a kernel, which could have written over them.
  write(all);
  check_read({42, 0, 0});
  run_kernels(1);
  check_read({0, 0, 0});
  write(all);
  CHECK(cublasSgemmEx() == 0);
  check_read({0, 0, 0});

  // Sizes are computed with before they are read: a kernel before and some behind the collective.
  write(mine);
  run_kernels(1);
  REQUIRE(ncclAllGather(mine, all, 1, kLong, world, nullptr) == 0);
  run_kernels(70);
  check_read({42, 42, 42});
  run_kernels(10);
  check_read({0, 0, 0});
  // With more ranks there are more to compare.
  void* larger = nullptr;
  REQUIRE(ncclCommInitRank(&larger, 64, id, 1) == 0);
  write(all);
  REQUIRE(ncclBroadcast(all, all, 1, kLong, 1, larger, nullptr) == 0);
  run_kernels(300);
  check_read({42, 0, 0});
  run_kernels(30);
  check_read({0, 0, 0});
  CHECK(ncclCommDestroy(larger) == 0);
  // What the host wrote long ago is no longer what lies there.
  write(mine);
  run_kernels(80);
  REQUIRE(ncclAllGather(mine, all, 1, kLong, world, nullptr) == 0);
  check_read({0, 0, 0});
  // Only integers are sizes.
  write(mine);
  run_kernels(1);
  REQUIRE(ncclAllGather(mine, all, 1, kDouble, world, nullptr) == 0);
  check_read({0, 0, 0});
  // A part is overwritten, by a fill and by a copy of what is not known; a copy takes what is.
  write(mine);
  REQUIRE(ncclAllGather(mine, all, 1, kLong, world, nullptr) == 0);
  run_kernels(1);
  REQUIRE(cudaMemset(all, 0, sizeof(int64_t)) == 0);
  check_read({0, 42, 42});
  void* other = nullptr;
  REQUIRE(cudaMalloc(&other, sizeof(int64_t)) == 0);
  REQUIRE(cudaMemcpy(static_cast<int64_t*>(all) + 2, other, sizeof(int64_t), 3) == 0);
  check_read({0, 42, 0});
  REQUIRE(cudaMemcpy(all, static_cast<int64_t*>(all) + 1, sizeof(int64_t), 3) == 0);
  check_read({42, 42, 0});
  // In place, from another rank: what this one has stays.
  write(all);
  REQUIRE(ncclBroadcast(all, all, 1, kLong, 0, world, nullptr) == 0);
  run_kernels(1);
  check_read({42, 42, 0});
  // Freed memory is forgotten.
  REQUIRE(cudaFree(all) == 0);
  void* again = nullptr;
  REQUIRE(cudaMalloc(&again, 3 * sizeof(int64_t)) == 0);
  CHECK(again == all);
  check_read({0, 0, 0});
  for (void* block : {all, mine, other}) CHECK(cudaFree(block) == 0);
  CHECK(ncclCommDestroy(world) == 0);
}

TEST_CASE("many threads make, ask and destroy") {
  std::vector<std::thread> threads;
  std::array<int, 4> sums{};
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&sums, t] {
      for (int i = 0; i < 200; ++i) {
        void *handle = nullptr, *descriptor = nullptr;
        sums[t] += cudnnCreate(&handle) + cudnnBackendCreateDescriptor(5, &descriptor);
        note_workspace_asked(WorkspaceKind::kCufft, t * 1000 + i);
        sums[t] += cudnnBackendDestroyDescriptor(descriptor) + cudnnDestroy(handle);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(sums == std::array<int, 4>{});
}

}  // namespace
}  // namespace memledger::virtual_gpu
