#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/virtual_gpu/made_device_code.h"
#include "virtual_gpu/known_values.h"
#include "virtual_gpu/machine.h"

// The runtime's and the driver's functions as a program calls them. The answers are linked in, no
// library is preloaded.

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*);
int nvrtcGetCUBINSize(void*, size_t*);
int nvrtcGetCUBIN(void*, char*);
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
}

using namespace memledger::virtual_gpu;

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kCapacity = 256 * kMiB;

size_t free_bytes() {
  size_t free_now = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free_now, &total) == cudaSuccess);
  CHECK(total == kCapacity);
  return free_now;
}

void* allocate(size_t bytes) {
  void* pointer = nullptr;
  REQUIRE(cudaMalloc(&pointer, bytes) == cudaSuccess);
  return pointer;
}

// Runs `action` with the error expected, and takes it from the thread.
void expect(cudaError_t wanted, cudaError_t got) {
  CHECK(got == wanted);
  CHECK(cudaPeekAtLastError() == wanted);
  CHECK(cudaGetLastError() == wanted);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("no library of NVIDIA is in this process") {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    INFO(line);
    for (const char* name : {"libcudart", "libcuda.so", "libcublas", "libcudnn", "libnvidia"})
      CHECK(line.find(name) == std::string::npos);
  }
}

TEST_CASE("devices and their numbers") {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 2);
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
  expect(cudaErrorInvalidDevice, cudaSetDevice(2));
  expect(cudaErrorInvalidDevice, cudaSetDevice(-1));
  CHECK(cudaSetDevice(1) == cudaSuccess);
  // Each thread has its own.
  std::thread([] {
    int other = -1;
    CHECK(cudaGetDevice(&other) == cudaSuccess);
    CHECK(other == 0);
  }).join();
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 1);
  CHECK(cudaSetDevice(0) == cudaSuccess);

  int runtime = 0, driver = 0;
  CHECK(cudaRuntimeGetVersion(&runtime) == cudaSuccess);
  CHECK(cudaDriverGetVersion(&driver) == cudaSuccess);
  CHECK(runtime == CUDART_VERSION);
  CHECK(driver >= runtime);
}

TEST_CASE("properties are the profile's, and attributes agree with them") {
  cudaDeviceProp p;
  REQUIRE(cudaGetDeviceProperties(&p, 1) == cudaSuccess);
  CHECK(std::string(p.name) == "NVIDIA A100-SXM4-80GB");
  CHECK(p.major == 8);
  CHECK(p.minor == 0);
  CHECK(p.multiProcessorCount == 108);
  CHECK(p.totalGlobalMem == kCapacity);
  CHECK(p.sharedMemPerBlockOptin == 163 << 10);
  const auto attribute = [](cudaDeviceAttr which) {
    int value = -1;
    CHECK(cudaDeviceGetAttribute(&value, which, 1) == cudaSuccess);
    return value;
  };
  CHECK(attribute(cudaDevAttrMultiProcessorCount) == p.multiProcessorCount);
  CHECK(attribute(cudaDevAttrComputeCapabilityMajor) == p.major);
  CHECK(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) ==
        static_cast<int>(p.sharedMemPerBlockOptin));
  CHECK(attribute(cudaDevAttrMaxThreadsPerMultiProcessor) == p.maxThreadsPerMultiProcessor);
  CHECK(attribute(cudaDevAttrL2CacheSize) == p.l2CacheSize);
  CHECK(attribute(cudaDevAttrWarpSize) == 32);
  CHECK(attribute(cudaDevAttrPciBusId) == p.pciBusID);
  expect(cudaErrorInvalidDevice, cudaGetDeviceProperties(&p, 2));

  char bus[32];
  CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, 1) == cudaSuccess);
  int device = -1;
  CHECK(cudaDeviceGetByPCIBusId(&device, bus) == cudaSuccess);
  CHECK(device == 1);
  expect(cudaErrorInvalidDevice, cudaDeviceGetByPCIBusId(&device, "0000:FF:00.0"));
}

TEST_CASE("memory ends at the capacity") {
  const size_t before = free_bytes();
  void* const half = allocate(kCapacity / 2);
  CHECK(free_bytes() == before - kCapacity / 2);
  void* more = half;
  expect(cudaErrorMemoryAllocation, cudaMalloc(&more, kCapacity));
  CHECK(more == nullptr);
  CHECK(cudaFree(half) == cudaSuccess);
  CHECK(free_bytes() == before);
  expect(cudaErrorInvalidValue, cudaFree(half));
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(cudaMalloc(&more, 0) == cudaSuccess);
  CHECK(more == nullptr);
  expect(cudaErrorInvalidValue, cudaMalloc(nullptr, 1));
}

TEST_CASE("pointers know where they are from") {
  void* const device = allocate(1000);
  void* pinned = nullptr;
  REQUIRE(cudaHostAlloc(&pinned, 1000, cudaHostAllocDefault) == cudaSuccess);
  std::vector<char> own(1000);
  const auto attributes = [](const void* pointer) {
    cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, pointer) == cudaSuccess);
    return a;
  };
  CHECK(attributes(device).type == cudaMemoryTypeDevice);
  CHECK(attributes(device).device == 0);
  CHECK(attributes(static_cast<char*>(device) + 999).devicePointer ==
        static_cast<char*>(device) + 999);
  CHECK(attributes(pinned).type == cudaMemoryTypeHost);
  CHECK(attributes(pinned).hostPointer == pinned);
  CHECK(attributes(own.data()).type == cudaMemoryTypeUnregistered);
  CHECK(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault) == cudaSuccess);
  CHECK(attributes(own.data()).type == cudaMemoryTypeHost);
  expect(cudaErrorHostMemoryAlreadyRegistered,
         cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault));
  CHECK(cudaHostUnregister(own.data()) == cudaSuccess);
  expect(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(own.data()));
  expect(cudaErrorInvalidValue, cudaFree(pinned));
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFree(device) == cudaSuccess);
}

