// NVML: what devices say of themselves besides their memory. Nothing moves here, so these are the
// constant figures of an idle device: those of an H200 with driver 580.159.04 where they do not
// depend on the device.
#include <cstdio>
#include <cstring>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/cudart.h"
#include "virtual_gpu/answers/nvml.h"

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::nvml;

namespace {

constexpr unsigned kCelsius = 39;
constexpr unsigned kIdleMilliwatts = 80650;
constexpr unsigned kIdleMhz = 345;

// NVML's numbers of clocks.
constexpr int kMemoryClock = 2;
constexpr int kClocks = 4;

// The layouts are NVML's.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct TemperatureV1 {
  unsigned version;
  int sensor;
  int celsius;
};

struct Bar1Memory {
  unsigned long long total, free, used;
};

template <typename T, typename Value>
int give(Handle handle, T* to, Value value) {
  if (!is_handle(handle) || !to) return kInvalidArgument;
  *to = static_cast<T>(value(profile_of(handle)));
  return kSuccess;
}

template <typename T>
int give_constant(Handle handle, T* to, T value) {
  return give(handle, to, [value](const Profile&) { return value; });
}

bool is_geforce(const Profile& profile) {
  return profile.device_name.find("GeForce") != std::string::npos;
}

// MIG is a capability of 8.0, 9.0 and 10.0, as of A100, A30, H100 and B200.
bool has_mig(const Profile& profile) {
  return profile.major >= 8 && profile.minor == 0 && profile.major < 12;
}

unsigned power_limit(const Profile& profile) {
  constexpr unsigned kLargest = 700000, kLarge = 400000, kOther = 300000;
  if (!profile.error_correction) return kOther;
  return profile.major >= 9 ? kLargest : profile.minor == 0 ? kLarge : kOther;
}

unsigned pcie_generation(const Profile& profile) {
  return profile.major >= 9 ? 5 : profile.major == 8 ? 4 : 3;
}

unsigned mhz(int khz) { return static_cast<unsigned>(khz) / 1000; }

int give_clock(Handle handle, int type, unsigned* clock, bool is_most) {
  if (type < 0 || type >= kClocks) return kInvalidArgument;
  return give(handle, clock, [&](const Profile& profile) {
    if (type == kMemoryClock) return mhz(profile.memory_clock_khz);
    return is_most ? mhz(profile.clock_khz) : kIdleMhz;
  });
}

int give_pci(Handle handle, PciInfo* info) {
  if (!is_handle(handle) || !info) return kInvalidArgument;
  std::memset(info, 0, sizeof *info);
  pci_bus_id(info->legacy_bus_id, sizeof info->legacy_bus_id, machine_number_of(handle));
  std::snprintf(info->bus_id, sizeof info->bus_id, "0000%s", info->legacy_bus_id);
  std::sscanf(info->legacy_bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
  info->pci_device_id = static_cast<unsigned>(profile_of(handle).pci_device_id);
  return kSuccess;
}

}  // namespace

MEMLEDGER_ANSWER int nvmlSystemGetNVMLVersion(char* text, unsigned length) {
  return give_text("13.580.159.04", text, length);
}

