// The runtime: device code that is compiled into programs and libraries. It is noted when it is
// registered, and looked at only when one of its kernels is launched or asked about.
#include "virtual_gpu/answers/cudart_modules.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "virtual_gpu/answers/driver.h"
#include "virtual_gpu/answers/kept_over_fork.h"
#include "virtual_gpu/context_memory.h"

namespace memledger::virtual_gpu {
namespace {

struct Variable {
  const void* host;
  size_t bytes;
};

// One file's device code: a module. Libraries such as CUB choose among the architectures that they
// were compiled for by the attributes of a kernel, and fail if these name another one. On a device
// of 8.9, code for 8.6 runs and its attributes say 8.6.
struct Module {
  const void* description = nullptr;
  std::map<int, DeviceCode> code;  // by the capability of a device, read when first asked for
  std::vector<Variable> variables;
  bool is_registered = true;
};

struct Kernel {
  const void* stub;  // on the host
  Module* module;
  const char* name;  // mangled; the module's

  bool operator<(const Kernel& other) const { return stub < other.stub; }
};

struct Modules {
  std::mutex mutex;
  std::vector<std::unique_ptr<Module>> owned;
  std::vector<Kernel> kernels;
  bool is_sorted = true;
  std::map<const void*, size_t> variables;  // bytes, by the stand-in

  // nullptr where the stub is none of a library that is loaded.
  const Kernel* find(const void* stub);
};

Modules& modules() { return kept_over_fork<Modules>(); }

const Kernel* Modules::find(const void* stub) {
  if (!is_sorted) std::sort(kernels.begin(), kernels.end());
  is_sorted = true;
  auto found = std::lower_bound(kernels.begin(), kernels.end(), Kernel{stub, nullptr, nullptr});
  while (found != kernels.end() && found->stub == stub && !found->module->is_registered) ++found;
  return found == kernels.end() || found->stub != stub ? nullptr : &*found;
}

const DeviceCode& code_of(Module& module, int capability) {
  const auto [found, is_new] = module.code.try_emplace(capability);
  if (is_new) found->second = read_device_code(module.description, capability);
  return found->second;
}

// Kernels that are loaded, so that a launch costs no more than a look: each in the one place that
// its address and device give, where another may take its turn.
constexpr size_t kPlaces = size_t{1} << 12;
std::array<std::atomic<uintptr_t>, kPlaces> loaded;

uintptr_t key_of(const void* stub, int device) {
  // Stubs are functions, aligned to 16 bytes, but nothing says so: the device goes into high bits.
  return reinterpret_cast<uintptr_t>(stub) ^ static_cast<uintptr_t>(device + 1) << 56;
}

std::atomic<uintptr_t>& place_of(uintptr_t key) {
  return loaded[(key >> 4 ^ key >> 16 ^ key >> 56) % kPlaces];
}

struct Needs {
  cudaError_t error = cudaSuccess;
  size_t local_bytes = 0;
  bool uses_heap = false;
  std::vector<Variable> variables;
};

// What `stub` needs of a device. The machine is asked for it afterwards, without the lock: a fork
// may take the two in the other order.
Needs needs_of(const void* stub, int capability) {
  Needs needs;
  Modules& m = modules();
  const std::lock_guard<std::mutex> lock(m.mutex);
  const Kernel* const kernel = m.find(stub);
  if (kernel == nullptr) return needs;
  const DeviceCode& code = code_of(*kernel->module, capability);
  if (!code.runs) needs.error = cudaErrorNoKernelImageForDevice;
  const auto known = code.kernels.find(kernel->name);
  if (known != code.kernels.end()) {
    needs.local_bytes = std::max(known->second.local_bytes, known->second.stack_bytes);
    needs.uses_heap = known->second.uses_heap;
  }
  needs.variables = kernel->module->variables;
  return needs;
}

int capability_of(int device) { return Machine::get().profile(device).compute_capability(); }

}  // namespace

cudaError_t load_kernel(const void* stub) {
  const int device = current_device();
  const uintptr_t key = key_of(stub, device);
  std::atomic<uintptr_t>& place = place_of(key);
  if (place.load(std::memory_order_relaxed) == key) return cudaSuccess;
  const Needs needs = needs_of(stub, capability_of(device));
  if (needs.error != cudaSuccess) return needs.error;
  for (const Variable& variable : needs.variables) {
    if (Machine::get().symbol_address(device, variable.host, variable.bytes) == nullptr)
      return cudaErrorMemoryAllocation;
  }
  if (!take_local_memory(device, needs.local_bytes)) return cudaErrorMemoryAllocation;
  if (needs.uses_heap && !take_heap(device)) return cudaErrorMemoryAllocation;
  place.store(key, std::memory_order_relaxed);
  return cudaSuccess;
}

KernelFacts facts_of_kernel(const void* stub) {
  const int capability = capability_of(current_device());
  KernelFacts facts;
  facts.binary_version = facts.ptx_version = capability;
  Modules& m = modules();
  const std::lock_guard<std::mutex> lock(m.mutex);
  const Kernel* const kernel = m.find(stub);
  if (kernel == nullptr) return facts;
  const DeviceCode& code = code_of(*kernel->module, capability);
  if (!code.runs) {
    facts.error = cudaErrorNoKernelImageForDevice;
    return facts;
  }
  facts.binary_version = code.binary_version;
  facts.ptx_version = code.ptx_version;
  const auto known = code.kernels.find(kernel->name);
  if (known != code.kernels.end()) facts.code = known->second;
  return facts;
}

std::optional<size_t> variable_bytes(const void* symbol) {
  Modules& m = modules();
  const std::lock_guard<std::mutex> lock(m.mutex);
  const auto found = m.variables.find(symbol);
  if (found == m.variables.end()) return std::nullopt;
  return found->second;
}

void forget_loaded_kernels() {
  for (std::atomic<uintptr_t>& place : loaded) place.store(0, std::memory_order_relaxed);
}

}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