TEST_CASE("copies") {
  char* const device = static_cast<char*>(allocate(4 * kMiB));
  char* const other = static_cast<char*>(allocate(4 * kMiB));
  std::vector<char> host(4 * kMiB, 'x');
  std::vector<char> back(4 * kMiB, 'y');

  // More than is kept: accepted, and read back as zeros.
  CHECK(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(other, device, host.size(), cudaMemcpyDeviceToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(back.data(), other, back.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::all_of(back.begin(), back.end(), [](char c) { return c == 0; }));

  // What is kept comes back, also through another block, and until its memory is freed.
  CHECK(cudaMemcpyAsync(device + 100, "hello", 5, cudaMemcpyDefault, nullptr) == cudaSuccess);
  CHECK(cudaMemcpy(other + 7, device + 100, 5, cudaMemcpyDeviceToDevice) == cudaSuccess);
  std::memset(back.data(), 'y', 10);
  CHECK(cudaMemcpy(back.data(), other + 6, 7, cudaMemcpyDefault) == cudaSuccess);
  CHECK(std::string(back.data(), 8) == std::string("\0hello\0y", 8));
  CHECK(cudaMemset(other + 8, '-', 3) == cudaSuccess);
  CHECK(cudaMemcpy(back.data(), other + 7, 5, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back.data(), 5) == "h---o");
  CHECK(cudaFree(other) == cudaSuccess);
  char* const again = static_cast<char*>(allocate(4 * kMiB));
  CHECK(again == other);
  CHECK(cudaMemcpy(back.data(), again + 7, 5, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back.data(), 5) == std::string(5, '\0'));

  // A caller that knows that an address has a new owner can say so.
  CHECK(cudaMemcpy(again, "old", 3, cudaMemcpyHostToDevice) == cudaSuccess);
  memledger_virtual_gpu_forget(again, 2);
  CHECK(cudaMemcpy(back.data(), again, 3, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back.data(), 3) == std::string("\0\0d", 3));

  // Rows.
  CHECK(cudaMemcpy2D(device, 512, "abcdef", 3, 3, 2, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(back.data(), device + 512, 3, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back.data(), 3) == "def");
  expect(cudaErrorInvalidPitchValue,
         cudaMemcpy2D(device, 2, "abcdef", 3, 3, 2, cudaMemcpyHostToDevice));

  // Host to host is a real copy.
  CHECK(cudaMemcpy(back.data(), host.data(), host.size(), cudaMemcpyHostToHost) == cudaSuccess);
  CHECK(back == host);
  CHECK(cudaMemcpy(back.data(), "default", 7, cudaMemcpyDefault) == cudaSuccess);
  CHECK(std::string(back.data(), 7) == "default");

  // A wrong kind, a wrong address, a block's end.
  expect(cudaErrorInvalidValue, cudaMemcpy(back.data(), device, 1, cudaMemcpyHostToDevice));
  expect(cudaErrorInvalidValue, cudaMemcpy(device, back.data(), 1, cudaMemcpyDeviceToHost));
  expect(cudaErrorInvalidValue, cudaMemcpy(back.data(), host.data(), 1, cudaMemcpyDeviceToDevice));
  expect(cudaErrorInvalidValue,
         cudaMemcpy(device, host.data(), 4 * kMiB + 1, cudaMemcpyHostToDevice));
  expect(cudaErrorInvalidValue, cudaMemset(back.data(), 0, 1));
  expect(cudaErrorInvalidMemcpyDirection,
         cudaMemcpy(device, host.data(), 1, static_cast<cudaMemcpyKind>(77)));
  CHECK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault) == cudaSuccess);
  CHECK(cudaFree(again) == cudaSuccess);
  CHECK(cudaFree(device) == cudaSuccess);
}

TEST_CASE("copies between devices") {
  char* const on_zero = static_cast<char*>(allocate(100));
  CHECK(cudaSetDevice(1) == cudaSuccess);
  char* const on_one = static_cast<char*>(allocate(100));
  CHECK(cudaSetDevice(0) == cudaSuccess);
  int can = 0;
  CHECK(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess);
  CHECK(can == 1);
  CHECK(cudaDeviceCanAccessPeer(&can, 0, 0) == cudaSuccess);
  CHECK(can == 0);
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
  expect(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
  expect(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(0, 0));
  CHECK(cudaMemcpy(on_zero, "peer", 4, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpyPeerAsync(on_one, 1, on_zero, 0, 4, nullptr) == cudaSuccess);
  char back[5] = {};
  CHECK(cudaMemcpy(back, on_one, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back) == "peer");
  CHECK(cudaDeviceDisablePeerAccess(1) == cudaSuccess);
  expect(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
  CHECK(cudaFree(on_zero) == cudaSuccess);
  CHECK(cudaFree(on_one) == cudaSuccess);
}

TEST_CASE("streams") {
  int least = 1, greatest = 1;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
  CHECK(least == 0);
  CHECK(greatest < 0);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1) == cudaSuccess);
  int priority = 0;
  unsigned flags = 0;
  CHECK(cudaStreamGetPriority(stream, &priority) == cudaSuccess);
  CHECK(priority == -1);
  CHECK(cudaStreamGetFlags(stream, &flags) == cudaSuccess);
  CHECK(flags == cudaStreamNonBlocking);
  for (cudaStream_t any : {stream, cudaStream_t(nullptr), cudaStreamLegacy, cudaStreamPerThread}) {
    CHECK(cudaStreamQuery(any) == cudaSuccess);
    CHECK(cudaStreamSynchronize(any) == cudaSuccess);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    CHECK(cudaStreamIsCapturing(any, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusNone);
  }
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  expect(cudaErrorInvalidResourceHandle, cudaStreamQuery(stream));
  expect(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
  expect(cudaErrorInvalidResourceHandle, cudaStreamDestroy(nullptr));
}

TEST_CASE("a captured graph does its work when it is launched, as often as it is launched") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  char* const pointer = static_cast<char*>(allocate(100));
  char back[5] = {};
  int calls = 0;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusActive);
  CHECK(cudaMemcpyAsync(pointer, "peer", 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  const cudaHostFn_t count = [](void* data) { ++*static_cast<int*>(data); };
  CHECK(cudaLaunchHostFunc(stream, count, &calls) == cudaSuccess);
  void* of_graph = nullptr;
  CHECK(cudaMallocAsync(&of_graph, 1 << 20, stream) == cudaSuccess);
  CHECK(cudaMemsetAsync(of_graph, 0, 1 << 20, stream) == cudaSuccess);
  CHECK(cudaFreeAsync(of_graph, stream) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  CHECK(calls == 0);
  CHECK(cudaMemcpy(back, pointer, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back, 4) == std::string(4, '\0'));

  size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 5);
  cudaGraphNode_t all[5];
  CHECK(cudaGraphGetNodes(graph, all, &nodes) == cudaSuccess);
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CHECK(cudaGraphNodeGetType(all[0], &type) == cudaSuccess);
  CHECK(type == cudaGraphNodeTypeMemcpy);
  CHECK(cudaGraphNodeGetType(all[2], &type) == cudaSuccess);
  CHECK(type == cudaGraphNodeTypeMemAlloc);
  uint64_t high = 0;
  CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &high) == cudaSuccess);
  CHECK(high >= 1 << 20);

  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, stream) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(calls == 2);
  CHECK(cudaMemcpy(back, pointer, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back) == "peer");
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  // The graph's memory has gone with it.
  CHECK(cudaDeviceGraphMemTrim(0) == cudaSuccess);
  CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &high) ==
        cudaSuccess);
  CHECK(high == 0);
  expect(cudaErrorInvalidValue, cudaGraphLaunch(executable, stream));
  expect(cudaErrorInvalidValue, cudaGraphExecDestroy(executable));
  expect(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  CHECK(cudaFree(pointer) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("a capture that fails leaves stream and thread as they were") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  void* pointer = nullptr;
  expect(cudaErrorStreamCaptureUnsupported, cudaMalloc(&pointer, 100));
  cudaGraph_t graph = nullptr;
  expect(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  CHECK(graph == nullptr);
  CHECK(cudaMalloc(&pointer, 100) == cudaSuccess);
  CHECK(cudaFree(pointer) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  expect(cudaErrorStreamCaptureUnsupported,
         cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("events") {
  cudaEvent_t start = nullptr, end = nullptr, untimed = nullptr;
  REQUIRE(cudaEventCreate(&start) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming) == cudaSuccess);
  float milliseconds = -1;
  expect(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(cudaEventRecord(start, nullptr) == cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(cudaEventRecord(end, nullptr) == cudaSuccess);
  CHECK(cudaEventRecord(untimed, nullptr) == cudaSuccess);
  CHECK(cudaEventQuery(end) == cudaSuccess);
  CHECK(cudaEventSynchronize(end) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(nullptr, end, 0) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess);
  CHECK(milliseconds >= 2);
  CHECK(milliseconds < 10000);
  CHECK(cudaEventElapsedTime(&milliseconds, end, start) == cudaSuccess);
  CHECK(milliseconds <= -2);
  CHECK(cudaEventElapsedTime(&milliseconds, end, end) == cudaSuccess);
  CHECK(milliseconds > 0);
  expect(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, untimed));
  cudaEvent_t elsewhere = nullptr;
  CHECK(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(cudaEventCreate(&elsewhere) == cudaSuccess);
  CHECK(cudaEventRecord(elsewhere, nullptr) == cudaSuccess);
  expect(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, elsewhere));
  CHECK(cudaEventDestroy(elsewhere) == cudaSuccess);
  CHECK(cudaSetDevice(0) == cudaSuccess);
  expect(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, elsewhere));
  cudaIpcEventHandle_t handle;
  expect(cudaErrorNotSupported, cudaIpcGetEventHandle(&handle, start));

  // An event of another device than the stream's.
  CHECK(cudaSetDevice(1) == cudaSuccess);
  expect(cudaErrorInvalidResourceHandle, cudaEventRecord(start, nullptr));
  CHECK(cudaSetDevice(0) == cudaSuccess);
  for (cudaEvent_t event : {start, end, untimed}) CHECK(cudaEventDestroy(event) == cudaSuccess);
  expect(cudaErrorInvalidResourceHandle, cudaEventQuery(start));
}

// Memory of graphs. What is measured is what all of the device has less.

uint64_t graph_memory(cudaGraphMemAttributeType which) {
  uint64_t value = 0;
  CHECK(cudaDeviceGetGraphMemAttribute(0, which, &value) == cudaSuccess);
  return value;
}

size_t used_by_graphs() {
  CHECK(cudaDeviceGraphMemTrim(0) == cudaSuccess);
  return graph_memory(cudaGraphMemAttrUsedMemCurrent);
}

// A stream that captures.
struct Capturing {
  Capturing() {
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    begin();
  }
  ~Capturing() { CHECK(cudaStreamDestroy(stream) == cudaSuccess); }
  void begin() {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  }
  void fail() {
    void* pointer = nullptr;
    expect(cudaErrorStreamCaptureUnsupported, cudaMalloc(&pointer, 1));
    cudaGraph_t none = nullptr;
    expect(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &none));
  }
  cudaGraph_t end() {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    return graph;
  }
  void* allocate(size_t bytes) {
    void* pointer = nullptr;
    REQUIRE(cudaMallocAsync(&pointer, bytes, stream) == cudaSuccess);
    return pointer;
  }

  cudaStream_t stream = nullptr;
};

cudaGraphExec_t instantiate(cudaGraph_t graph, unsigned long long flags = 0) {
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, flags) == cudaSuccess);
  return executable;
}

TEST_CASE("memory of a graph goes with the graph, if the program did not get it") {
  const size_t before = free_bytes();
  Capturing capture;
  void* const pointer = capture.allocate(100 * kMiB);
  CHECK(used_by_graphs() == 100 * kMiB);
  SUBCASE("the capture fails") { capture.fail(); }
  SUBCASE("it is never launched") { CHECK(cudaGraphDestroy(capture.end()) == cudaSuccess); }
  SUBCASE("it is never launched, but made executable") {
    const cudaGraph_t graph = capture.end();
    const cudaGraphExec_t executable = instantiate(graph);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(used_by_graphs() == 100 * kMiB);
    CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  }
  CHECK(used_by_graphs() == 0);
  CHECK(free_bytes() == before);
  // A library that keeps the address and frees it later frees nobody else's memory.
  void* const other = allocate(100 * kMiB);
  CHECK(other != pointer);
  CHECK(cudaFreeAsync(pointer, nullptr) == cudaSuccess);
  expect(cudaErrorInvalidValue, cudaFreeAsync(pointer, nullptr));
  CHECK(free_bytes() == before - 100 * kMiB);
  CHECK(cudaFree(other) == cudaSuccess);
  CHECK(free_bytes() == before);
}

TEST_CASE("a free that is captured frees when it is launched") {
  Capturing capture;
  void* const pointer = capture.allocate(10 * kMiB);
  const cudaGraph_t first = capture.end();
  capture.begin();
  CHECK(cudaFreeAsync(pointer, capture.stream) == cudaSuccess);
  const cudaGraph_t second = capture.end();
  const cudaGraphExec_t allocates = instantiate(first), frees = instantiate(second);
  CHECK(used_by_graphs() == 10 * kMiB);
  CHECK(cudaGraphLaunch(allocates, capture.stream) == cudaSuccess);
  // It lives still.
  expect(cudaErrorInvalidValue, cudaGraphLaunch(allocates, capture.stream));
  CHECK(cudaGraphLaunch(frees, capture.stream) == cudaSuccess);
  CHECK(cudaGraphLaunch(allocates, capture.stream) == cudaSuccess);
  // What lives outlives its graph.
  CHECK(cudaGraphDestroy(first) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(allocates) == cudaSuccess);
  CHECK(used_by_graphs() == 10 * kMiB);
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeDevice);
  SUBCASE("freed on a stream") { CHECK(cudaFreeAsync(pointer, capture.stream) == cudaSuccess); }
  SUBCASE("freed at once") { CHECK(cudaFree(pointer) == cudaSuccess); }
  CHECK(used_by_graphs() == 0);
  CHECK(cudaGraphDestroy(second) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(frees) == cudaSuccess);
  // Memory that is no graph's cannot be freed by one.
  void* plain = nullptr;
  CHECK(cudaMallocAsync(&plain, kMiB, capture.stream) == cudaSuccess);
  capture.begin();
  expect(cudaErrorInvalidValue, cudaFreeAsync(plain, capture.stream));
  CHECK(cudaGraphDestroy(capture.end()) == cudaSuccess);
  CHECK(cudaFreeAsync(plain, capture.stream) == cudaSuccess);
}