MEMLEDGER_ANSWER int nvmlDeviceGetTemperature(Handle handle, int, unsigned* celsius) {
  return give_constant(handle, celsius, kCelsius);
}
MEMLEDGER_ANSWER int nvmlDeviceGetTemperatureV(Handle handle, TemperatureV1* temperature) {
  if (!is_handle(handle) || !temperature) return kInvalidArgument;
  temperature->celsius = kCelsius;
  return kSuccess;
}
MEMLEDGER_ANSWER int nvmlDeviceGetPowerUsage(Handle handle, unsigned* milliwatts) {
  return give_constant(handle, milliwatts, kIdleMilliwatts);
}
MEMLEDGER_ANSWER int nvmlDeviceGetPowerManagementLimit(Handle handle, unsigned* milliwatts) {
  return give(handle, milliwatts, power_limit);
}
MEMLEDGER_ANSWER int nvmlDeviceGetEnforcedPowerLimit(Handle handle, unsigned* milliwatts) {
  return give(handle, milliwatts, power_limit);
}
MEMLEDGER_ANSWER int nvmlDeviceGetPowerManagementDefaultLimit(Handle handle, unsigned* milliwatts) {
  return give(handle, milliwatts, power_limit);
}
MEMLEDGER_ANSWER int nvmlDeviceGetTotalEnergyConsumption(Handle handle,
                                                         unsigned long long* millijoules) {
  return give_constant(handle, millijoules, 1000000000ULL);
}
MEMLEDGER_ANSWER int nvmlDeviceGetClockInfo(Handle handle, int type, unsigned* clock) {
  return give_clock(handle, type, clock, false);
}
MEMLEDGER_ANSWER int nvmlDeviceGetMaxClockInfo(Handle handle, int type, unsigned* clock) {
  return give_clock(handle, type, clock, true);
}
MEMLEDGER_ANSWER int nvmlDeviceGetApplicationsClock(Handle handle, int type, unsigned* clock) {
  return give_clock(handle, type, clock, true);
}
MEMLEDGER_ANSWER int nvmlDeviceGetCurrentClocksThrottleReasons(Handle handle,
                                                               unsigned long long* reasons) {
  return give_constant(handle, reasons, 1ULL);  // idle
}
MEMLEDGER_ANSWER int nvmlDeviceGetPerformanceState(Handle handle, int* state) {
  return give_constant(handle, state, 0);
}
MEMLEDGER_ANSWER int nvmlDeviceGetFanSpeed(Handle handle, unsigned* percent) {
  if (!is_handle(handle) || !percent) return kInvalidArgument;
  if (!is_geforce(profile_of(handle))) return kNotSupported;
  *percent = 0;
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlDeviceGetMigMode(Handle handle, unsigned* current, unsigned* pending) {
  if (!is_handle(handle) || !current || !pending) return kInvalidArgument;
  if (!has_mig(profile_of(handle))) return kNotSupported;
  *current = *pending = 0;
  return kSuccess;
}
MEMLEDGER_ANSWER int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned* count) {
  return give_constant(handle, count, 0U);
}
MEMLEDGER_ANSWER int nvmlDeviceIsMigDeviceHandle(Handle handle, unsigned* is_mig) {
  return give_constant(handle, is_mig, 0U);
}

MEMLEDGER_ANSWER int nvmlDeviceGetArchitecture(Handle handle, unsigned* architecture) {
  // Volta 5, Turing 6, Ampere 7, Ada 8, Hopper 9, Blackwell 10.
  return give(handle, architecture, [](const Profile& profile) {
    if (profile.major >= 10) return 10;
    if (profile.major == 9) return 9;
    if (profile.major == 8) return profile.minor == 9 ? 8 : 7;
    return profile.minor == 5 ? 6 : 5;
  });
}
MEMLEDGER_ANSWER int nvmlDeviceGetBrand(Handle handle, int* brand) {
  constexpr int kTesla = 2, kGeforceRtx = 11, kNvidiaRtx = 12, kNvidia = 14;
  return give(handle, brand, [](const Profile& profile) {
    if (is_geforce(profile)) return kGeforceRtx;
    if (profile.device_name.find("Tesla") != std::string::npos) return kTesla;
    return profile.device_name.find("RTX") != std::string::npos ? kNvidiaRtx : kNvidia;
  });
}
MEMLEDGER_ANSWER int nvmlDeviceGetNumGpuCores(Handle handle, unsigned* cores) {
  return give(handle, cores, [](const Profile& profile) {
    const bool has_few = profile.major == 7 || (profile.major == 8 && profile.minor == 0);
    return profile.multiprocessors * (has_few ? 64 : 128);
  });
}
MEMLEDGER_ANSWER int nvmlDeviceGetMemoryBusWidth(Handle handle, unsigned* bits) {
  return give(handle, bits, [](const Profile& profile) { return profile.memory_bus_bits; });
}
MEMLEDGER_ANSWER int nvmlDeviceGetBAR1MemoryInfo(Handle handle, Bar1Memory* memory) {
  constexpr unsigned long long kTotal = 256ULL << 30, kUsed = 1703936;
  if (!is_handle(handle) || !memory) return kInvalidArgument;
  *memory = {kTotal, kTotal - kUsed, kUsed};
  return kSuccess;
}

