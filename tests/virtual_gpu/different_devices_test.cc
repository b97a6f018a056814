#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/virtual_gpu/made_device_code.h"
#include "virtual_gpu/profiles.h"

// Three devices of which CUDA_VISIBLE_DEVICES shows two, in another order. The answers are linked
// in.

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*);
int nvmlDeviceGetCount_v2(unsigned* count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, char** handle);
int nvmlDeviceGetHandleByPciBusId_v2(const char* text, char** handle);
int nvmlDeviceGetHandleByUUID(const char* text, char** handle);
int nvmlDeviceGetGpuFabricInfoV(char* handle, void* info);
int nvmlDeviceGetIndex(char* handle, unsigned* index);
int nvmlDeviceGetMemoryInfo(char* handle, void* memory);
int nvmlDeviceGetMemoryInfo_v2(char* handle, void* memory);
int nvmlDeviceGetTemperature(char* handle, int sensor, unsigned* celsius);
int nvmlDeviceGetMaxClockInfo(char* handle, int type, unsigned* clock);
int nvmlDeviceGetMigMode(char* handle, unsigned* current, unsigned* pending);
int nvmlDeviceGetPciInfo_v3(char* handle, void* info);
int nvmlSystemGetDriverVersion(char* text, unsigned length);
int nvmlDeviceGetName(char* handle, char* text, unsigned length);
int nvmlDeviceGetUUID(char* handle, char* text, unsigned length);
}

namespace {

using memledger::virtual_gpu::find_profile;

TEST_CASE("the runtime and the driver see the two, in the order that was asked for") {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  REQUIRE(count == 2);
  REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  REQUIRE(count == 2);
  const char* const names[] = {"Tesla T4", "NVIDIA H100 80GB HBM3"};
  const int majors[] = {7, 9};
  const size_t totals[] = {size_t{4} << 30, find_profile("h100")->total_memory_bytes};
  for (int device = 0; device < 2; ++device) {
    cudaDeviceProp properties;
    REQUIRE(cudaGetDeviceProperties(&properties, device) == cudaSuccess);
    CHECK(std::string(properties.name) == names[device]);
    CHECK(properties.major == majors[device]);
    CHECK(properties.totalGlobalMem == totals[device]);
    char name[64];
    CHECK(cuDeviceGetName(name, sizeof name, device) == CUDA_SUCCESS);
    CHECK(std::string(name) == names[device]);
    size_t bytes = 0;
    CHECK(cuDeviceTotalMem(&bytes, device) == CUDA_SUCCESS);
    CHECK(bytes == totals[device]);
  }
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
}

TEST_CASE("the context takes what was measured, and clusters are the device's") {
  const uint64_t contexts[] = {find_profile("t4")->context_bytes,
                               find_profile("h100")->context_bytes};
  for (int device = 0; device < 2; ++device) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    size_t free_bytes = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
    CHECK(total - free_bytes == contexts[device]);
    int size = 0;
    CHECK(cudaOccupancyMaxPotentialClusterSize(&size, nullptr, nullptr) == cudaSuccess);
    CHECK(size == (device == 0 ? 1 : 8));
  }
}

TEST_CASE("a kernel says of each device what would run there") {
  using namespace memledger::virtual_gpu;
  const std::vector<unsigned char> machine_code =
      MadeElf({{"kernel", 32, 0, 0, 0}}, {}, false).bytes();
  const std::vector<unsigned char> code =
      made_fat_binary({{false, 75, machine_code}, {false, 90, machine_code}});
  MadeFrame description;
  description.code = code.data();
  static char kernel;
  void** const handle = __cudaRegisterFatBinary(&description);
  __cudaRegisterFunction(handle, &kernel, nullptr, "kernel", -1, nullptr, nullptr, nullptr, nullptr,
                         nullptr);
  for (const int device : {0, 1, 0}) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    cudaFuncAttributes attributes;
    REQUIRE(cudaFuncGetAttributes(&attributes, &kernel) == cudaSuccess);
    CHECK(attributes.binaryVersion == (device == 0 ? 75 : 90));
  }
  __cudaUnregisterFatBinary(handle);
}