TEST_CASE("a graph that frees what it takes when it is launched again") {
  Capturing capture;
  void* const pointer = capture.allocate(10 * kMiB);
  const cudaGraph_t graph = capture.end();
  const cudaGraphExec_t executable = instantiate(graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  unsigned long long flags = 0;
  CHECK(cudaGraphExecGetFlags(executable, &flags) == cudaSuccess);
  CHECK(flags == cudaGraphInstantiateFlagAutoFreeOnLaunch);
  for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(executable, capture.stream) == cudaSuccess);
  CHECK(used_by_graphs() == 10 * kMiB);
  // Freed by the program: the address stays the graph's, for the next launch.
  CHECK(cudaFreeAsync(pointer, capture.stream) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, capture.stream) == cudaSuccess);
  CHECK(cudaFreeAsync(pointer, capture.stream) == cudaSuccess);
  expect(cudaErrorInvalidValue, cudaFreeAsync(pointer, capture.stream));
  // Only one executable at a time, no copy, no part of another graph, and its nodes stay.
  cudaGraphExec_t another = nullptr;
  expect(cudaErrorNotSupported, cudaGraphInstantiate(&another, graph, 0));
  cudaGraph_t copy = nullptr;
  expect(cudaErrorNotSupported, cudaGraphClone(&copy, graph));
  cudaGraph_t outer = nullptr;
  cudaGraphNode_t node = nullptr;
  CHECK(cudaGraphCreate(&outer, 0) == cudaSuccess);
  expect(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&node, outer, nullptr, 0, graph));
  CHECK(cudaGraphDestroy(outer) == cudaSuccess);
  size_t count = 1;
  CHECK(cudaGraphGetNodes(graph, &node, &count) == cudaSuccess);
  expect(cudaErrorNotSupported, cudaGraphDestroyNode(node));
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(instantiate(graph)) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(used_by_graphs() == 0);
}

TEST_CASE("blocks of a graph share memory if one comes after the other's end") {
  Capturing capture;
  cudaStream_t side = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking) == cudaSuccess);
  cudaEvent_t fork = nullptr, join = nullptr;
  CHECK(cudaEventCreate(&fork) == cudaSuccess);
  CHECK(cudaEventCreate(&join) == cudaSuccess);
  CHECK(cudaEventRecord(fork, capture.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(side, fork, 0) == cudaSuccess);
  void* const first = capture.allocate(16 * kMiB);
  CHECK(cudaFreeAsync(first, capture.stream) == cudaSuccess);
  expect(cudaErrorInvalidValue, cudaFreeAsync(first, capture.stream));
  // Two halves, one after the other and side by side, then the whole again.
  void* const left = capture.allocate(8 * kMiB);
  void* const right = capture.allocate(8 * kMiB);
  CHECK(left == first);
  CHECK(right == static_cast<char*>(first) + 8 * kMiB);
  CHECK(used_by_graphs() == 16 * kMiB);
  CHECK(cudaFreeAsync(left, capture.stream) == cudaSuccess);
  CHECK(cudaFreeAsync(right, capture.stream) == cudaSuccess);
  void* const whole = capture.allocate(16 * kMiB);
  CHECK(whole == first);
  CHECK(used_by_graphs() == 16 * kMiB);
  CHECK(cudaFreeAsync(whole, capture.stream) == cudaSuccess);
  // The other branch may run at the same time.
  void* beside = nullptr;
  CHECK(cudaMallocAsync(&beside, 16 * kMiB, side) == cudaSuccess);
  CHECK(beside != first);
  CHECK(used_by_graphs() == 32 * kMiB);
  CHECK(cudaFreeAsync(beside, side) == cudaSuccess);
  CHECK(cudaEventRecord(join, side) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(capture.stream, join, 0) == cudaSuccess);
  const cudaGraph_t graph = capture.end();
  const cudaGraphExec_t executable = instantiate(graph);
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(executable, capture.stream) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(used_by_graphs() == 32 * kMiB);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(used_by_graphs() == 0);
  CHECK(cudaEventDestroy(fork) == cudaSuccess);
  CHECK(cudaEventDestroy(join) == cudaSuccess);
  CHECK(cudaStreamDestroy(side) == cudaSuccess);
}

// Objects that live as long as graphs. Their destructors run in another thread.

std::atomic<int> destroyed{0};

cudaUserObject_t make_object(unsigned references = 1) {
  cudaUserObject_t object = nullptr;
  REQUIRE(cudaUserObjectCreate(
              &object, &destroyed, [](void* count) { ++*static_cast<std::atomic<int>*>(count); },
              references, cudaUserObjectNoDestructorSync) == cudaSuccess);
  return object;
}

