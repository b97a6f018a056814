// A program with NVIDIA's CUDA runtime linked into it, as nvcc does by default, on the virtual GPU.
// The runtime is the real one; its driver is ours. What nvcc writes, device code and its
// registration, is made by hand.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/virtual_gpu/made_device_code.h"

using namespace memledger::virtual_gpu;

extern "C" {
void** __cudaRegisterFatBinary(void* frame);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaRegisterFunction(void** handle, const char* stub, char* name, const char* device_name,
                            int thread_limit, uint3*, uint3*, dim3*, dim3*, int*);
void __cudaRegisterVar(void** handle, char* host, char* name, const char* device_name, int external,
                       size_t bytes, int constant, int global);
}

namespace {

int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                               \
    }                                                                           \
  } while (false)

#define CHECK_CUDA(expected, call)                                                        \
  do {                                                                                    \
    const cudaError_t got = (call);                                                       \
    if (got != (expected)) {                                                              \
      std::printf("%s:%d: %s is %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(got)); \
      ++failures;                                                                         \
    }                                                                                     \
  } while (false)

// What nvcc makes of `__global__ void kernel()`, `__device__ char table[3000000]` and so on.
void kernel() {}
void deep() {}
void too_new() {}
char table[1], coefficients[1];

// Kept until the program ends, as code in a program is.
struct Registered {
  std::vector<unsigned char> code;
  MadeFrame frame;
};

void** register_code(Registered* registered, const std::vector<MadeEntry>& entries) {
  registered->code = made_fat_binary(entries);
  registered->frame.code = registered->code.data();
  return __cudaRegisterFatBinary(&registered->frame);
}

void register_kernel(void** handle, void (*stub)(), const char* name) {
  __cudaRegisterFunction(handle, reinterpret_cast<const char*>(stub), const_cast<char*>(name), name,
                         -1, nullptr, nullptr, nullptr, nullptr, nullptr);
}

size_t used() {
  size_t free_bytes = 0, total = 0;
  CHECK_CUDA(cudaSuccess, cudaMemGetInfo(&free_bytes, &total));
  return total - free_bytes;
}

// The runtime under test is not the stand-in.
void test_this_is_the_real_runtime() {
  Dl_info info;
  CHECK(dladdr(reinterpret_cast<void*>(&cudaMalloc), &info) != 0);
  CHECK(std::string(info.dli_fname).find("static_runtime") != std::string::npos);
}

void test_device() {
  int count = 0;
  CHECK_CUDA(cudaSuccess, cudaGetDeviceCount(&count));
  CHECK(count == 2);
  cudaDeviceProp properties;
  CHECK_CUDA(cudaSuccess, cudaGetDeviceProperties(&properties, 0));
  CHECK(std::string(properties.name) == "NVIDIA H100 80GB HBM3");
  CHECK(properties.multiProcessorCount == 132);
  CHECK(properties.totalGlobalMem == size_t{4} << 30);
}

void test_memory() {
  const size_t before = used();
  void* large = nullptr;
  CHECK_CUDA(cudaSuccess, cudaMalloc(&large, size_t{100} << 20));
  CHECK(used() == before + (size_t{100} << 20));
  cudaPointerAttributes attributes;
  CHECK_CUDA(cudaSuccess, cudaPointerGetAttributes(&attributes, large));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  int on_the_host = 0;
  CHECK_CUDA(cudaSuccess, cudaPointerGetAttributes(&attributes, &on_the_host));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  CHECK_CUDA(cudaSuccess, cudaFree(large));
  CHECK(used() == before);
  CHECK_CUDA(cudaErrorMemoryAllocation, cudaMalloc(&large, size_t{5} << 30));
  CHECK_CUDA(cudaErrorMemoryAllocation, cudaGetLastError());
  CHECK_CUDA(cudaSuccess, cudaGetLastError());

  int number = 7;
  CHECK_CUDA(cudaSuccess, cudaMalloc(&large, 1024));
  CHECK_CUDA(cudaSuccess, cudaMemcpy(large, &number, sizeof number, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaSuccess, cudaMemset(large, 0, 1024));
  CHECK_CUDA(cudaSuccess, cudaMemcpy(&number, large, sizeof number, cudaMemcpyDeviceToHost));
  CHECK(number == 0);
  CHECK_CUDA(cudaErrorInvalidValue, cudaMemcpy(large, &number, size_t{1} << 30, cudaMemcpyDefault));
  cudaGetLastError();
  CHECK_CUDA(cudaSuccess, cudaFree(large));

  void* pinned = nullptr;
  CHECK_CUDA(cudaSuccess, cudaMallocHost(&pinned, 4096));
  std::memset(pinned, 1, 4096);
  CHECK_CUDA(cudaSuccess, cudaFreeHost(pinned));
  CHECK_CUDA(cudaSuccess, cudaMallocManaged(&pinned, 4096));
  std::memset(pinned, 1, 4096);
  CHECK_CUDA(cudaSuccess, cudaFree(pinned));
}

void test_streams() {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  CHECK_CUDA(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaSuccess, cudaEventCreate(&begin));
  CHECK_CUDA(cudaSuccess, cudaEventCreate(&end));
  CHECK_CUDA(cudaSuccess, cudaEventRecord(begin, stream));
  const size_t before = used();
  void* pointer = nullptr;
  CHECK_CUDA(cudaSuccess, cudaMallocAsync(&pointer, size_t{64} << 20, stream));
  CHECK(used() == before + (size_t{64} << 20));
  CHECK_CUDA(cudaSuccess, cudaMemsetAsync(pointer, 0, 1024, stream));
  CHECK_CUDA(cudaSuccess, cudaFreeAsync(pointer, stream));
  CHECK_CUDA(cudaSuccess, cudaEventRecord(end, stream));
  CHECK_CUDA(cudaSuccess, cudaStreamWaitEvent(nullptr, end, 0));
  CHECK_CUDA(cudaSuccess, cudaStreamSynchronize(stream));
  CHECK_CUDA(cudaSuccess, cudaEventQuery(end));
  float milliseconds = -1;
  CHECK_CUDA(cudaSuccess, cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds > 0);
  cudaMemPool_t pool = nullptr;
  CHECK_CUDA(cudaSuccess, cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK_CUDA(cudaSuccess, cudaMemPoolTrimTo(pool, 0));
  CHECK(used() == before);
  CHECK_CUDA(cudaSuccess, cudaEventDestroy(begin));
  CHECK_CUDA(cudaSuccess, cudaEventDestroy(end));
  CHECK_CUDA(cudaSuccess, cudaStreamDestroy(stream));
  CHECK_CUDA(cudaSuccess, cudaDeviceSynchronize());
}

void test_kernels() {
  const auto* const function = reinterpret_cast<const void*>(&kernel);
  cudaFuncAttributes attributes;
  CHECK_CUDA(cudaSuccess, cudaFuncGetAttributes(&attributes, function));
  CHECK(attributes.numRegs == 64);
  CHECK(attributes.sharedSizeBytes == 2048);
  CHECK(attributes.localSizeBytes == 16);
  CHECK(attributes.binaryVersion == 90);
  CHECK(attributes.maxThreadsPerBlock == 1024);
  // 65536 registers are 1024 threads of 64.
  int blocks = 0;
  CHECK_CUDA(cudaSuccess, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
  CHECK(blocks == 4);

  CHECK_CUDA(cudaSuccess, cudaLaunchKernel(function, 10, 256, nullptr, 0, nullptr));
  CHECK_CUDA(cudaSuccess, cudaGetLastError());
  CHECK(cudaLaunchKernel(function, 10, 2048, nullptr, 0, nullptr) != cudaSuccess);
  cudaGetLastError();
  // More than 48 KiB have to be asked for, together with what the kernel has itself.
  CHECK_CUDA(cudaErrorInvalidValue, cudaLaunchKernel(function, 1, 32, nullptr, 48 << 10, nullptr));
  cudaGetLastError();
  constexpr int kLarge = 100 << 10;
  CHECK_CUDA(cudaSuccess,
             cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kLarge));
  CHECK_CUDA(cudaSuccess, cudaLaunchKernel(function, 1, 32, nullptr, kLarge, nullptr));
  CHECK_CUDA(
      cudaErrorInvalidValue,
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
  cudaGetLastError();

  // Local memory is taken for all threads that the device runs at a time.
  const size_t before = used();
  const auto* const of_deep = reinterpret_cast<const void*>(&deep);
  CHECK_CUDA(cudaSuccess, cudaLaunchKernel(of_deep, 1, 32, nullptr, 0, nullptr));
  CHECK(used() == before + size_t{132} * 2048 * 4096);
  CHECK_CUDA(cudaSuccess, cudaLaunchKernel(of_deep, 1, 32, nullptr, 0, nullptr));
  CHECK(used() == before + size_t{132} * 2048 * 4096);

  // Code for 10.0 alone does not run on a device of 9.0.
  CHECK_CUDA(cudaErrorNoKernelImageForDevice,
             cudaLaunchKernel(reinterpret_cast<const void*>(&too_new), 1, 32, nullptr, 0, nullptr));
  cudaGetLastError();
}

void test_variables() {
  void* address = nullptr;
  const size_t before = used();
  CHECK_CUDA(cudaSuccess, cudaGetSymbolAddress(&address, table));
  CHECK(address != nullptr);
  size_t bytes = 0;
  CHECK_CUDA(cudaSuccess, cudaGetSymbolSize(&bytes, table));
  CHECK(bytes == 300 << 20);
  std::vector<float> values(256, 1.5f);
  CHECK_CUDA(cudaSuccess,
             cudaMemcpyToSymbol(coefficients, values.data(), 1024, 0, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaErrorInvalidValue,
             cudaMemcpyToSymbol(coefficients, values.data(), 1024, 8, cudaMemcpyHostToDevice));
  cudaGetLastError();
  CHECK_CUDA(cudaSuccess,
             cudaMemcpyFromSymbol(values.data(), coefficients, 1024, 0, cudaMemcpyDeviceToHost));
  // A large variable is memory of the device; it came with its file's first kernel.
  CHECK(used() == before);
  CHECK(used() >= size_t{300} << 20);
}

void test_other_device() {
  CHECK_CUDA(cudaSuccess, cudaSetDevice(1));
  CHECK(used() == 0);
  CHECK_CUDA(cudaSuccess, cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), 10, 256, nullptr,
                                           0, nullptr));
  CHECK(used() >= size_t{300} << 20);
  CHECK_CUDA(cudaSuccess, cudaDeviceReset());
  CHECK(used() == 0);
  CHECK_CUDA(cudaSuccess, cudaSetDevice(0));
  CHECK(used() >= size_t{300} << 20);
}

void test_threads() {
  std::vector<std::thread> threads;
  std::vector<int> errors(16);
  for (int& error : errors) {
    threads.emplace_back([&error] {
      for (int i = 0; i < 100 && !error; ++i) {
        void* pointer = nullptr;
        error = cudaMalloc(&pointer, 1 << 20);
        if (!error)
          error =
              cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), 1, 32, nullptr, 0, nullptr);
        if (!error) error = cudaFree(pointer);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int error : errors) CHECK(error == 0);
}

void test_textures_are_refused() {
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  CHECK_CUDA(cudaErrorNotSupported, cudaMallocArray(&array, &format, 64, 64, 0));
  cudaGetLastError();
}

void test_unknown_table() {
  const auto get = reinterpret_cast<CUresult (*)(const void**, const CUuuid*)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetExportTable"));
  const CUuuid nobodys{};
  const void* found = &nobodys;
  CHECK(get(&found, &nobodys) != CUDA_SUCCESS);
  CHECK(found == nullptr);
}

const void* const* table_of(const CUuuid& id) {
  const auto get = reinterpret_cast<CUresult (*)(const void**, const CUuuid*)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetExportTable"));
  const void* found = nullptr;
  CHECK(get(&found, &id) == CUDA_SUCCESS);
  return static_cast<const void* const*>(found);
}

// What was seen on an H200 (tests/gpu/measured/h200_driver_tables.txt).
void test_tables_of_cublas() {
  const unsigned char current[16] = {0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47,
                                     0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc};
  const unsigned char streams[16] = {0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48,
                                     0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2};
  CUuuid id;
  std::memcpy(&id, current, sizeof id);
  const void* const* const contexts = table_of(id);
  CHECK(reinterpret_cast<size_t>(contexts[0]) == 24);
  void* context = nullptr;
  CHECK(reinterpret_cast<CUresult (*)(void**)>(const_cast<void*>(contexts[2]))(&context) ==
        CUDA_SUCCESS);
  CHECK(context != nullptr);
  std::memcpy(&id, streams, sizeof id);
  const void* const* const table = table_of(id);
  CHECK(reinterpret_cast<size_t>(table[0]) == 744);
  uint64_t flag = 0, number = 0;
  void* stream = nullptr;
  using AskContext = CUresult (*)(void*, uint64_t*);
  using AskStream = CUresult (*)(void*, void*, void**);
  using AskNumber = CUresult (*)(void*, void*, uint64_t*);
  CHECK(reinterpret_cast<AskContext>(const_cast<void*>(table[4]))(context, &flag) == CUDA_SUCCESS);
  CHECK(flag == 1);
  CHECK(reinterpret_cast<AskStream>(const_cast<void*>(table[51]))(context, nullptr, &stream) ==
        CUDA_SUCCESS);
  CHECK(stream != nullptr);
  CHECK(reinterpret_cast<AskNumber>(const_cast<void*>(table[39]))(context, stream, &number) ==
        CUDA_SUCCESS);
  CHECK(number == 7);
}

// cuFFT's way to the functions of a module that it has loaded.
void test_table_of_cufft() {
  const unsigned char bytes[16] = {0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d,
                                   0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e};
  CUuuid id;
  std::memcpy(&id, bytes, sizeof id);
  const void* const* const table = table_of(id);
  CHECK(reinterpret_cast<size_t>(table[0]) == 792);
  CHECK(table[93] == nullptr);
  using Visit = unsigned (*)(void*, CUmodule, void (*)(void*, CUfunction), void*);
  const auto visit = reinterpret_cast<Visit>(const_cast<void*>(table[7]));
  const auto note = [](void* functions, CUfunction function) {
    static_cast<std::vector<CUfunction>*>(functions)->push_back(function);
  };
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto load =
      reinterpret_cast<CUresult (*)(CUmodule*, const void*)>(dlsym(driver, "cuModuleLoadData"));
  const auto get = reinterpret_cast<CUresult (*)(CUfunction*, CUmodule, const char*)>(
      dlsym(driver, "cuModuleGetFunction"));
  const std::vector<MadeKernel> kernels = {{"first", 64, 0, 0, 0}, {"second", 64, 0, 0, 0}};
  const auto code = MadeElf(kernels, {}, true).bytes();
  CUmodule module = nullptr;
  CHECK(load(&module, code.data()) == CUDA_SUCCESS);
  std::vector<CUfunction> functions;
  CHECK(visit(nullptr, module, note, &functions) == 1);
  CHECK(functions.size() == 2);
  for (const char* const name : {"first", "second"}) {
    CUfunction function = nullptr;
    CHECK(get(&function, module, name) == CUDA_SUCCESS);
    CHECK(std::count(functions.begin(), functions.end(), function) == 1);
  }
  // One whose code cannot be read has a function all the same.
  CHECK(load(&module, ".version 8.0\n.target sm_80\n") == CUDA_SUCCESS);
  functions.clear();
  CHECK(visit(nullptr, module, note, &functions) == 1);
  CHECK(functions.size() == 1);
  CHECK(visit(nullptr, nullptr, note, &functions) == 0);
}

}  // namespace

int main() {
  static Registered ours, newer;
  const std::vector<MadeKernel> kernels = {{"kernel", 64, 16, 2048, 0},
                                           {"deep", 32, 1024 + 4096, 0, 0}};
  const std::vector<MadeVariable> variables = {{"table", 300 << 20, false},
                                               {"coefficients", 1024, false}};
  void** handle = register_code(
      &ours, {{false, 90, MadeElf(kernels, variables, true).bytes()}, {true, 90, {0}}});
  register_kernel(handle, &kernel, "kernel");
  register_kernel(handle, &deep, "deep");
  __cudaRegisterVar(handle, table, const_cast<char*>("table"), "table", 0, 300 << 20, 0, 0);
  __cudaRegisterVar(handle, coefficients, const_cast<char*>("coefficients"), "coefficients", 0,
                    1024, 1, 0);
  __cudaRegisterFatBinaryEnd(handle);
  void** const newer_handle =
      register_code(&newer, {{false, 100, MadeElf({{"too_new", 32, 0, 0, 0}}, {}, true).bytes()}});
  register_kernel(newer_handle, &too_new, "too_new");
  __cudaRegisterFatBinaryEnd(newer_handle);

  test_this_is_the_real_runtime();
  test_device();
  test_memory();
  test_tables_of_cublas();
  test_table_of_cufft();
  test_streams();
  test_kernels();
  test_variables();
  test_other_device();
  test_threads();
  test_textures_are_refused();
  test_unknown_table();
  if (!failures) std::printf("all is well\n");
  return failures != 0;
}
