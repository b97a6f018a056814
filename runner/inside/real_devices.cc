#include "runner/inside/real_devices.h"

#include <c10/core/Device.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "registry/device_statistics.h"
#include "registry/libtorch/cuda_symbols.h"
#include "runner/environment.h"

namespace memledger::inside {
namespace {

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

using NvmlHandle = void*;

constexpr size_t kMaxProcesses = 256;
constexpr int kMaxDevices = 64;
constexpr int kBusIdLength = 32;
constexpr int kNameLength = 96;
constexpr unsigned kMemoryVersion = sizeof(NvmlMemory) | 2U << 24;
constexpr unsigned long long kNotAvailable = ~0ULL;

template <typename F>
F* function(void* library, const char* name) {
  void* const symbol =
      library == nullptr ? find_symbol_of_loaded_library(name) : dlsym(library, name);
  return reinterpret_cast<F*>(symbol);
}

// NVIDIA's management library, which comes with the driver.
struct Nvml {
  int (*handle_of_bus_id)(const char*, NvmlHandle*) = nullptr;
  int (*name)(NvmlHandle, char*, unsigned) = nullptr;
  int (*memory)(NvmlHandle, NvmlMemory*) = nullptr;
  int (*processes)(NvmlHandle, unsigned*, NvmlProcess*) = nullptr;

  // Never closed.
  static const Nvml& get() {
    static const Nvml nvml = [] {
      Nvml loaded;
      void* const library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
      if (library == nullptr) return loaded;
      auto* const init = function<int()>(library, "nvmlInit_v2");
      if (init == nullptr || init() != 0) return loaded;
      loaded.handle_of_bus_id =
          function<int(const char*, NvmlHandle*)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
      loaded.name = function<int(NvmlHandle, char*, unsigned)>(library, "nvmlDeviceGetName");
      loaded.memory = function<int(NvmlHandle, NvmlMemory*)>(library, "nvmlDeviceGetMemoryInfo_v2");
      loaded.processes = function<int(NvmlHandle, unsigned*, NvmlProcess*)>(
          library, "nvmlDeviceGetComputeRunningProcesses_v3");
      return loaded;
    }();
    return nvml;
  }
};

NvmlHandle handle_of(int device) {
  auto* const bus_id = function<int(char*, int, int)>(nullptr, "cudaDeviceGetPCIBusId");
  const Nvml& nvml = Nvml::get();
  std::array<char, kBusIdLength> text{};
  NvmlHandle handle = nullptr;
  if (bus_id == nullptr || nvml.handle_of_bus_id == nullptr) return nullptr;
  if (bus_id(text.data(), kBusIdLength, device) != 0) return nullptr;
  return nvml.handle_of_bus_id(text.data(), &handle) == 0 ? handle : nullptr;
}

std::string name_of(NvmlHandle handle) {
  const Nvml& nvml = Nvml::get();
  std::array<char, kNameLength> text{};
  if (nvml.name == nullptr || nvml.name(handle, text.data(), kNameLength) != 0) return "";
  return text.data();
}

// Empty where the driver does not say: in a container it knows processes by other numbers.
std::optional<int64_t> bytes_of_process(NvmlHandle handle) {
  const Nvml& nvml = Nvml::get();
  std::array<NvmlProcess, kMaxProcesses> processes{};
  unsigned count = kMaxProcesses;
  if (nvml.processes == nullptr || nvml.processes(handle, &count, processes.data()) != 0)
    return std::nullopt;
  const NvmlProcess* const end = processes.data() + std::min<size_t>(count, kMaxProcesses);
  const NvmlProcess* const own = std::find_if(
      processes.cbegin(), end,
      [](const NvmlProcess& process) { return process.pid == static_cast<unsigned>(getpid()); });
  if (own == end || own->used_bytes == kNotAvailable) return std::nullopt;
  return static_cast<int64_t>(own->used_bytes);
}

c10::Device cuda(int index) {
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

// A row's name lives as long as the process.
const char* kept(const std::string& name) {
  static auto* const lock = new std::mutex;
  static auto* const names = new std::map<std::string, std::string>;
  const std::lock_guard<std::mutex> hold(*lock);
  return names->emplace(name, name).first->second.c_str();
}

memledger_virtual_gpu_use row_of(int device) {
  memledger_virtual_gpu_use row{};
  const auto statistics = device_statistics(cuda(device));
  if (!statistics || statistics->reserved_bytes.peak == 0) return row;
  const RealUse use = real_use(device);
  const int64_t context =
      std::max<int64_t>(0, use.process_bytes - statistics->reserved_bytes.current);
  row.name = kept(use.name);
  row.total_bytes = static_cast<uint64_t>(use.total_bytes);
  row.context_bytes = static_cast<uint64_t>(context);
  row.used_bytes = static_cast<uint64_t>(use.process_bytes);
  row.peak_bytes = static_cast<uint64_t>(statistics->reserved_bytes.peak + context);
  return row;
}

}  // namespace

bool has_real_devices() {
  static const bool answer = [] {
    const char* const asked = secure_getenv(environment::kMeasureReal);
    const std::string_view text = asked == nullptr ? "" : asked;
    const bool is_virtual = dlsym(RTLD_DEFAULT, "memledger_virtual_gpu_uses") != nullptr;
    return !is_virtual || (!text.empty() && text != "0");
  }();
  return answer;
}

RealUse real_use(int device) {
  RealUse use;
  const NvmlHandle handle = handle_of(device);
  if (handle == nullptr) return use;
  use.name = name_of(handle);
  // What the driver keeps for itself is in no program's reach.
  NvmlMemory memory{};
  memory.version = kMemoryVersion;
  const auto& nvml = Nvml::get();
  if (nvml.memory != nullptr && nvml.memory(handle, &memory) == 0) {
    use.total_bytes = static_cast<int64_t>(memory.total - memory.reserved);
    use.process_bytes = static_cast<int64_t>(memory.used);
  }
  if (const auto bytes = bytes_of_process(handle)) {
    use.process_bytes = *bytes;
    use.is_of_process = true;
  }
  return use;
}

std::vector<memledger_virtual_gpu_use> real_device_uses() {
  std::vector<memledger_virtual_gpu_use> rows;
  // CUDA is not asked for their number: that would initialize it, and a child that is forked
  // afterwards could not use it.
  for (int i = 0; i < kMaxDevices && device_statistics(cuda(i)).has_value(); ++i)
    rows.push_back(row_of(i));
  return rows;
}

}  // namespace memledger::inside