bool becomes(const std::atomic<int>& number, int wanted) {
  for (int i = 0; i < 2000 && number != wanted; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return number == wanted;
}

bool stays(const std::atomic<int>& number, int wanted) {
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  return number == wanted;
}

TEST_CASE("executables and copies of a graph keep its objects of the program") {
  destroyed = 0;
  Capturing capture;
  cudaStreamCaptureStatus status;
  cudaGraph_t captured = nullptr;
  unsigned long long id = 0;
#if CUDART_VERSION >= 13000
  REQUIRE(cudaStreamGetCaptureInfo(capture.stream, &status, &id, &captured, nullptr, nullptr,
                                   nullptr) == cudaSuccess);
#else
  REQUIRE(cudaStreamGetCaptureInfo(capture.stream, &status, &id, &captured, nullptr, nullptr) ==
          cudaSuccess);
#endif
  REQUIRE(cudaGraphRetainUserObject(captured, make_object(), 1, cudaGraphUserObjectMove) ==
          cudaSuccess);
  SUBCASE("the capture fails") { capture.fail(); }
  SUBCASE("an executable outlives the graph") {
    const cudaGraph_t graph = capture.end();
    const cudaGraphExec_t executable = instantiate(graph);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(stays(destroyed, 0));
    CHECK(cudaGraphLaunch(executable, capture.stream) == cudaSuccess);
    CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  }
  SUBCASE("a copy outlives the graph") {
    const cudaGraph_t graph = capture.end();
    cudaGraph_t copy = nullptr;
    REQUIRE(cudaGraphClone(&copy, graph) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(stays(destroyed, 0));
    CHECK(cudaGraphDestroy(copy) == cudaSuccess);
  }
  SUBCASE("an executable that is updated has those of the new graph") {
    const cudaGraph_t graph = capture.end();
    const cudaGraphExec_t executable = instantiate(graph);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    cudaGraph_t empty = nullptr;
    REQUIRE(cudaGraphCreate(&empty, 0) == cudaSuccess);
    const cudaUserObject_t other = make_object(2);
    REQUIRE(cudaGraphRetainUserObject(empty, other, 1, cudaGraphUserObjectMove) == cudaSuccess);
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(executable, empty, &info) == cudaSuccess);
    CHECK(info.result == cudaGraphExecUpdateSuccess);
    CHECK(becomes(destroyed, 1));
    CHECK(cudaGraphReleaseUserObject(empty, other, 1) == cudaSuccess);
    CHECK(cudaUserObjectRelease(other, 1) == cudaSuccess);
    CHECK(stays(destroyed, 1));
    destroyed = 0;
    CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
    CHECK(cudaGraphDestroy(empty) == cudaSuccess);
  }
  CHECK(becomes(destroyed, 1));
  CHECK(stays(destroyed, 1));
}

// Nodes that a program adds by hand.

TEST_CASE("nodes by hand do what captured ones do") {
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaGraphCreate(&graph, 0) == cudaSuccess);
  cudaEvent_t event = nullptr, other = nullptr;
  CHECK(cudaEventCreate(&event) == cudaSuccess);
  CHECK(cudaEventCreate(&other) == cudaSuccess);
  cudaGraphNode_t allocation = nullptr, fill = nullptr, copy = nullptr, host = nullptr,
                  free_node = nullptr, record = nullptr, wait = nullptr;
  cudaMemAllocNodeParams memory{};
  memory.poolProps.allocType = cudaMemAllocationTypePinned;
  memory.poolProps.location.type = cudaMemLocationTypeDevice;
  memory.bytesize = 3000;
  CHECK(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &memory) == cudaSuccess);
  REQUIRE(memory.dptr != nullptr);
  CHECK(used_by_graphs() == 3072);
  const cudaMemsetParams sevens{memory.dptr, 0, 0x37, 1, 5, 1};
  CHECK(cudaGraphAddMemsetNode(&fill, graph, &allocation, 1, &sevens) == cudaSuccess);
  char* read = nullptr;
  CHECK(cudaMallocHost(reinterpret_cast<void**>(&read), 10) == cudaSuccess);
  std::memset(read, 0, 10);
  CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &fill, 1, read, memory.dptr, 5,
                                 cudaMemcpyDeviceToHost) == cudaSuccess);
  static std::atomic<int> calls{0};
  static char seen = 0;
  const cudaHostNodeParams call{[](void* data) {
                                  ++calls;
                                  seen = *static_cast<char*>(data);
                                },
                                read};
  CHECK(cudaGraphAddHostNode(&host, graph, &copy, 1, &call) == cudaSuccess);
  CHECK(cudaGraphAddMemFreeNode(&free_node, graph, &host, 1, memory.dptr) == cudaSuccess);
  expect(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&wait, graph, &host, 1, memory.dptr));
  CHECK(cudaGraphAddEventRecordNode(&record, graph, &free_node, 1, event) == cudaSuccess);
  CHECK(cudaGraphAddEventWaitNode(&wait, graph, &record, 1, event) == cudaSuccess);
  expect(cudaErrorInvalidResourceHandle,
         cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, nullptr));

  void* freed = nullptr;
  CHECK(cudaGraphMemFreeNodeGetParams(free_node, &freed) == cudaSuccess);
  CHECK(freed == memory.dptr);
  cudaMemAllocNodeParams told{};
  CHECK(cudaGraphMemAllocNodeGetParams(allocation, &told) == cudaSuccess);
  CHECK(told.dptr == memory.dptr);
  cudaHostNodeParams call_told{};
  CHECK(cudaGraphHostNodeGetParams(host, &call_told) == cudaSuccess);
  CHECK(call_told.userData == read);
  expect(cudaErrorInvalidValue, cudaGraphHostNodeGetParams(copy, &call_told));
  cudaEvent_t event_told = nullptr;
  CHECK(cudaGraphEventRecordNodeGetEvent(record, &event_told) == cudaSuccess);
  CHECK(event_told == event);

  const cudaGraphExec_t executable = instantiate(graph);
  float milliseconds = 0;
  expect(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, event, event));
  CHECK(cudaGraphLaunch(executable, nullptr) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(calls == 1);
  CHECK(seen == 0x37);
  CHECK(std::string(read) == "77777");
  CHECK(cudaEventElapsedTime(&milliseconds, event, event) == cudaSuccess);

  // An executable's nodes can be changed, and some turned off; the graph's stay.
  const cudaMemsetParams eights{memory.dptr, 0, 0x38, 1, 5, 1};
  CHECK(cudaGraphExecMemsetNodeSetParams(executable, fill, &eights) == cudaSuccess);
  expect(cudaErrorInvalidValue, cudaGraphExecMemsetNodeSetParams(executable, copy, &eights));
  CHECK(cudaGraphExecEventRecordNodeSetEvent(executable, record, other) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, nullptr) == cudaSuccess);
  CHECK(cudaEventSynchronize(other) == cudaSuccess);
  CHECK(std::string(read) == "88888");
  cudaMemsetParams fill_told{};
  CHECK(cudaGraphMemsetNodeGetParams(fill, &fill_told) == cudaSuccess);
  CHECK(fill_told.value == 0x37);
  unsigned is_enabled = 0;
  CHECK(cudaGraphNodeGetEnabled(executable, copy, &is_enabled) == cudaSuccess);
  CHECK(is_enabled == 1);
  CHECK(cudaGraphNodeSetEnabled(executable, copy, 0) == cudaSuccess);
  expect(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, host, 0));
  std::memset(read, 0, 10);
  CHECK(cudaGraphLaunch(executable, nullptr) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(std::string(read).empty());
  CHECK(calls == 3);

  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaFreeHost(read) == cudaSuccess);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaEventDestroy(other) == cudaSuccess);
  CHECK(used_by_graphs() == 0);
}

std::vector<int> order;

cudaGraphNode_t add_number(cudaGraph_t graph, int* number) {
  cudaGraphNode_t node = nullptr;
  const cudaHostNodeParams call{[](void* data) { order.push_back(*static_cast<int*>(data)); },
                                number};
  REQUIRE(cudaGraphAddHostNode(&node, graph, nullptr, 0, &call) == cudaSuccess);
  return node;
}

