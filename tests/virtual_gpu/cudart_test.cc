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
#include <string>
#include <thread>
#include <vector>

#include "virtual_gpu/machine.h"

// The runtime's and the driver's functions as a program calls them. The answers are linked in, no
// library is preloaded.

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*);
}

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

  // Who knows that an address has a new owner can say so.
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
  CHECK(cudaDeviceGraphMemTrim(0) == cudaSuccess);
  CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &high) ==
        cudaSuccess);
  CHECK(high == 0);

  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, stream) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, stream) == cudaSuccess);
  CHECK(calls == 2);
  CHECK(cudaMemcpy(back, pointer, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::string(back) == "peer");
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
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

TEST_CASE("callbacks are called, and may call CUDA") {
  static int called = 0;
  const auto callback = [](void* data) {
    CHECK(cudaStreamQuery(nullptr) == cudaSuccess);
    *static_cast<int*>(data) += 1;
  };
  CHECK(cudaLaunchHostFunc(nullptr, callback, &called) == cudaSuccess);
  CHECK(called == 1);
}

// CUB looks for what a kernel says among the architectures it was compiled for.
TEST_CASE("a kernel says which of its architectures would run here") {
  struct Entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t code_bytes;
    uint32_t other[3], architecture;
    char code[16];
  };
  static_assert(sizeof(Entry) == 48);
  constexpr uint16_t kPtx = 1, kMachineCode = 2;
  const auto entry = [](uint16_t kind, uint32_t architecture) {
    return Entry{kind, 1, 32, 16, {}, architecture, {}};
  };
  struct Code {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
    Entry entries[4];
  };
  const auto says = [](const Code& code) {
    const struct {
      uint32_t magic, version;
      const void* code;
      void* file;
    } description{0x466243b1, 1, &code, nullptr};
    static char kernel;
    void** const handle =
        __cudaRegisterFatBinary(const_cast<void*>(static_cast<const void*>(&description)));
    __cudaRegisterFunction(handle, &kernel, nullptr, "kernel", -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, &kernel) == cudaSuccess);
    CHECK(attributes.binaryVersion == attributes.ptxVersion);
    // Its address can be another kernel's now.
    __cudaUnregisterFatBinary(handle);
    return attributes.ptxVersion;
  };
  // The device is an A100, of 8.0.
  Code code{
      0xba55ed50,
      1,
      16,
      4 * sizeof(Entry),
      {entry(kMachineCode, 75), entry(kMachineCode, 80), entry(kMachineCode, 86), entry(kPtx, 90)}};
  CHECK(says(code) == 80);
  code.entries[1] = entry(kPtx, 72);
  CHECK(says(code) == 72);
  code.entries[1] = entry(kPtx, 90);
  CHECK(says(code) == 80);  // no code for this device: taken as if there was
  code.entries[0].code_bytes = 1 << 20;
  CHECK(says(code) == 80);
  code.magic = 0;
  CHECK(says(code) == 80);
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
