// NVML, the management library: devices by number, bus or UUID, their memory and what each process
// has of it. It counts all devices of the machine, whatever CUDA_VISIBLE_DEVICES leaves to CUDA.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "virtual_gpu/answers/cudart.h"
#include "virtual_gpu/answers/nvml.h"
#include "virtual_gpu/visible_devices.h"

namespace memledger::virtual_gpu::nvml {

int give_text(const char* text, char* to, unsigned length) {
  if (!to) return kInvalidArgument;
  const size_t needed = std::strlen(text) + 1;
  if (length < needed) return kInsufficientSize;
  std::memcpy(to, text, needed);
  return kSuccess;
}

}  // namespace memledger::virtual_gpu::nvml

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::nvml;

namespace {

int give_handle(int machine_number, Handle* handle) {
  if (!handle || machine_number < 0 || machine_number >= Machine::get().machine_count())
    return kInvalidArgument;
  *handle = &handles[machine_number];
  return kSuccess;
}

// The layouts are NVML's.
struct Memory {
  unsigned long long total, free, used;
};

struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct ProcessV1 {
  unsigned pid;
  unsigned long long used_memory;
};

struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

struct Utilization {
  unsigned gpu, memory;
};

struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int value_type, result;
  unsigned long long value;
};

// The second version; later ones are longer.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;  // 0: not supported
  unsigned health;
};

size_t reserved_bytes(Handle handle) {
  const Profile& profile = profile_of(handle);
  return profile.nominal_memory_bytes -
         std::min(profile.nominal_memory_bytes, profile.total_memory_bytes);
}

template <typename P>
int processes(Handle handle, unsigned* count, P* process) {
  if (!is_handle(handle) || !count) return kInvalidArgument;
  const unsigned room = *count;
  const auto running = Machine::get().processes(device_of(handle));
  *count = static_cast<unsigned>(running.size());
  if (running.empty()) return kSuccess;
  if (room < running.size() || !process) return kInsufficientSize;
  for (const SharedDevices::Process& one : running) {
    std::memset(process, 0xff, sizeof *process);
    process->pid = static_cast<unsigned>(one.id);
    process->used_memory = one.bytes;
    ++process;
  }
  return kSuccess;
}

}  // namespace

MEMLEDGER_DOES_NOTHING(nvmlInit)
MEMLEDGER_DOES_NOTHING(nvmlInit_v2)
MEMLEDGER_DOES_NOTHING(nvmlInitWithFlags)
MEMLEDGER_DOES_NOTHING(nvmlShutdown)

MEMLEDGER_ANSWER const char* nvmlErrorString(int error) {
  switch (error) {
    case kSuccess:
      return "Success";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case kVersionMismatch:
      return "Argument Version Mismatch";
    default:
      return "Unknown Error";
  }
}

MEMLEDGER_ANSWER int nvmlSystemGetCudaDriverVersion(int* version) {
  if (!version) return kInvalidArgument;
  *version = CUDART_VERSION;
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

MEMLEDGER_ANSWER int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return give_text(kDriverVersion, text, length);
}

MEMLEDGER_ANSWER int nvmlDeviceGetCount_v2(unsigned* count) {
  if (!count) return kInvalidArgument;
  *count = static_cast<unsigned>(Machine::get().machine_count());
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

MEMLEDGER_ANSWER int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  return give_handle(static_cast<int>(index), handle);
}
MEMLEDGER_ANSWER int nvmlDeviceGetHandleByIndex(unsigned index, Handle* handle) {
  return give_handle(static_cast<int>(index), handle);
}

MEMLEDGER_ANSWER int nvmlDeviceGetHandleByPciBusId_v2(const char* text, Handle* handle) {
  const int number = text ? machine_number_at_pci_bus(text) : -1;
  return number < 0 ? kNotFound : give_handle(number, handle);
}

MEMLEDGER_ANSWER int nvmlDeviceGetHandleByPciBusId(const char* text, Handle* handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, handle);
}

MEMLEDGER_ANSWER int nvmlDeviceGetHandleByUUID(const char* text, Handle* handle) {
  for (int number = 0; text && number < Machine::get().machine_count(); ++number) {
    if (uuid_text(number) == text) return give_handle(number, handle);
  }
  return kNotFound;
}