void launch_once(cudaGraph_t graph) {
  order.clear();
  const cudaGraphExec_t executable = instantiate(graph);
  CHECK(cudaGraphLaunch(executable, nullptr) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
}

TEST_CASE("a node that cannot be made takes no memory") {
  const size_t before = free_bytes();
  cudaGraph_t graph = nullptr, other = nullptr, clone = nullptr;
  REQUIRE(cudaGraphCreate(&graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphCreate(&other, 0) == cudaSuccess);
  cudaGraphNode_t node = nullptr, stranger = nullptr, first = nullptr;
  CHECK(cudaGraphAddEmptyNode(&first, graph, nullptr, 0) == cudaSuccess);
  CHECK(cudaGraphAddEmptyNode(&stranger, other, nullptr, 0) == cudaSuccess);
  cudaMemAllocNodeParams allocation{};
  allocation.poolProps.allocType = cudaMemAllocationTypePinned;
  allocation.poolProps.location = {cudaMemLocationTypeDevice, 0};
  allocation.bytesize = 32 * kMiB;
  const cudaGraphNode_t twice[] = {first, first};
  const auto refuse = [&] {
    expect(cudaErrorInvalidValue,
           cudaGraphAddMemAllocNode(&node, graph, &stranger, 1, &allocation));
    expect(cudaErrorInvalidValue, cudaGraphAddMemAllocNode(&node, graph, twice, 2, &allocation));
    CUDA_MEM_ALLOC_NODE_PARAMS same;
    static_assert(sizeof same == sizeof allocation);
    std::memcpy(&same, &allocation, sizeof same);
    const auto of_driver = [](const cudaGraphNode_t* nodes) {
      return reinterpret_cast<const CUgraphNode*>(nodes);
    };
    CHECK(cuGraphAddMemAllocNode(&node, graph, of_driver(&stranger), 1, &same) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphAddMemAllocNode(&node, graph, of_driver(twice), 2, &same) ==
          CUDA_ERROR_INVALID_VALUE);
    expect(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, graph, twice, 2));
    CHECK(cuGraphAddEmptyNode(&node, graph, of_driver(twice), 2) == CUDA_ERROR_INVALID_VALUE);
  };
  refuse();
  CHECK(used_by_graphs() == 0);
  CHECK(free_bytes() == before);
  // It is still a graph without memory, which may be copied.
  CHECK(cudaGraphClone(&clone, graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(clone) == cudaSuccess);

  // Nor does it take the place of a block that a node has freed.
  cudaGraphNode_t made = nullptr, freed = nullptr;
  CHECK(cudaGraphAddMemAllocNode(&made, graph, &first, 1, &allocation) == cudaSuccess);
  void* const pointer = allocation.dptr;
  CHECK(cudaGraphAddMemFreeNode(&freed, graph, &made, 1, pointer) == cudaSuccess);
  const cudaGraphNode_t freed_twice[] = {freed, freed};
  expect(cudaErrorInvalidValue,
         cudaGraphAddMemAllocNode(&node, graph, freed_twice, 2, &allocation));
  // What does not come after the node that freed it must not have the place.
  CHECK(cudaGraphAddMemAllocNode(&node, graph, &first, 1, &allocation) == cudaSuccess);
  CHECK(allocation.dptr != pointer);
  CHECK(cudaGraphAddMemAllocNode(&node, graph, &freed, 1, &allocation) == cudaSuccess);
  CHECK(allocation.dptr == pointer);
  CHECK(used_by_graphs() == 64 * kMiB);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(other) == cudaSuccess);
  CHECK(used_by_graphs() == 0);
  CHECK(free_bytes() == before);
}

TEST_CASE("edges by hand, parts of graphs, conditions") {
  int numbers[] = {1, 2, 3};
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaGraphCreate(&graph, 0) == cudaSuccess);
  cudaGraphNode_t nodes[2] = {add_number(graph, &numbers[0]), add_number(graph, &numbers[1])};
  launch_once(graph);
  CHECK(order == std::vector<int>{1, 2});
#if CUDART_VERSION >= 13000
  const auto add_edge = [&](cudaGraphNode_t from, cudaGraphNode_t to) {
    return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
  };
  const auto edges = [&](cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) {
    return cudaGraphGetEdges(graph, from, to, nullptr, count);
  };
#else
  const auto add_edge = [&](cudaGraphNode_t from, cudaGraphNode_t to) {
    return cudaGraphAddDependencies(graph, &from, &to, 1);
  };
  const auto edges = [&](cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) {
    return cudaGraphGetEdges(graph, from, to, count);
  };
#endif
  CHECK(add_edge(nodes[1], nodes[0]) == cudaSuccess);
  expect(cudaErrorInvalidValue, add_edge(nodes[1], nodes[0]));
  size_t count = 0;
  CHECK(edges(nullptr, nullptr, &count) == cudaSuccess);
  REQUIRE(count == 1);
  cudaGraphNode_t from = nullptr, to = nullptr;
  CHECK(edges(&from, &to, &count) == cudaSuccess);
  CHECK(from == nodes[1]);
  CHECK(to == nodes[0]);
  launch_once(graph);
  CHECK(order == std::vector<int>{2, 1});

  // An update keeps the shape.
  cudaGraphExec_t executable = instantiate(graph);
  cudaGraph_t other = nullptr;
  CHECK(cudaGraphClone(&other, graph) == cudaSuccess);
  cudaGraphNode_t copy = nullptr;
  CHECK(cudaGraphNodeFindInClone(&copy, nodes[0], other) == cudaSuccess);
  CHECK(copy != nodes[0]);
  cudaGraphExecUpdateResultInfo info;
  CHECK(cudaGraphExecUpdate(executable, other, &info) == cudaSuccess);
  CHECK(cudaGraphDestroyNode(copy) == cudaSuccess);
  expect(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, other, &info));
  CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  CHECK(cudaGraphAddEmptyNode(&copy, other, nullptr, 0) == cudaSuccess);
  expect(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, other, &info));
  CHECK(info.result == cudaGraphExecUpdateErrorNodeTypeChanged);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(other) == cudaSuccess);

  // A part is a copy of what was there when it was added.
  cudaGraph_t outer = nullptr;
  REQUIRE(cudaGraphCreate(&outer, 0) == cudaSuccess);
  cudaGraphNode_t part = nullptr;
  CHECK(cudaGraphAddChildGraphNode(&part, outer, nullptr, 0, graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  cudaGraph_t inner = nullptr;
  CHECK(cudaGraphChildGraphNodeGetGraph(part, &inner) == cudaSuccess);
  CHECK(cudaGraphGetNodes(inner, nullptr, &count) == cudaSuccess);
  CHECK(count == 2);
  expect(cudaErrorInvalidValue, cudaGraphDestroy(inner));

  // A condition has the value that it begins with.
  for (unsigned value : {0u, 1u}) {
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphConditionalHandleCreate(&handle, outer, value, cudaGraphCondAssignDefault) ==
          cudaSuccess);
    cudaGraphNodeParams condition = {cudaGraphNodeTypeConditional, {}, {}, 0};
    condition.conditional.handle = handle;
    condition.conditional.type = cudaGraphCondTypeIf;
    condition.conditional.size = 1;
    cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddNode(&node, outer, &part, nullptr, 1, &condition) == cudaSuccess);
#else
    CHECK(cudaGraphAddNode(&node, outer, &part, 1, &condition) == cudaSuccess);
#endif
    add_number(condition.conditional.phGraph_out[0], &numbers[2]);
    launch_once(outer);
    CHECK(order == (value ? std::vector<int>{2, 1, 3} : std::vector<int>{2, 1}));
  }

  // A launch that is captured is a part, too.
  executable = instantiate(outer);
  Capturing capture;
  CHECK(cudaGraphLaunch(executable, capture.stream) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  const cudaGraph_t captured = capture.end();
  launch_once(captured);
  CHECK(order == std::vector<int>{2, 1, 3});
  CHECK(cudaGraphDestroy(captured) == cudaSuccess);
  CHECK(cudaGraphDestroy(outer) == cudaSuccess);
}

TEST_CASE("the driver's functions of graphs are the runtime's") {
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUgraphNode first = nullptr, second = nullptr;
  CHECK(cuGraphAddEmptyNode(&first, graph, nullptr, 0) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = reinterpret_cast<CUfunction>(&order);
  kernel.gridDimX = 7;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  CHECK(cuGraphAddKernelNode(&second, graph, &first, 1, &kernel) == CUDA_SUCCESS);
  size_t count = 0;
  CHECK(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
  CHECK(count == 2);
  CHECK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count) == CUDA_SUCCESS);
  CHECK(count == 1);
  CUgraphNodeType type;
  CHECK(cuGraphNodeGetType(second, &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_KERNEL);
  CUDA_KERNEL_NODE_PARAMS told{};
  CHECK(cuGraphKernelNodeGetParams(second, &told) == CUDA_SUCCESS);
  CHECK(told.gridDimX == 7);
  CHECK(told.func == kernel.func);
  CUgraphExec executable = nullptr;
  CHECK(cuGraphInstantiate(&executable, graph, 0) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(executable, nullptr) == CUDA_SUCCESS);
  CHECK(cuGraphExecDestroy(executable) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(cuGraphGetNodes(graph, nullptr, &count) == CUDA_ERROR_INVALID_VALUE);

  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(0, 0, 0, stream) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUgraphNode* dependencies = nullptr;
  CHECK(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, nullptr, &count) ==
        CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(id != 0);
  CHECK(count == 1);
  CHECK(cuGraphAddEmptyNode(&first, graph, dependencies, count) == CUDA_SUCCESS);
  CHECK(cuStreamUpdateCaptureDependencies(stream, &first, nullptr, 1,
                                          CU_STREAM_SET_CAPTURE_DEPENDENCIES) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(0, 0, 0, stream) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(cuGraphNodeGetDependentNodes(first, nullptr, nullptr, &count) == CUDA_SUCCESS);
  CHECK(count == 1);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  unsigned flags = 0;
  CHECK(cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS);
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
  CHECK(cudaGetLastError() == cudaSuccess);
}

// Host functions.

TEST_CASE("host functions are called in another thread, in the order of the stream") {
  std::mutex held;
  std::unique_lock<std::mutex> lock(held);
  struct Call {
    std::mutex* held;
    char* pinned;
    std::atomic<int> calls{0};
    std::thread::id thread;
  } call{&held, nullptr, {}, {}};
  CHECK(cudaMallocHost(reinterpret_cast<void**>(&call.pinned), 10) == cudaSuccess);
  std::memset(call.pinned, 0, 10);
  char* const device = static_cast<char*>(allocate(10));
  const auto function = [](void* data) {
    Call& c = *static_cast<Call*>(data);
    const std::lock_guard<std::mutex> wait(*c.held);
    std::memcpy(c.pinned, "host", sizeof "host");
    c.thread = std::this_thread::get_id();
    ++c.calls;
  };
  CHECK(cudaLaunchHostFunc(nullptr, function, &call) == cudaSuccess);
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreate(&event) == cudaSuccess);
  CHECK(cudaEventRecord(event, nullptr) == cudaSuccess);
  expect(cudaErrorNotReady, cudaEventQuery(event));
  expect(cudaErrorNotReady, cudaStreamQuery(nullptr));
  float milliseconds = 0;
  expect(cudaErrorNotReady, cudaEventElapsedTime(&milliseconds, event, event));
  // A copy behind it, from memory that it writes.
  CHECK(cudaMemcpyAsync(device, call.pinned, 5, cudaMemcpyHostToDevice, nullptr) == cudaSuccess);
  CHECK(call.calls == 0);
  lock.unlock();
  char back[5] = {};
  CHECK(cudaMemcpy(back, device, 5, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back) == "host");
  CHECK(call.calls == 1);
  CHECK(call.thread != std::this_thread::get_id());
  CHECK(cudaEventQuery(event) == cudaSuccess);
  CHECK(cudaStreamQuery(nullptr) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, event, event) == cudaSuccess);

  std::atomic<int> streams_seen{0};
  const auto callback = [](cudaStream_t stream, cudaError_t status, void* data) {
    CHECK(cudaStreamSynchronize(stream) == cudaErrorNotPermitted);
    if (status == cudaSuccess) ++*static_cast<std::atomic<int>*>(data);
  };
  for (int i = 0; i < 100; ++i)
    CHECK(cudaStreamAddCallback(nullptr, callback, &streams_seen, 0) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(streams_seen == 100);
  expect(cudaErrorInvalidValue, cudaLaunchHostFunc(nullptr, nullptr, nullptr));

  lock.lock();
  CHECK(cudaLaunchHostFunc(nullptr, function, &call) == cudaSuccess);
#ifndef __SANITIZE_THREAD__  // which ends a child that starts a thread
  // The child of a fork has a thread of its own, and nothing of its parent's to wait for.
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    static std::atomic<int> calls{0};
    const bool works = cudaStreamSynchronize(nullptr) == cudaSuccess &&
                       cudaLaunchHostFunc(
                           nullptr, [](void*) { ++calls; }, nullptr) == cudaSuccess &&
                       cudaStreamSynchronize(nullptr) == cudaSuccess && calls == 1 &&
                       call.calls == 1;
    _exit(works ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
#endif
  lock.unlock();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(call.calls == 2);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaFree(device) == cudaSuccess);
  CHECK(cudaFreeHost(call.pinned) == cudaSuccess);
}

TEST_CASE("the legacy default stream beside a capture of a per-thread default stream") {
  REQUIRE(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal) ==
          cudaSuccess);
  expect(cudaErrorStreamCaptureImplicit, cudaMemsetAsync(nullptr, 0, 0, cudaStreamLegacy));
  cudaGraph_t graph = nullptr;
  expect(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(cudaStreamPerThread, &graph));
  std::thread([] {
    REQUIRE(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal) ==
            cudaSuccess);
    std::thread([] {
      cudaStreamCaptureStatus status;
      CHECK(cudaStreamIsCapturing(cudaStreamPerThread, &status) == cudaSuccess);
      CHECK(status == cudaStreamCaptureStatusNone);
    }).join();
    cudaGraph_t made = nullptr;
    CHECK(cudaStreamEndCapture(cudaStreamPerThread, &made) == cudaSuccess);
    CHECK(cudaGraphDestroy(made) == cudaSuccess);
  }).join();
}

