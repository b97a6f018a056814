#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

// Copies and fills of the driver, and those of variables, are work on a stream, as those of the
// runtime are. On a device that lags behind (events=late) the host waits for what it reads. A
// capture makes them nodes, or ends. The answers are linked in.

extern "C" {
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
}

namespace {

char variable[64];

CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr address = 0;
  REQUIRE(cuMemAlloc(&address, bytes) == CUDA_SUCCESS);
  return address;
}

CUDA_MEMCPY2D rows_to_host(void* host, CUdeviceptr device) {
  CUDA_MEMCPY2D copy;
  std::memset(&copy, 0, sizeof copy);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = device;
  copy.srcPitch = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host;
  copy.dstPitch = 8;
  copy.WidthInBytes = 4;
  copy.Height = 2;
  return copy;
}

CUDA_MEMCPY3D slices_to_device(CUdeviceptr device, const void* host) {
  CUDA_MEMCPY3D copy;
  std::memset(&copy, 0, sizeof copy);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = 4;
  copy.srcHeight = 2;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device;
  copy.dstXInBytes = 4;
  copy.dstPitch = 16;
  copy.dstHeight = 4;
  copy.WidthInBytes = 4;
  copy.Height = 2;
  copy.Depth = 2;
  return copy;
}

struct Call {
  const char* name;
  std::function<int()> call;
};

// All with the legacy stream.
std::vector<Call> copies_that_wait(CUdeviceptr device, void* host, void* pinned) {
  return {
      {"cuMemcpyDtoH", [=] { return cuMemcpyDtoH(host, device, 4); }},
      {"cuMemcpyHtoD", [=] { return cuMemcpyHtoD(device, host, 4); }},
      {"cuMemcpy", [=] { return cuMemcpy(reinterpret_cast<CUdeviceptr>(pinned), device, 4); }},
      {"cuMemcpyPeer",
       [=] {
         return cuMemcpyPeer(reinterpret_cast<CUdeviceptr>(pinned), nullptr, device, nullptr, 4);
       }},
      {"cuMemcpy2D",
       [=] {
         const CUDA_MEMCPY2D copy = rows_to_host(host, device);
         return cuMemcpy2D(&copy);
       }},
      {"cuMemcpy3D",
       [=] {
         const CUDA_MEMCPY3D copy = slices_to_device(device, host);
         return cuMemcpy3D(&copy);
       }},
      {"cudaMemcpyToSymbol",
       [=] { return cudaMemcpyToSymbol(variable, host, 4, 8, cudaMemcpyHostToDevice); }},
      {"cudaMemcpyFromSymbol",
       [=] { return cudaMemcpyFromSymbol(host, variable, 4, 8, cudaMemcpyDeviceToHost); }},
      {"cuMemsetD8 of pinned memory",
       [=] { return cuMemsetD8(reinterpret_cast<CUdeviceptr>(pinned), 1, 4); }},
      {"cudaMemset of pinned memory", [=] { return cudaMemset(pinned, 1, 4); }},
  };
}

std::vector<Call> work_that_lags(CUdeviceptr device) {
  return {
      {"cuMemcpyDtoD", [=] { return cuMemcpyDtoD(device, device + 64, 4); }},
      {"cuMemsetD8", [=] { return cuMemsetD8(device, 1, 4); }},
      {"cuMemsetD32", [=] { return cuMemsetD32(device, 1, 4); }},
      {"cuMemsetD2D16", [=] { return cuMemsetD2D16(device, 8, 1, 2, 2); }},
      {"cudaMemset", [=] { return cudaMemset(reinterpret_cast<void*>(device), 1, 4); }},
  };
}

TEST_CASE("what a synchronous copy reads or writes is done, and a fill of the device lags") {
  const CUdeviceptr device = allocate(256);
  char host[64] = {};
  void* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 64) == cudaSuccess);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  const auto lag = [&] {
    REQUIRE(cudaLaunchKernel(nullptr, 1, 1, nullptr, 0, nullptr) == cudaSuccess);
    REQUIRE(cudaEventRecord(event, nullptr) == cudaSuccess);
    REQUIRE(cudaEventQuery(event) == cudaErrorNotReady);
  };
  for (const Call& call : copies_that_wait(device, host, pinned)) {
    INFO(call.name);
    lag();
    CHECK(call.call() == 0);
    CHECK(cudaEventQuery(event) == cudaSuccess);
  }
  for (const Call& call : work_that_lags(device)) {
    INFO(call.name);
    lag();
    CHECK(call.call() == 0);
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    // It is work of its own: what is recorded after it is not done either.
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(call.call() == 0);
    CHECK(cudaStreamQuery(nullptr) == cudaErrorNotReady);
  }
  cudaGetLastError();
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cuMemFree(device) == CUDA_SUCCESS);
}

