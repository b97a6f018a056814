// NVML and the parts of CUDA that driver_memory.cc asks, of one GPU of 80 GB that is split into two
// instances (MIG), of which the process has the second.
#include <cstdio>
#include <cstring>

namespace {

struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct Memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

char whole_gpu, instance;
bool is_instance_known = true;

}  // namespace

extern "C" {

void know_instance(bool is_known) { is_instance_known = is_known; }

int cudaDeviceGetPCIBusId(char* id, int length, int /*device*/) {
  std::snprintf(id, static_cast<size_t>(length), "0000:01:00.0");
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 7;
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(0xa0 + i);
  return device == 7 ? 0 : 1;
}

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {
  *handle = &whole_gpu;
  return std::strcmp(id, "0000:01:00.0") == 0 ? 0 : 2;
}
int nvmlDeviceGetMigMode(void* handle, unsigned* now, unsigned* then) {
  *now = *then = 1;
  return handle == &whole_gpu ? 0 : 3;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  *handle = &instance;
  const bool is_it = std::strcmp(uuid, "MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf") == 0;
  return is_it && is_instance_known ? 0 : 6;
}
int nvmlDeviceGetName(void* handle, char* name, unsigned length) {
  std::snprintf(name, length, handle == &instance ? "H100 MIG 1g.10gb" : "H100");
  return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void* handle, Memory* memory) {
  const bool is_part = handle == &instance;
  memory->total = is_part ? 10'000 : 80'000;
  memory->reserved = is_part ? 10 : 500;
  memory->used = is_part ? 3'000 : 33'000;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* /*handle*/, unsigned* count, Process* /*all*/) {
  *count = 0;
  return 0;
}

}  // extern "C"