// CUB looks for what a kernel says among the architectures it was compiled for.
// Device code as nvcc registers it, until the end of the scope.
class Registered {
 public:
  explicit Registered(const std::vector<MadeEntry>& entries) : code_(made_fat_binary(entries)) {
    frame_.code = code_.data();
    handle_ = __cudaRegisterFatBinary(&frame_);
  }
  // Its address can be another kernel's afterwards.
  ~Registered() { __cudaUnregisterFatBinary(handle_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  void add_kernel(const void* stub, const char* name = "kernel") {
    __cudaRegisterFunction(handle_, static_cast<const char*>(stub), nullptr, name, -1, nullptr,
                           nullptr, nullptr, nullptr, nullptr);
  }
  void add_variable(char* host, size_t bytes) {
    __cudaRegisterVar(handle_, host, nullptr, "variable", 0, bytes, 0, 0);
  }

 private:
  std::vector<unsigned char> code_;
  MadeFrame frame_;
  void** handle_;
};

std::vector<unsigned char> machine_code(uint32_t local_bytes) {
  return MadeElf({{"kernel", 32, local_bytes, 0, 0}}, {}, false).bytes();
}

cudaError_t launch_once(const void* stub) {
  return cudaLaunchKernel(stub, dim3(1), dim3(32), nullptr, 0, nullptr);
}

TEST_CASE("a kernel says for what it was compiled") {
  const auto says = [](const std::vector<MadeEntry>& entries) {
    static char kernel;
    Registered code(entries);
    code.add_kernel(&kernel);
    cudaFuncAttributes attributes{};
    CHECK(cudaFuncGetAttributes(&attributes, &kernel) == cudaSuccess);
    CHECK(launch_once(&kernel) == cudaSuccess);
    return attributes.ptxVersion;
  };
  // The device is an A100, of 8.0.
  const std::vector<unsigned char> ptx(16, 'x');
  CHECK(says({{false, 75, machine_code(0)},
              {false, 80, machine_code(0)},
              {false, 86, machine_code(0)},
              {true, 90, ptx}}) == 80);
  CHECK(says({{false, 75, machine_code(0)}, {true, 72, ptx}, {false, 86, machine_code(0)}}) == 72);
  // What is of no known format is taken to run.
  static char kernel;
  void** const handle = __cudaRegisterFatBinary(nullptr);
  __cudaRegisterFunction(handle, &kernel, nullptr, "kernel", -1, nullptr, nullptr, nullptr, nullptr,
                         nullptr);
  CHECK(launch_once(&kernel) == cudaSuccess);
  __cudaUnregisterFatBinary(handle);
}

TEST_CASE("a kernel without code for the device fails as there") {
  static char kernel;
  Registered code({{false, 75, machine_code(0)},
                   {false, 90, machine_code(0)},
                   {true, 90, std::vector<unsigned char>(16, 'x')}});
  code.add_kernel(&kernel);
  expect(cudaErrorNoKernelImageForDevice, launch_once(&kernel));
  expect(cudaErrorNoKernelImageForDevice,
         cudaLaunchCooperativeKernel(&kernel, dim3(1), dim3(32), nullptr, 0, nullptr));
  cudaFuncAttributes attributes{};
  expect(cudaErrorNoKernelImageForDevice, cudaFuncGetAttributes(&attributes, &kernel));
  CHECK(std::string(cudaGetErrorString(cudaErrorNoKernelImageForDevice)) ==
        "no kernel image is available for execution on the device");
}

TEST_CASE("local memory of kernels is taken for all threads of the device, and kept") {
  constexpr size_t kThreads = size_t{108} * 2048;
  static char small, large, huge;
  const size_t before = free_bytes();
  {
    Registered code({{false, 80, machine_code(1024)}});
    code.add_kernel(&small);
    CHECK(launch_once(&small) == cudaSuccess);
    CHECK(free_bytes() == before);  // the context's
  }
  {
    Registered code({{false, 80, machine_code(1024 + 512)}});
    code.add_kernel(&large);
    CHECK(launch_once(&large) == cudaSuccess);
    CHECK(launch_once(&large) == cudaSuccess);
    CHECK(free_bytes() == before - kThreads * 512);
  }
  CHECK(free_bytes() == before - kThreads * 512);
  Registered code({{false, 80, machine_code(64 << 10)}});
  code.add_kernel(&huge);
  expect(cudaErrorMemoryAllocation, launch_once(&huge));
  CHECK(free_bytes() == before - kThreads * 512);
  CHECK(cudaDeviceReset() == cudaSuccess);
  CHECK(free_bytes() == before);
  CHECK(launch_once(&huge) == cudaErrorMemoryAllocation);
  cudaGetLastError();
}

TEST_CASE("limits of the context take memory") {
  const auto limit = [](cudaLimit which) {
    size_t value = 0;
    CHECK(cudaDeviceGetLimit(&value, which) == cudaSuccess);
    return value;
  };
  const size_t before = free_bytes();
  CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 1536) == cudaSuccess);
  CHECK(limit(cudaLimitStackSize) == 1536);
  CHECK(free_bytes() == before - size_t{108} * 2048 * 512);
  expect(cudaErrorMemoryAllocation, cudaDeviceSetLimit(cudaLimitStackSize, 512 << 10));
  CHECK(limit(cudaLimitStackSize) == 1536);
  static char deep;
  Registered code({{false, 80, machine_code(1024 + 256)}});
  code.add_kernel(&deep);
  CHECK(launch_once(&deep) == cudaSuccess);
  CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 1024) == cudaSuccess);
  CHECK(free_bytes() == before);
  CHECK(launch_once(&deep) == cudaSuccess);
  CHECK(free_bytes() == before - size_t{108} * 2048 * 256);
  CHECK(cudaDeviceReset() == cudaSuccess);
  CHECK(limit(cudaLimitStackSize) == 1024);
  CHECK(free_bytes() == before);
}

TEST_CASE("what the run-time compiler makes is machine code that loads") {
  size_t bytes = 0;
  REQUIRE(nvrtcGetCUBINSize(nullptr, &bytes) == 0);
  CHECK(bytes > 1);  // CuPy takes one byte for an error
  std::vector<char> code(bytes);
  REQUIRE(nvrtcGetCUBIN(nullptr, code.data()) == 0);
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, code.data()) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  REQUIRE(cuModuleGetFunction(&function, module, "any") == CUDA_SUCCESS);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
}

std::vector<unsigned char>& last_arguments() {
  static std::vector<unsigned char> bytes;
  return bytes;
}