TEST_CASE("NVML counts all of them, and finds CUDA's by bus and UUID") {
  unsigned count = 0;
  CHECK(nvmlDeviceGetCount_v2(&count) == 0);
  CHECK(count == 3);
  char* handle = nullptr;
  char text[64];
  const char* const names[] = {"NVIDIA H100 80GB HBM3", "NVIDIA L4", "Tesla T4"};
  for (unsigned number = 0; number < 3; ++number) {
    REQUIRE(nvmlDeviceGetHandleByIndex_v2(number, &handle) == 0);
    CHECK(nvmlDeviceGetName(handle, text, sizeof text) == 0);
    CHECK(std::string(text) == names[number]);
    CHECK(nvmlDeviceGetUUID(handle, text, sizeof text) == 0);
    char* same = nullptr;
    CHECK(nvmlDeviceGetHandleByUUID(text, &same) == 0);
    CHECK(same == handle);
  }
  CHECK(nvmlDeviceGetHandleByIndex_v2(3, &handle) != 0);
  // CUDA's first is the machine's third.
  CHECK(cudaDeviceGetPCIBusId(text, sizeof text, 0) == cudaSuccess);
  REQUIRE(nvmlDeviceGetHandleByPciBusId_v2(text, &handle) == 0);
  unsigned index = 0;
  CHECK(nvmlDeviceGetIndex(handle, &index) == 0);
  CHECK(index == 2);
  int device = -1;
  CHECK(cudaDeviceGetByPCIBusId(&device, text) == cudaSuccess);
  CHECK(device == 0);
  // The hidden one has a bus, but no number of CUDA's.
  CHECK(cudaDeviceGetByPCIBusId(&device, "0000:27:00.0") == cudaErrorInvalidDevice);
  CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:27:00.0", &handle) == 0);
}

TEST_CASE("NVML counts what is on the board, and has plausible figures") {
  char* handle = nullptr;
  REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &handle) == 0);
  struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
  } memory{2U << 24 | 40, 0, 0, 0, 0};
  constexpr unsigned long long kMiB = 1 << 20;
  REQUIRE(nvmlDeviceGetMemoryInfo_v2(handle, &memory) == 0);
  CHECK(memory.total == 81559 * kMiB);
  CHECK(memory.reserved == (81559 - 80994) * kMiB);
  CHECK(memory.total == memory.reserved + memory.used + memory.free);
  unsigned long long first[3] = {};
  REQUIRE(nvmlDeviceGetMemoryInfo(handle, first) == 0);
  CHECK(first[0] == memory.total);
  CHECK(first[2] == memory.used + memory.reserved);
  // One with other memory than its profile's has as much reserved.
  char* t4 = nullptr;
  REQUIRE(nvmlDeviceGetHandleByIndex_v2(2, &t4) == 0);
  REQUIRE(nvmlDeviceGetMemoryInfo_v2(t4, &memory) == 0);
  CHECK(memory.total == (4096 + 15360 - 14912) * kMiB);

  unsigned value = 0, pending = 0;
  CHECK(nvmlDeviceGetTemperature(handle, 0, &value) == 0);
  CHECK((value > 0 && value < 100));
  CHECK(nvmlDeviceGetMaxClockInfo(handle, 1, &value) == 0);
  CHECK(value == 1980);
  CHECK(nvmlDeviceGetMigMode(handle, &value, &pending) == 0);
  CHECK(value == 0);
  CHECK(nvmlDeviceGetMigMode(t4, &value, &pending) == 3);  // not supported
  char text[64];
  int numbers[3] = {};
  CHECK(nvmlSystemGetDriverVersion(text, sizeof text) == 0);
  CHECK(std::sscanf(text, "%d.%d.%d", &numbers[0], &numbers[1], &numbers[2]) == 3);
  struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
  } pci{};
  CHECK(nvmlDeviceGetPciInfo_v3(handle, &pci) == 0);
  CHECK(std::string(pci.bus_id) == "00000000:17:00.0");
  CHECK(pci.bus == 0x17);
  CHECK(pci.id == 0x233010de);
}

TEST_CASE("NVML knows no fabric between devices, and says so in the caller's version") {
  char* handle = nullptr;
  REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &handle) == 0);
  for (const auto& [version, size] : {std::pair{2u, 36u}, std::pair{3u, 40u}}) {
    CAPTURE(version);
    std::array<unsigned char, 48> info;
    info.fill(0xff);
    const unsigned asked = version << 24 | size;
    std::memcpy(info.data(), &asked, sizeof asked);
    CHECK(nvmlDeviceGetGpuFabricInfoV(handle, info.data()) == 0);
    unsigned answered = 0;
    std::memcpy(&answered, info.data(), sizeof answered);
    CHECK(answered == asked);
    CHECK(std::all_of(info.begin() + 4, info.begin() + size, [](auto byte) { return byte == 0; }));
    CHECK(std::all_of(info.begin() + size, info.end(), [](auto byte) { return byte == 0xff; }));
  }
  unsigned first_version = 1 << 24 | 28;
  CHECK(nvmlDeviceGetGpuFabricInfoV(handle, &first_version) == 25);  // version mismatch
}

}  // namespace

int main(int argc, char** argv) {
  // Both are read at the first CUDA call.
  setenv("MEMLEDGER_VIRTUAL_GPU", "h100+l4+t4:4GiB", 1);
  setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
  return doctest::Context(argc, argv).run();
}