MEMLEDGER_ANSWER int nvmlDeviceGetIndex(Handle handle, unsigned* index) {
  if (!is_handle(handle) || !index) return kInvalidArgument;
  *index = static_cast<unsigned>(machine_number_of(handle));
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlDeviceGetUUID(Handle handle, char* text, unsigned length) {
  if (!is_handle(handle)) return kInvalidArgument;
  return give_text(uuid_text(machine_number_of(handle)).c_str(), text, length);
}

MEMLEDGER_ANSWER int nvmlDeviceGetName(Handle handle, char* text, unsigned length) {
  return is_handle(handle) ? give_text(profile_of(handle).device_name.c_str(), text, length)
                           : kInvalidArgument;
}

// NVML counts what is on the board: the rest is reserved, and used in the first layout.
MEMLEDGER_ANSWER int nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
  if (!is_handle(handle) || !memory) return kInvalidArgument;
  const MemoryInfo info = Machine::get().memory_info(device_of(handle));
  const size_t total = info.total_bytes + reserved_bytes(handle);
  *memory = {total, info.free_bytes, total - info.free_bytes};
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2* memory) {
  if (!is_handle(handle) || !memory) return kInvalidArgument;
  const MemoryInfo info = Machine::get().memory_info(device_of(handle));
  const size_t reserved = reserved_bytes(handle);
  *memory = {memory->version, info.total_bytes + reserved, reserved, info.free_bytes,
             info.total_bytes - info.free_bytes};
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  if (!is_handle(handle) || !major || !minor) return kInvalidArgument;
  *major = profile_of(handle).major;
  *minor = profile_of(handle).minor;
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlDeviceGetUtilizationRates(Handle handle, Utilization* utilization) {
  if (!is_handle(handle) || !utilization) return kInvalidArgument;
  *utilization = {0, 0};
  return kSuccess;
}

// Without a version in its name it has the first layout, which LibTorch asks for.
MEMLEDGER_ANSWER int nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count,
                                                          ProcessV1* process) {
  return processes(handle, count, process);
}

MEMLEDGER_ANSWER int nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count,
                                                             Process* process) {
  return processes(handle, count, process);
}

MEMLEDGER_ANSWER int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count,
                                                             Process* process) {
  return processes(handle, count, process);
}

MEMLEDGER_ANSWER int nvmlDeviceGetP2PStatus(Handle handle, Handle peer, int, int* status) {
  constexpr int kOk = 0, kChipsetNotSupported = 1;
  if (!is_handle(handle) || !is_handle(peer) || !status) return kInvalidArgument;
  *status = have_peers(profile_of(handle), profile_of(peer)) ? kOk : kChipsetNotSupported;
  return kSuccess;
}

// Links between devices, and what belongs to them, are not modelled.
MEMLEDGER_ANSWER int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, int*) {
  return kNotSupported;
}
MEMLEDGER_ANSWER int nvmlDeviceGetNvLinkRemotePciInfo(Handle, unsigned, void*) {
  return kNotSupported;
}
MEMLEDGER_ANSWER int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) {
  return kNotSupported;
}
MEMLEDGER_ANSWER int nvmlDeviceGetNvLinkCapability(Handle, unsigned, int, unsigned*) {
  return kNotSupported;
}
MEMLEDGER_ANSWER int nvmlDeviceGetPlatformInfo(Handle, void*) { return kNotSupported; }
MEMLEDGER_ANSWER int nvmlSystemGetConfComputeState(void*) { return kNotSupported; }
MEMLEDGER_ANSWER int nvmlSystemGetConfComputeSettings(void*) { return kNotSupported; }
// Each field says for itself that it is not there.
MEMLEDGER_ANSWER int nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue* values) {
  if (!is_handle(handle) || count < 0 || !values) return kInvalidArgument;
  for (int i = 0; i < count; ++i) values[i].result = kNotSupported;
  return kSuccess;
}
// What a card without a fabric answers. At a failure LibTorch 2.13 ends a program that has
// expandable segments (github.com/pytorch/pytorch/issues/186374).
MEMLEDGER_ANSWER int nvmlDeviceGetGpuFabricInfoV(Handle handle, FabricInfo* info) {
  if (!is_handle(handle) || !info) return kInvalidArgument;
  const unsigned version = info->version;
  const size_t size = version & 0xffffff;
  if (version >> 24 < 2 || size < sizeof *info || size > 2 * sizeof *info) return kVersionMismatch;
  std::memset(info, 0, size);
  info->version = version;
  return kSuccess;
}