TEST_CASE("arguments are told in one piece where the code says how long each is") {
  static const memledger_virtual_gpu_values kValues = {
      [](void*, uintptr_t, size_t bytes) { return bytes; },
      [](uintptr_t, const void*, size_t) {},
      [](const memledger_virtual_gpu_work* work) {
        const auto* const begin = static_cast<const unsigned char*>(work->argument_bytes);
        if (begin != nullptr) last_arguments().assign(begin, begin + work->argument_byte_count);
      },
      [] {},
      [](const memledger_virtual_gpu_work*) -> void* { return nullptr; },
      [](void*) {},
      [](void*) {},
      [] {},
      [] {},
  };
  REQUIRE(memledger_virtual_gpu_know(&kValues) != 0);
  std::vector<unsigned char> code =
      MadeElf({{"k", 32, 0, 0, 0, false, {4, 16}}}, {}, false).bytes();
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, code.data()) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  REQUIRE(cuModuleGetFunction(&function, module, "k") == CUDA_SUCCESS);
  uint32_t number = 7;
  uint64_t pair[] = {8, 9};
  void* arguments[] = {&number, &pair};
  REQUIRE(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr) ==
          CUDA_SUCCESS);
  REQUIRE(last_arguments().size() == 24);
  CHECK(std::memcmp(last_arguments().data(), &number, sizeof number) == 0);
  CHECK(std::memcmp(last_arguments().data() + 8, &pair, sizeof pair) == 0);
  CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
}

TEST_CASE("the heap is taken with the first kernel that uses it") {
  const size_t before = free_bytes();
  static char plain, user;
  Registered code(
      {{false, 80,
        MadeElf({{"plain", 32, 0, 0, 0}, {"user", 32, 0, 0, 0, true}}, {}, false).bytes()}});
  code.add_kernel(&plain, "plain");
  code.add_kernel(&user, "user");
  size_t heap = 0;
  CHECK(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize) == cudaSuccess);
  CHECK(heap == 8 * kMiB);
  CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 40 * kMiB) == cudaSuccess);
  CHECK(launch_once(&plain) == cudaSuccess);
  CHECK(free_bytes() == before);
  CHECK(launch_once(&user) == cudaSuccess);
  CHECK(free_bytes() == before - 42 * kMiB);
  CHECK(cudaDeviceReset() == cudaSuccess);
  CHECK(free_bytes() == before);
  CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, size_t{1} << 40) == cudaSuccess);
  expect(cudaErrorMemoryAllocation, launch_once(&user));
  CHECK(cudaDeviceReset() == cudaSuccess);
}

TEST_CASE("kernels in executable graphs take memory, which other graphs use again") {
  constexpr size_t kNodes = 20000;
  const size_t before = free_bytes();
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  static char kernel;
  const auto make = [&](size_t kernels) {
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    for (size_t i = 0; i < kernels; ++i)
      CHECK(cudaLaunchKernel(&kernel, dim3(1), dim3(32), nullptr, 0, stream) == cudaSuccess);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    return executable;
  };
  cudaGraphExec_t large = make(kNodes);
  // 2 KiB each, less 1 MiB that the context has.
  CHECK(free_bytes() == before - 38 * kMiB - 2 * kMiB);
  CHECK(cudaGraphExecDestroy(large) == cudaSuccess);
  CHECK(free_bytes() == before - 40 * kMiB);
  cudaGraphExec_t first = make(100), second = make(kNodes - 100);
  CHECK(free_bytes() == before - 40 * kMiB);
  cudaGraphExec_t third = make(kNodes / 4);
  CHECK(free_bytes() == before - 48 * kMiB);
  for (cudaGraphExec_t executable : {first, second, third})
    CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cudaDeviceReset() == cudaSuccess);
  CHECK(free_bytes() == before);
}

TEST_CASE("a large variable takes memory once a kernel of its file runs, or it is asked for") {
  static char kernel, table, other;
  const size_t before = free_bytes();
  {
    Registered code({{false, 80, machine_code(0)}});
    code.add_kernel(&kernel);
    code.add_variable(&table, 64 * kMiB);
    CHECK(free_bytes() == before);
    CHECK(launch_once(&kernel) == cudaSuccess);
    CHECK(free_bytes() == before - 64 * kMiB);
    void* address = nullptr;
    CHECK(cudaGetSymbolAddress(&address, &table) == cudaSuccess);
    CHECK(free_bytes() == before - 64 * kMiB);
    CHECK(cudaMemset(address, 0, 64 * kMiB) == cudaSuccess);
  }
  CHECK(free_bytes() == before);  // a library that was unloaded
  Registered code({{false, 80, machine_code(0)}});
  code.add_kernel(&kernel);
  code.add_variable(&other, 512 * kMiB);
  expect(cudaErrorMemoryAllocation, launch_once(&kernel));
}

TEST_CASE("launches are checked, not run") {
  const auto launch = [](dim3 grid, dim3 block, size_t shared = 0) {
    return cudaLaunchKernel(reinterpret_cast<const void*>(&free_bytes), grid, block, nullptr,
                            shared, nullptr);
  };
  CHECK(launch({1}, {256}) == cudaSuccess);
  CHECK(launch({2147483647, 65535, 65535}, {32, 32}) == cudaSuccess);
  expect(cudaErrorInvalidConfiguration, launch({0}, {256}));
  expect(cudaErrorInvalidConfiguration, launch({1, 65536}, {256}));
  expect(cudaErrorInvalidConfiguration, launch({1}, {1025}));
  expect(cudaErrorInvalidConfiguration, launch({1}, {1, 1, 65}));
  CHECK(launch({1}, {256}, 163 << 10) == cudaSuccess);
  expect(cudaErrorInvalidValue, launch({1}, {256}, 164 << 10));

  const void* const kernel = reinterpret_cast<const void*>(&free_bytes);
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess);
  CHECK(attributes.binaryVersion == 80);
  CHECK(attributes.maxThreadsPerBlock == 1024);
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0) == cudaSuccess);
  CHECK(blocks == 8);
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32, 0) == cudaSuccess);
  CHECK(blocks == 32);
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 128, 80 << 10) ==
        cudaSuccess);
  CHECK(blocks == 2);
  // As many blocks as can run at once, and one more.
  CHECK(cudaLaunchCooperativeKernel(kernel, {108 * 8}, {256}, nullptr, 0, nullptr) == cudaSuccess);
  expect(cudaErrorCooperativeLaunchTooLarge,
         cudaLaunchCooperativeKernel(kernel, {108 * 8 + 1}, {256}, nullptr, 0, nullptr));
}

TEST_CASE("errors have names and texts, and belong to their thread") {
  CHECK(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)) == "cudaErrorMemoryAllocation");
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
  CHECK(std::string(cudaGetErrorString(cudaSuccess)) == "no error");
  CHECK(std::string(cudaGetErrorString(static_cast<cudaError_t>(12345))) ==
        "unrecognized error code");
  CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);
  std::thread([] { CHECK(cudaGetLastError() == cudaSuccess); }).join();
  CHECK(cudaGetDevice(nullptr) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  // The driver's functions have no part in it.
  CHECK(cuMemFree_v2(1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cudaGetLastError() == cudaSuccess);
}

template <typename F>
F* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  REQUIRE(cudaGetDriverEntryPointByVersion(name, &function, CUDART_VERSION, cudaEnableDefault,
                                           &status) == cudaSuccess);
  REQUIRE(status == cudaDriverEntryPointSuccess);
  return reinterpret_cast<F*>(function);
}