namespace {

// A stub's, or a function's of the driver. Empty: neither.
std::string name_of_kernel(const void* kernel) {
  Modules& m = modules();
  {
    const std::lock_guard<std::mutex> lock(m.mutex);
    const Kernel* const found = m.find(kernel);
    if (found && found->name) return found->name;
  }
  const char* name = nullptr;
  const auto function = static_cast<CUfunction>(const_cast<void*>(kernel));
  return cuFuncGetName(&name, function) ? "" : name;
}

}  // namespace

bool memledger_virtual_gpu_only_waits(const void* kernel) {
  // at::cuda::(anonymous namespace)::spin_kernel(int64_t)
  constexpr std::string_view kBegin = "_ZN2at4cuda", kEnd = "11spin_kernelEl";
  const std::string name = name_of_kernel(kernel);
  return name.size() > kBegin.size() + kEnd.size() && name.compare(0, kBegin.size(), kBegin) == 0 &&
         name.compare(name.size() - kEnd.size(), kEnd.size(), kEnd) == 0;
}

MEMLEDGER_ANSWER void** __cudaRegisterFatBinary(void* description) {
  auto module = std::make_unique<Module>();
  module->description = description;
  Modules& m = modules();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.owned.push_back(std::move(module));
  return reinterpret_cast<void**>(m.owned.back().get());
}

MEMLEDGER_ANSWER void __cudaRegisterFatBinaryEnd(void**) {}

// Kept, as taking its kernels out would cost every program time at its end.
MEMLEDGER_ANSWER void __cudaUnregisterFatBinary(void** handle) {
  std::vector<Variable> variables;
  {
    Modules& m = modules();
    const std::lock_guard<std::mutex> lock(m.mutex);
    auto& module = *reinterpret_cast<Module*>(handle);
    module.is_registered = false;
    variables = std::move(module.variables);
  }
  forget_loaded_kernels();
  if (!Machine::is_made()) return;
  for (const Variable& variable : variables) Machine::get().drop_symbol(variable.host);
}
MEMLEDGER_ANSWER char __cudaInitModule(void**) { return 1; }

MEMLEDGER_ANSWER void __cudaRegisterFunction(void** handle, const char* stub, char*,
                                             const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                             int*) {
  Modules& m = modules();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.kernels.push_back({stub, reinterpret_cast<Module*>(handle), name});
  m.is_sorted = false;
}

MEMLEDGER_ANSWER void __cudaRegisterVar(void** handle, char* host_variable, char*, const char*, int,
                                        size_t bytes, int, int) {
  Modules& m = modules();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.variables[host_variable] = bytes;
  auto* const module = reinterpret_cast<Module*>(handle);
  // Small ones lie in what the context takes, and get their address when they are asked for.
  if (module != nullptr && Machine::takes_memory_of_its_own(bytes))
    module->variables.push_back({host_variable, bytes});
}

MEMLEDGER_ANSWER void __cudaRegisterManagedVar(void**, void** host_variable, char*, const char*,
                                               int, size_t bytes, int, int) {
  Modules& m = modules();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.variables[host_variable] = bytes;
}