MEMLEDGER_ANSWER int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
  return give_pci(handle, info);
}
MEMLEDGER_ANSWER int nvmlDeviceGetPciInfo_v2(Handle handle, PciInfo* info) {
  return give_pci(handle, info);
}
MEMLEDGER_ANSWER int nvmlDeviceGetPciInfo(Handle handle, PciInfo* info) {
  return give_pci(handle, info);
}
MEMLEDGER_ANSWER int nvmlDeviceGetCurrPcieLinkGeneration(Handle handle, unsigned* generation) {
  return give(handle, generation, pcie_generation);
}
MEMLEDGER_ANSWER int nvmlDeviceGetMaxPcieLinkGeneration(Handle handle, unsigned* generation) {
  return give(handle, generation, pcie_generation);
}
MEMLEDGER_ANSWER int nvmlDeviceGetCurrPcieLinkWidth(Handle handle, unsigned* lanes) {
  return give_constant(handle, lanes, 16U);
}
MEMLEDGER_ANSWER int nvmlDeviceGetMaxPcieLinkWidth(Handle handle, unsigned* lanes) {
  return give_constant(handle, lanes, 16U);
}

MEMLEDGER_ANSWER int nvmlDeviceGetMinorNumber(Handle handle, unsigned* number) {
  if (!is_handle(handle) || !number) return kInvalidArgument;
  *number = static_cast<unsigned>(machine_number_of(handle));
  return kSuccess;
}
MEMLEDGER_ANSWER int nvmlDeviceGetComputeMode(Handle handle, int* mode) {
  return give_constant(handle, mode, 0);
}
MEMLEDGER_ANSWER int nvmlDeviceGetPersistenceMode(Handle handle, int* mode) {
  return give_constant(handle, mode, 1);
}
MEMLEDGER_ANSWER int nvmlDeviceGetDisplayActive(Handle handle, int* is_active) {
  return give_constant(handle, is_active, 0);
}
MEMLEDGER_ANSWER int nvmlDeviceGetEccMode(Handle handle, int* current, int* pending) {
  if (!is_handle(handle) || !current || !pending) return kInvalidArgument;
  if (!profile_of(handle).error_correction) return kNotSupported;
  *current = *pending = 1;
  return kSuccess;
}
MEMLEDGER_ANSWER int nvmlDeviceGetTotalEccErrors(Handle handle, int, int,
                                                 unsigned long long* count) {
  return give_constant(handle, count, 0ULL);
}
MEMLEDGER_ANSWER int nvmlDeviceGetCpuAffinity(Handle handle, unsigned count, unsigned long* set) {
  if (!is_handle(handle) || !set) return kInvalidArgument;
  std::memset(set, 0xff, count * sizeof *set);
  return kSuccess;
}
MEMLEDGER_ANSWER int nvmlDeviceGetNvLinkState(Handle, unsigned, int*) { return kNotSupported; }
MEMLEDGER_ANSWER int nvmlDeviceGetTopologyCommonAncestor(Handle handle, Handle other, int* level) {
  constexpr int kSystem = 50;
  if (!is_handle(other)) return kInvalidArgument;
  return give_constant(handle, level, kSystem);
}
MEMLEDGER_ANSWER int nvmlDeviceGetSerial(Handle handle, char*, unsigned) {
  return is_handle(handle) ? kNotSupported : kInvalidArgument;
}
MEMLEDGER_ANSWER int nvmlDeviceGetVbiosVersion(Handle handle, char* text, unsigned length) {
  return is_handle(handle) ? give_text("96.00.A5.00.1A", text, length) : kInvalidArgument;
}
MEMLEDGER_ANSWER int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count,
                                                              void*) {
  return give_constant(handle, count, 0U);
}