// The legacy stream would wait for the one that captures, which ends the capture.
TEST_CASE("a synchronous copy while a blocking stream captures is refused") {
  const CUdeviceptr device = allocate(256);
  char host[64] = {};
  void* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 64) == cudaSuccess);
  std::vector<Call> calls = copies_that_wait(device, host, pinned);
  for (const Call& call : work_that_lags(device)) calls.push_back(call);
  // The variable's address is known before.
  REQUIRE(cudaMemcpyToSymbol(variable, host, 4, 0, cudaMemcpyHostToDevice) == cudaSuccess);
  for (const Call& call : calls) {
    INFO(call.name);
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK(call.call() == cudaErrorStreamCaptureImplicit);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  }
  cudaGetLastError();
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cuMemFree(device) == CUDA_SUCCESS);
}

TEST_CASE("asynchronous copies and fills become nodes that a launch does") {
  const CUdeviceptr device = allocate(256);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  const char source[] = "abcdefgh01234567";
  char rows[16] = {};
  char word[4] = {};
  REQUIRE(cudaMemcpyToSymbol(variable, "none", 4, 0, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  const CUDA_MEMCPY3D in = slices_to_device(device, source);
  CHECK(cuMemcpy3DAsync(&in, stream) == CUDA_SUCCESS);
  CUDA_MEMCPY2D out = rows_to_host(rows, device);
  out.srcXInBytes = 4;
  CHECK(cuMemcpy2DAsync(&out, stream) == CUDA_SUCCESS);
  CHECK(cuMemsetD2D8Async(device + 128, 8, '!', 2, 2, stream) == CUDA_SUCCESS);
  CHECK(cudaMemcpyToSymbolAsync(variable, "word", 4, 4, cudaMemcpyHostToDevice, stream) ==
        cudaSuccess);
  CHECK(cuMemcpyDtoHAsync(word, device + 128, 4, stream) == CUDA_SUCCESS);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 5);
  CHECK(std::string(rows, 4) == std::string(4, '\0'));
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(std::string(rows, 12) == std::string("abcd\0\0\0\0efgh", 12));
  CHECK(std::string(word, 4) == std::string("!!\0\0", 4));
  char back[16] = {};
  // The second slice: four rows of 16 bytes after the first.
  CHECK(cuMemcpyDtoH(back, device + 64, 16) == CUDA_SUCCESS);
  CHECK(std::string(back, 8) == std::string("\0\0\0\0"
                                            "0123",
                                            8));
  CHECK(cudaMemcpyFromSymbol(back, variable, 8, 0, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back, 8) == "noneword");
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cuMemFree(device) == CUDA_SUCCESS);
}

TEST_CASE("what is beyond a variable, or is no memory, is refused") {
  char host[128] = {};
  CHECK(cudaMemcpyToSymbol(variable, host, 60, 8, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyFromSymbol(host, variable, 1, 64, cudaMemcpyDeviceToHost) ==
        cudaErrorInvalidValue);
  CHECK(cudaMemcpyFromSymbol(host, variable, 64, 0, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(cudaMemcpyToSymbol(host, host, 4, 0, cudaMemcpyHostToDevice) == cudaErrorInvalidSymbol);
  CHECK(cuMemcpyHtoD(0x1000, host, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpy2D(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY2D copy = rows_to_host(host, allocate(256));
  copy.srcPitch = 2;
  CHECK(cuMemcpy2D(&copy) == static_cast<CUresult>(cudaErrorInvalidPitchValue));
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  CHECK(cuMemcpy2D(&copy) == CUDA_ERROR_NOT_SUPPORTED);
  cudaGetLastError();
}

}  // namespace

int main(int argc, char** argv) {
  // Read at the first CUDA call.
  setenv("MEMLEDGER_VIRTUAL_GPU", "a100:256MiB,keep=4KiB,events=late", 1);
  static char name[] = "variable";
  __cudaRegisterVar(nullptr, variable, name, name, 0, sizeof variable, 0, 0);
  return doctest::Context(argc, argv).run();
}