TEST_CASE("the driver's functions are found by name, and make expandable segments") {
  void* function = &function;
  cudaDriverEntryPointQueryResult status;
  CHECK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12000, cudaEnableDefault,
                                         &status) == cudaSuccess);
  CHECK(status == cudaDriverEntryPointSymbolNotFound);
  CHECK(function == nullptr);

  const size_t before = free_bytes();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t page = 0;
  REQUIRE(driver_function<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity")(
              &page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
  CHECK(page == 2 * kMiB);
  CUdeviceptr range = 0;
  REQUIRE(driver_function<decltype(cuMemAddressReserve)>("cuMemAddressReserve")(
              &range, 10 * kCapacity, 0, 0, 0) == CUDA_SUCCESS);
  const auto create = driver_function<decltype(cuMemCreate)>("cuMemCreate");
  CUmemGenericAllocationHandle handle = 0, too_much = 0;
  CHECK(create(&handle, 20 * kMiB, &properties, 0) == CUDA_SUCCESS);
  CHECK(create(&too_much, kCapacity, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(create(&too_much, 1, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(free_bytes() == before - 20 * kMiB);
  CHECK(driver_function<decltype(cuMemMap)>("cuMemMap")(range, 20 * kMiB, 0, handle, 0) ==
        CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(driver_function<decltype(cuMemSetAccess)>("cuMemSetAccess")(range, 20 * kMiB, &access, 1) ==
        CUDA_SUCCESS);
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(range)) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(cudaMemset(reinterpret_cast<void*>(range), 0, 20 * kMiB) == cudaSuccess);
  int file = 0;
  CHECK(driver_function<decltype(cuMemExportToShareableHandle)>("cuMemExportToShareableHandle")(
            &file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
        CUDA_ERROR_NOT_SUPPORTED);
  CHECK(driver_function<decltype(cuMemUnmap)>("cuMemUnmap")(range, 20 * kMiB) == CUDA_SUCCESS);
  CHECK(driver_function<decltype(cuMemRelease)>("cuMemRelease")(handle) == CUDA_SUCCESS);
  CHECK(driver_function<decltype(cuMemAddressFree)>("cuMemAddressFree")(range, 10 * kCapacity) ==
        CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("contexts that are pushed lie on a stack of the thread") {
  std::thread([] {
    CUcontext first = nullptr, second = nullptr, got = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&first, 0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
    const auto current = [&] {
      CHECK(cuCtxGetCurrent(&got) == CUDA_SUCCESS);
      return got;
    };
    CHECK(cuCtxSetCurrent(first) == CUDA_SUCCESS);
    CHECK(cuCtxPushCurrent(second) == CUDA_SUCCESS);
    CHECK(cuCtxPushCurrent(first) == CUDA_SUCCESS);
    CHECK(current() == first);
    CHECK(cuCtxPopCurrent(&got) == CUDA_SUCCESS);
    CHECK(got == first);
    CHECK(current() == second);
    int device = 0;
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 1);
    CHECK(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    CHECK(current() == first);
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 0);
    CHECK(cuCtxPushCurrent(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxPushCurrent(reinterpret_cast<CUcontext>(&device)) == CUDA_ERROR_INVALID_CONTEXT);
  }).join();
}

// Made before the thread's first context, so it goes after what was made with that one.
struct AtTheEnd {
  CUcontext context = nullptr;
  bool* done = nullptr;
  ~AtTheEnd() {
    for (int i = 0; i < 100; ++i) {
      if (cuCtxPushCurrent(context) != CUDA_SUCCESS) return;
    }
    CUcontext got = nullptr;
    *done = cuCtxPopCurrent(&got) == CUDA_SUCCESS && got == context;
  }
};
thread_local AtTheEnd at_the_end;

TEST_CASE("a thread's destructors may push and pop contexts") {
  bool done = false;
  std::thread([&done] {
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    at_the_end.context = context;
    at_the_end.done = &done;
    for (int i = 0; i < 4; ++i) CHECK(cuCtxPushCurrent(context) == CUDA_SUCCESS);
  }).join();
  CHECK(done);
}

TEST_CASE("a device of 8.0 has no clusters") {
  int size = 0;
  CHECK(cudaOccupancyMaxPotentialClusterSize(&size, nullptr, nullptr) == cudaSuccess);
  CHECK(size == 1);
}

TEST_CASE("stream-ordered memory") {
  const size_t before = free_bytes();
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
  uint64_t threshold = ~0ULL;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
  void* pointer = nullptr;
  CHECK(cudaMallocAsync(&pointer, 40 * kMiB, nullptr) == cudaSuccess);
  const auto attribute = [pool](cudaMemPoolAttr which) {
    uint64_t value = 0;
    CHECK(cudaMemPoolGetAttribute(pool, which, &value) == cudaSuccess);
    return value;
  };
  CHECK(attribute(cudaMemPoolAttrUsedMemCurrent) == 40 * kMiB);
  CHECK(attribute(cudaMemPoolAttrReservedMemCurrent) == 64 * kMiB);
  CHECK(cudaFreeAsync(pointer, nullptr) == cudaSuccess);
  CHECK(attribute(cudaMemPoolAttrUsedMemCurrent) == 0);
  CHECK(attribute(cudaMemPoolAttrUsedMemHigh) == 40 * kMiB);
  CHECK(free_bytes() == before - 64 * kMiB);
  uint64_t zero = 0;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero) == cudaSuccess);
  CHECK(attribute(cudaMemPoolAttrUsedMemHigh) == 0);
  CHECK(cudaMemPoolTrimTo(pool, 0) == cudaSuccess);
  CHECK(free_bytes() == before);
  expect(cudaErrorMemoryAllocation, cudaMallocAsync(&pointer, 2 * kCapacity, nullptr));
}

TEST_CASE("a pool that is destroyed lives until its last block is freed") {
  cudaMemPoolProps properties;
  std::memset(&properties, 0, sizeof properties);
  properties.location = {cudaMemLocationTypeDevice, 0};
  const size_t before = free_bytes();
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaMemPoolCreate(&pool, &properties) == cudaSuccess);
  CHECK(cudaDeviceSetMemPool(0, pool) == cudaSuccess);
  expect(cudaErrorInvalidValue, cudaDeviceSetMemPool(1, pool));
  cudaMemAccessFlags access;
  cudaMemLocation here = {cudaMemLocationTypeDevice, 0};
  CHECK(cudaMemPoolGetAccess(&access, pool, &here) == cudaSuccess);
  char* pointers[2] = {};
  for (char*& pointer : pointers)
    REQUIRE(cudaMallocAsync(reinterpret_cast<void**>(&pointer), 20 * kMiB, nullptr) == cudaSuccess);
  REQUIRE(cudaMemcpy(pointers[1], "kept", 4, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemPoolDestroy(pool) == cudaSuccess);
  // Its handle is no pool any more, and the device has its own again.
  expect(cudaErrorInvalidValue, cudaMemPoolDestroy(pool));
  expect(cudaErrorInvalidValue, cudaMemPoolGetAccess(&access, pool, &here));
  cudaMemPool_t now = nullptr, usual = nullptr;
  CHECK(cudaDeviceGetMemPool(&now, 0) == cudaSuccess);
  CHECK(cudaDeviceGetDefaultMemPool(&usual, 0) == cudaSuccess);
  CHECK(now == usual);

  CHECK(free_bytes() == before - 64 * kMiB);
  CHECK(cudaFreeAsync(pointers[0], nullptr) == cudaSuccess);
  CHECK(free_bytes() == before - 32 * kMiB);
  char back[4] = {};
  CHECK(cudaMemcpy(back, pointers[1], 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back, 4) == "kept");
  CHECK(cudaFree(pointers[1]) == cudaSuccess);
  CHECK(free_bytes() == before);
}

TEST_CASE("children find the tables of kernels and variables free") {
  // Many kernels, so that the lock is held for long: they are sorted when one is asked about.
  static char kernels[20000];
  void** const handle = __cudaRegisterFatBinary(nullptr);
  for (char& kernel : kernels)
    __cudaRegisterFunction(handle, &kernel, nullptr, "kernel", -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      __cudaRegisterFunction(handle, kernels, nullptr, "kernel", -1, nullptr, nullptr, nullptr,
                             nullptr, nullptr);
      cudaFuncAttributes attributes;
      cudaFuncGetAttributes(&attributes, kernels + 1);
      usleep(100);  // lets the other thread have the lock
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(2);
      cudaFuncAttributes attributes;
      size_t bytes = 0;
      const bool asked = cudaFuncGetAttributes(&attributes, kernels) == cudaSuccess;
      _exit(asked && cudaGetSymbolSize(&bytes, kernels) == cudaErrorInvalidSymbol ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  stop = true;
  busy.join();
  __cudaUnregisterFatBinary(handle);
}

TEST_CASE("other processes cannot share memory, and children find a whole device") {
  void* const pointer = allocate(100);
  cudaIpcMemHandle_t handle;
  expect(cudaErrorNotSupported, cudaIpcGetMemHandle(&handle, pointer));
  // Other threads allocate while this one forks.
  std::atomic<bool> stop{false};
  std::thread busy([&stop] {
    while (!stop) cudaFree(allocate(1000));
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      void* mine = nullptr;
      alarm(10);
      _exit(cudaMalloc(&mine, 1000) == cudaSuccess && cudaFree(mine) == cudaSuccess ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  stop = true;
  busy.join();
  CHECK(cudaFree(pointer) == cudaSuccess);
}

// Asked before main() makes the first CUDA call.
int count_before_cuda = -1;
const CUresult before_cuda = cuDeviceGetCount(&count_before_cuda);

TEST_CASE("the driver says where CUDA has not been started") {
  CHECK(before_cuda == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(count_before_cuda == -1);
  int count = -1;
  CHECK(cuInit(0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(count == 2);
}

TEST_CASE("a reset frees everything of the device") {
  CHECK(cudaSetDevice(1) == cudaSuccess);
  void* const pointer = allocate(10 * kMiB);
  CHECK(free_bytes() < kCapacity);
  CHECK(cudaDeviceReset() == cudaSuccess);
  int active = 1;
  unsigned flags = 0;
  CHECK(cuDevicePrimaryCtxGetState(1, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CHECK(free_bytes() == kCapacity);
  CHECK(cuDevicePrimaryCtxGetState(1, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 1);
  expect(cudaErrorInvalidValue, cudaFree(pointer));
  CHECK(cudaSetDevice(0) == cudaSuccess);
}

}  // namespace

int main(int argc, char** argv) {
  // Read at the first CUDA call.
  setenv("MEMLEDGER_VIRTUAL_GPU", "a100:256MiB,count=2,keep=4KiB", 1);
  return doctest::Context(argc, argv).run();
}
