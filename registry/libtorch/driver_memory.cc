#include "registry/libtorch/driver_memory.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "registry/libtorch/cuda_symbols.h"

namespace memledger {
namespace {

constexpr int kMaxDevices = 64;
constexpr int kBusIdLength = 32;
constexpr size_t kUuidBytes = 16;
constexpr int kNameLength = 96;
constexpr unsigned kMaxProcesses = 256;
constexpr unsigned long long kNotAvailable = ~0ULL;

// The third version of NVML's struct.
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

struct NvmlMemory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryVersion = sizeof(NvmlMemory) | 2U << 24;

using NvmlHandle = void*;

template <typename F>
F* function(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

// Never closed.
struct Nvml {
  int (*handle_of_bus_id)(const char*, NvmlHandle*) = nullptr;
  int (*handle_of_uuid)(const char*, NvmlHandle*) = nullptr;
  int (*mig_mode)(NvmlHandle, unsigned*, unsigned*) = nullptr;
  int (*name)(NvmlHandle, char*, unsigned) = nullptr;
  int (*memory)(NvmlHandle, NvmlMemory*) = nullptr;
  int (*processes)(NvmlHandle, unsigned*, NvmlProcess*) = nullptr;

  static const Nvml& get() {
    static const Nvml nvml = [] {
      Nvml loaded;
      void* const library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
      if (library == nullptr) return loaded;
      auto* const init = function<int()>(library, "nvmlInit_v2");
      if (init == nullptr || init() != 0) return loaded;
      loaded.handle_of_bus_id =
          function<int(const char*, NvmlHandle*)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
      loaded.handle_of_uuid =
          function<int(const char*, NvmlHandle*)>(library, "nvmlDeviceGetHandleByUUID");
      loaded.mig_mode =
          function<int(NvmlHandle, unsigned*, unsigned*)>(library, "nvmlDeviceGetMigMode");
      loaded.name = function<int(NvmlHandle, char*, unsigned)>(library, "nvmlDeviceGetName");
      loaded.memory = function<int(NvmlHandle, NvmlMemory*)>(library, "nvmlDeviceGetMemoryInfo_v2");
      loaded.processes = function<int(NvmlHandle, unsigned*, NvmlProcess*)>(
          library, "nvmlDeviceGetComputeRunningProcesses_v3");
      return loaded;
    }();
    return nvml;
  }
};

struct NotedDevice {
  std::atomic<int> state{0};  // 0: not noted, 1: being noted, 2: noted
  std::array<char, kBusIdLength> bus_id{};
  std::array<unsigned char, kUuidBytes> uuid{};
  bool has_uuid = false;
  pid_t process = 0;
};

NotedDevice& noted(int device) {
  static std::array<NotedDevice, kMaxDevices> devices;
  return devices[static_cast<size_t>(device)];
}

bool is_device(int device) { return device >= 0 && device < kMaxDevices; }

// The driver's functions, as the runtime's struct of a device changes with its version.
bool read_uuid(int device, unsigned char* uuid) {
  const auto get =
      reinterpret_cast<int (*)(int*, int)>(find_symbol_of_loaded_library("cuDeviceGet"));
  const auto get_uuid = reinterpret_cast<int (*)(unsigned char*, int)>(
      find_symbol_of_loaded_library("cuDeviceGetUuid_v2"));
  int handle = 0;
  return get != nullptr && get_uuid != nullptr && get(&handle, device) == 0 &&
         get_uuid(uuid, handle) == 0;
}

// `MIG-b2d5cb7a-…`, as NVML names an instance.
std::string name_of_instance(const std::array<unsigned char, kUuidBytes>& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "MIG-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) name += '-';
    name += kDigits[uuid[i] >> 4];
    name += kDigits[uuid[i] & 15];
  }
  return name;
}

// The device on the bus, or the instance of it that CUDA gives the process (MIG): its memory is a
// part of the device's. Null where it is not known.
NvmlHandle handle_of(const NotedDevice& device) {
  const Nvml& nvml = Nvml::get();
  NvmlHandle handle = nullptr;
  if (nvml.handle_of_bus_id == nullptr || nvml.handle_of_bus_id(device.bus_id.data(), &handle) != 0)
    return nullptr;
  unsigned is_split = 0, will_be = 0;
  if (nvml.mig_mode == nullptr || nvml.mig_mode(handle, &is_split, &will_be) != 0 || is_split == 0)
    return handle;
  NvmlHandle instance = nullptr;
  const bool is_known = device.has_uuid && nvml.handle_of_uuid != nullptr &&
                        nvml.handle_of_uuid(name_of_instance(device.uuid).c_str(), &instance) == 0;
  return is_known ? instance : nullptr;
}

std::optional<int64_t> bytes_of_process(NvmlHandle handle, pid_t process) {
  const Nvml& nvml = Nvml::get();
  std::array<NvmlProcess, kMaxProcesses> processes{};
  unsigned count = kMaxProcesses;
  if (nvml.processes == nullptr || nvml.processes(handle, &count, processes.data()) != 0)
    return std::nullopt;
  const NvmlProcess* const end = processes.data() + std::min(count, kMaxProcesses);
  const NvmlProcess* const own = std::find_if(processes.cbegin(), end, [&](const NvmlProcess& one) {
    return one.pid == static_cast<unsigned>(process);
  });
  if (own == end || own->used_bytes == kNotAvailable) return std::nullopt;
  return static_cast<int64_t>(own->used_bytes);
}

}  // namespace

void note_device_in_use(int device) noexcept {
  if (!is_device(device)) return;
  NotedDevice& one = noted(device);
  if (one.state.load(std::memory_order_relaxed) != 0) return;
  int expected = 0;
  if (!one.state.compare_exchange_strong(expected, 1, std::memory_order_acquire)) return;
  using GetBusId = int(char*, int, int);
  auto* const get_bus_id =
      reinterpret_cast<GetBusId*>(find_symbol_of_loaded_library("cudaDeviceGetPCIBusId"));
  if (get_bus_id == nullptr) return;
  if (get_bus_id(one.bus_id.data(), kBusIdLength, device) != 0) {
    // The program would take it for an error of its own call.
    if (auto* const forget_error =
            reinterpret_cast<int (*)()>(find_symbol_of_loaded_library("cudaGetLastError")))
      forget_error();
    return;
  }
  one.has_uuid = read_uuid(device, one.uuid.data());
  one.process = getpid();
  one.state.store(2, std::memory_order_release);
}

std::optional<DriverMemory> driver_memory(int device) {
  if (!is_device(device) || noted(device).state.load(std::memory_order_acquire) != 2)
    return std::nullopt;
  const Nvml& nvml = Nvml::get();
  NvmlHandle handle = handle_of(noted(device));
  NvmlMemory memory{};
  memory.version = kMemoryVersion;
  if (handle == nullptr || nvml.memory == nullptr || nvml.memory(handle, &memory) != 0)
    return std::nullopt;
  DriverMemory result;
  std::array<char, kNameLength> name{};
  if (nvml.name != nullptr && nvml.name(handle, name.data(), kNameLength) == 0)
    result.name = name.data();
  result.total_bytes = static_cast<int64_t>(memory.total - memory.reserved);
  result.used_bytes = static_cast<int64_t>(memory.used);
  result.process_bytes = bytes_of_process(handle, noted(device).process);
  return result;
}

}  // namespace memledger
