// The driver: code for devices, its kernels and variables. Kernels are not run; what the compiler
// wrote of them into machine code is read.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "virtual_gpu/answers/cudart_modules.h"
#include "virtual_gpu/answers/driver.h"
#include "virtual_gpu/context_memory.h"
#include "virtual_gpu/device_code.h"

using namespace memledger::virtual_gpu;

namespace {

struct Library;

// A kernel is also the function that it is on each device.
struct Kernel {
  Library* library;
  std::string name;
  std::atomic<int> dynamic_shared_bytes{-1};  // as set; -1: not set
};

// Addresses within what a device's context takes.
struct Place {
  int device;
  uintptr_t begin;
  size_t bytes;
};

struct Library {
  std::map<int, DeviceCode> code;  // by the capability of a device
  std::map<std::string, std::unique_ptr<Kernel>> kernels;

  struct OnDevice {
    bool loaded = false;
    void* memory = nullptr;  // of variables that are too large for the context's own memory
    std::vector<Place> places;
    std::map<std::string, uintptr_t> variables;
  };
  std::map<int, OnDevice> devices;
  std::map<std::string, void*> managed;
  const void* origin = nullptr;  // the address that the code was loaded from
};

struct Libraries {
  std::mutex mutex;
  std::unordered_map<const Library*, std::unique_ptr<Library>> loaded;
  std::unordered_set<const Kernel*> kernels;
  std::vector<Place> free_places;  // of libraries that were unloaded
};

Libraries* made_libraries = nullptr;

Libraries& libraries() {
  static Libraries* const made = [] {
    made_libraries = new Libraries;
    pthread_atfork([] { made_libraries->mutex.lock(); }, [] { made_libraries->mutex.unlock(); },
                   [] { made_libraries->mutex.unlock(); });
    return made_libraries;
  }();
  return *made;
}

Library* library_of(const void* handle) {
  const auto found = libraries().loaded.find(static_cast<const Library*>(handle));
  return found == libraries().loaded.end() ? nullptr : found->second.get();
}

Kernel* kernel_of(const void* handle) {
  Libraries& l = libraries();
  auto* const kernel = static_cast<Kernel*>(const_cast<void*>(handle));
  return l.kernels.count(kernel) ? kernel : nullptr;
}

int capability_of(int device) { return Machine::get().profile(device).compute_capability(); }

const DeviceCode& code_for(Library& library, int device) {
  return library.code.at(capability_of(device));
}

// The code is read at once, as the caller may free it afterwards.
template <typename T>
CUresult load(T* handle, const void* code) {
  if (!handle || !code) return CUDA_ERROR_INVALID_VALUE;
  auto library = std::make_unique<Library>();
  bool runs = false;
  for (int device = 0; device < Machine::get().device_count(); ++device) {
    const int capability = capability_of(device);
    if (library->code.count(capability)) continue;
    runs |= (library->code[capability] = read_device_code(code, capability)).runs;
  }
  if (library->code.empty()) return CUDA_ERROR_NO_DEVICE;
  library->origin = code;
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  *handle = reinterpret_cast<T>(library.get());
  const Library* const key = library.get();
  l.loaded[key] = std::move(library);
  return CUDA_SUCCESS;
}

// A module, unlike a library, is loaded for the thread's device.
CUresult load_module(CUmodule* module, const void* code) {
  if (const cudaError_t error = ready()) return driver_result(error);
  if (const CUresult error = load(module, code)) return error;
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  if (code_for(*library_of(*module), current_device()).runs) return CUDA_SUCCESS;
  l.loaded.erase(library_of(*module));
  *module = nullptr;
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

template <typename T>
CUresult load_file(T* handle, const char* path, CUresult (*load_code)(T*, const void*)) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::vector<char> code{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  code.push_back('\0');
  return load_code(handle, code.data());
}

CUresult unload(const void* handle) {
  std::vector<void*> blocks;
  {
    Libraries& l = libraries();
    std::lock_guard<std::mutex> lock(l.mutex);
    Library* const library = library_of(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& [name, kernel] : library->kernels) l.kernels.erase(kernel.get());
    for (const auto& [device, there] : library->devices) {
      blocks.push_back(there.memory);
      l.free_places.insert(l.free_places.end(), there.places.begin(), there.places.end());
    }
    for (const auto& [name, memory] : library->managed) blocks.push_back(memory);
    l.loaded.erase(library);
  }
  for (void* const block : blocks) {
    if (block) Machine::get().free(block);
  }
  return CUDA_SUCCESS;
}

// nullptr: the device has no more.
void* take_place(Library::OnDevice& there, int device, size_t bytes) {
  std::vector<Place>& free_places = libraries().free_places;
  const auto fits = std::find_if(free_places.begin(), free_places.end(), [&](const Place& place) {
    return place.device == device && place.bytes >= bytes;
  });
  if (fits != free_places.end()) {
    there.places.push_back(*fits);
    free_places.erase(fits);
  } else {
    // Found by a key that is never another's.
    void* const begin = Machine::get().symbol_address(device, new char, bytes);
    if (!begin) return nullptr;
    there.places.push_back({device, reinterpret_cast<uintptr_t>(begin), bytes});
  }
  return reinterpret_cast<void*>(there.places.back().begin);
}

// Gives the variables of the library their place on a device. Those of a usual size lie in what the
// context takes.
CUresult load_on(Library& library, int device) {
  constexpr size_t kAlignment = 256;
  Library::OnDevice& there = library.devices[device];
  if (there.loaded) return CUDA_SUCCESS;
  const DeviceCode& code = code_for(library, device);
  if (!code.runs) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  size_t bytes = 0;
  for (const auto& [name, variable] : code.variables) {
    if (!variable.managed) bytes += (variable.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (bytes) {
    Machine& machine = Machine::get();
    void* block = nullptr;
    if (Machine::takes_memory_of_its_own(bytes))
      block = there.memory = machine.allocate_once(device, bytes);
    else
      block = take_place(there, device, bytes);
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    auto next = reinterpret_cast<uintptr_t>(block);
    for (const auto& [name, variable] : code.variables) {
      if (variable.managed) continue;
      there.variables[name] = next;
      next += (variable.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
  there.loaded = true;
  return CUDA_SUCCESS;
}

CUresult find_kernel(Kernel** kernel, const void* handle, const char* name) {
  if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  Library* const library = library_of(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  std::unique_ptr<Kernel>& known = library->kernels[name];
  if (!known) {
    const auto has = [name](const auto& code) {
      return !code.second.is_readable || code.second.kernels.count(name);
    };
    if (std::none_of(library->code.begin(), library->code.end(), has)) {
      library->kernels.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    known = std::make_unique<Kernel>();
    known->library = library;
    known->name = name;
    l.kernels.insert(known.get());
  }
  *kernel = known.get();
  return CUDA_SUCCESS;
}

// For a variable whose size is not known. The runtime, which knows it, does not ask for it.
constexpr size_t kUnknownVariable = size_t{256} << 10;

CUresult find_variable(CUdeviceptr* address, size_t* bytes, const void* handle, const char* name,
                       bool managed) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  if (const cudaError_t error = ready()) return driver_result(error);
  const int device = current_device();
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  Library* const library = library_of(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = load_on(*library, device)) return error;
  const DeviceCode& code = code_for(*library, device);
  const auto found = code.variables.find(name);
  const bool is_known = found != code.variables.end() && found->second.managed == managed;
  if (!is_known && code.is_readable) return CUDA_ERROR_NOT_FOUND;
  if (!is_known && bytes) {
    MEMLEDGER_SAY_REFUSED(
        "how large the variables of device code are that has PTX only is not known. Compile for an "
        "architecture, too (-arch=native, sm_90).");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const size_t size = is_known ? found->second.bytes : kUnknownVariable;
  if (bytes) *bytes = size;
  if (managed) {
    void*& memory = library->managed[name];
    if (!memory) memory = Machine::get().allocate_managed(device, size);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    if (address) *address = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
  }
  Library::OnDevice& there = library->devices[device];
  uintptr_t& variable = there.variables[name];
  // One that is not known has no place yet: addresses alone, as what it takes is not known either.
  if (!variable) variable = reinterpret_cast<uintptr_t>(take_place(there, device, size));
  if (!variable) return CUDA_ERROR_OUT_OF_MEMORY;
  if (address) *address = variable;
  return CUDA_SUCCESS;
}

// What is known of a kernel on a device.
struct Facts {
  int registers = kAssumedRegisters;
  int shared_bytes = 0;
  int local_bytes = 0;
  size_t stack_bytes = 0;
  bool uses_heap = false;
  int max_threads = kMaxThreadsPerBlock;
  int binary_version = 0;
  int ptx_version = 0;
  int dynamic_shared_bytes = 0;
};

CUresult facts_of(const void* function, int device, Facts* facts) {
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  Kernel* const kernel = kernel_of(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  const DeviceCode& code = code_for(*kernel->library, device);
  if (!code.runs) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  facts->binary_version = code.binary_version;
  facts->ptx_version = code.ptx_version;
  const auto found = code.kernels.find(kernel->name);
  if (found != code.kernels.end()) {
    const KernelCode& known = found->second;
    if (known.registers) facts->registers = known.registers;
    facts->shared_bytes = static_cast<int>(known.shared_bytes);
    facts->local_bytes = static_cast<int>(known.local_bytes);
    facts->stack_bytes = std::max(known.local_bytes, known.stack_bytes);
    facts->uses_heap = known.uses_heap;
    facts->max_threads = known.max_threads ? known.max_threads : threads_within(facts->registers);
  }
  const int set = kernel->dynamic_shared_bytes.load(std::memory_order_relaxed);
  facts->dynamic_shared_bytes =
      set >= 0 ? set : std::max(0, kSharedMemoryPerBlock - facts->shared_bytes);
  return CUDA_SUCCESS;
}

// The arguments in one piece, as `extra` has them: pairs of a key and a value.
void take_extra(void* const* extra, KernelLaunch& launch) {
  for (; extra != nullptr && extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      launch.argument_bytes = extra[1];
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      launch.argument_byte_count = *static_cast<const size_t*>(extra[1]);
    } else {
      return;
    }
  }
}

// Puts the arguments into one piece, as the code says how many there are and how long each is.
// Leaves them as they are where it does not say.
void pack_arguments(const std::vector<KernelCode::Parameter>& parameters,
                    std::vector<unsigned char>& packed, KernelLaunch& launch) {
  if (launch.arguments == nullptr || parameters.empty()) return;
  size_t bytes = 0;
  for (const KernelCode::Parameter& one : parameters) {
    if (one.bytes == 0) return;
    bytes = std::max<size_t>(bytes, one.offset + one.bytes);
  }
  packed.assign(bytes, 0);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (launch.arguments[i] == nullptr) return;
    std::memcpy(packed.data() + parameters[i].offset, launch.arguments[i], parameters[i].bytes);
  }
  launch.arguments = nullptr;
  launch.argument_bytes = packed.data();
  launch.argument_byte_count = packed.size();
}

CUresult check_and_launch(const void* function, dim3 grid, dim3 block, unsigned shared_bytes,
                          CUstream stream, void* const* arguments, void* const* extra) {
  if (const cudaError_t error = ready()) return driver_result(error);
  const int device = current_device();
  Facts facts;
  if (const CUresult error = facts_of(function, device, &facts)) return error;
  if (check_launch(grid, block, shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (shared_bytes > static_cast<unsigned>(facts.dynamic_shared_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (block.x * block.y * block.z > static_cast<unsigned>(facts.max_threads))
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  const void* origin = nullptr;
  std::vector<KernelCode::Parameter> parameters;
  {
    Libraries& l = libraries();
    std::lock_guard<std::mutex> lock(l.mutex);
    Kernel* const kernel = kernel_of(function);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = load_on(*kernel->library, device)) return error;
    origin = kernel->library->origin;
    const DeviceCode& code = code_for(*kernel->library, device);
    if (const auto known = code.kernels.find(kernel->name); known != code.kernels.end())
      parameters = known->second.parameters;
  }
  if (!take_local_memory(device, facts.stack_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (facts.uses_heap && !take_heap(device)) return CUDA_ERROR_OUT_OF_MEMORY;
  KernelLaunch launch{function, grid, block, arguments, nullptr, 0, origin};
  take_extra(extra, launch);
  std::vector<unsigned char> packed;
  pack_arguments(parameters, packed, launch);
  return driver_result(launch_kernel(stream, launch));
}

CUresult attribute_of(int* value, CUfunction_attribute attribute, const void* function,
                      int device) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (!Machine::get().is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Facts facts;
  if (const CUresult error = facts_of(function, device, &facts)) return error;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = facts.max_threads;
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = facts.shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = facts.local_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = facts.registers;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = facts.ptx_version;
      break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = facts.binary_version;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = facts.dynamic_shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = -1;
      break;
    default:
      *value = 0;
      break;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(const void* function, CUfunction_attribute attribute, int value,
                       int device) {
  Facts facts;
  if (const CUresult error = facts_of(function, device, &facts)) return error;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  const int most =
      Machine::get().profile(device).shared_memory_per_block_optin - facts.shared_bytes;
  if (value < 0 || value > most) return CUDA_ERROR_INVALID_VALUE;
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  Kernel* const kernel = kernel_of(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  kernel->dynamic_shared_bytes.store(value, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult name_of(const char** name, const void* function) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  const Kernel* const kernel = kernel_of(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name.c_str();
  return CUDA_SUCCESS;
}

// All kernels of the library; an error where they cannot be read.
CUresult all_kernels(const void* handle, std::vector<std::string>* names) {
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  Library* const library = library_of(handle);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  const DeviceCode& code = code_for(*library, current_device());
  if (!code.is_readable) return CUDA_ERROR_NOT_SUPPORTED;
  for (const auto& [name, kernel] : code.kernels) names->push_back(name);
  return CUDA_SUCCESS;
}

CUresult all_kernels_or_say(const void* handle, std::vector<std::string>* names) {
  const CUresult error = all_kernels(handle, names);
  if (error == CUDA_ERROR_NOT_SUPPORTED)
    MEMLEDGER_SAY_REFUSED("which kernels compressed device code or PTX has is not known.");
  return error;
}

CUresult count_kernels(unsigned* count, const void* handle) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::string> names;
  if (const CUresult error = all_kernels_or_say(handle, &names)) return error;
  *count = static_cast<unsigned>(names.size());
  return CUDA_SUCCESS;
}

template <typename T>
CUresult list_kernels(T* kernels, unsigned count, const void* handle) {
  if (!kernels || !count) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::string> names;
  if (const CUresult error = all_kernels_or_say(handle, &names)) return error;
  for (size_t i = 0; i < std::min<size_t>(count, names.size()); ++i) {
    Kernel* kernel = nullptr;
    if (const CUresult error = find_kernel(&kernel, handle, names[i].c_str())) return error;
    kernels[i] = reinterpret_cast<T>(kernel);
  }
  return CUDA_SUCCESS;
}

// For the linker, whose result nobody can look into.
char linked_code;

}  // namespace

namespace memledger::virtual_gpu {

void end_context(int device) {
  drop_context_storage(device);
  forget_context_limits(device);
  forget_loaded_kernels();
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  for (const auto& [key, library] : l.loaded) {
    const auto there = library->devices.find(device);
    if (there == library->devices.end()) continue;
    l.free_places.insert(l.free_places.end(), there->second.places.begin(),
                         there->second.places.end());
    library->devices.erase(there);
  }
}

std::vector<CUfunction> functions_of(CUmodule module) {
  std::vector<std::string> names;
  const CUresult error = all_kernels(module, &names);
  if (error == CUDA_ERROR_NOT_SUPPORTED)
    names.emplace_back();
  else if (error)
    return {};
  std::vector<CUfunction> functions;
  for (const std::string& name : names) {
    Kernel* kernel = nullptr;
    if (!find_kernel(&kernel, module, name.c_str()))
      functions.push_back(reinterpret_cast<CUfunction>(kernel));
  }
  return functions;
}

}  // namespace memledger::virtual_gpu

// Libraries, which belong to no device.

MEMLEDGER_ANSWER CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*,
                                            void**, unsigned, CUlibraryOption*, void**, unsigned) {
  return load(library, code);
}

MEMLEDGER_ANSWER CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*,
                                                void**, unsigned, CUlibraryOption*, void**,
                                                unsigned) {
  return load_file(library, path, load<CUlibrary>);
}

MEMLEDGER_ANSWER CUresult cuLibraryUnload(CUlibrary library) { return unload(library); }

MEMLEDGER_ANSWER CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library,
                                             const char* name) {
  return find_kernel(reinterpret_cast<Kernel**>(kernel), library, name);
}

MEMLEDGER_ANSWER CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  return count_kernels(count, library);
}

MEMLEDGER_ANSWER CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count,
                                                    CUlibrary library) {
  return list_kernels(kernels, count, library);
}

MEMLEDGER_ANSWER CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  if (const cudaError_t error = ready()) return driver_result(error);
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  Library* const found = library_of(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = load_on(*found, current_device())) return error;
  *module = reinterpret_cast<CUmodule>(found);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                             const char* name) {
  return find_variable(address, bytes, library, name, /*managed=*/false);
}

MEMLEDGER_ANSWER CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes,
                                              CUlibrary library, const char* name) {
  return find_variable(address, bytes, library, name, /*managed=*/true);
}

// Modules, which belong to one.

MEMLEDGER_ANSWER CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return load_file(module, path, load_module);
}
MEMLEDGER_ANSWER CUresult cuModuleLoadData(CUmodule* module, const void* code) {
  return load_module(module, code);
}
MEMLEDGER_ANSWER CUresult cuModuleLoadDataEx(CUmodule* module, const void* code, unsigned,
                                             CUjit_option*, void**) {
  return load_module(module, code);
}
MEMLEDGER_ANSWER CUresult cuModuleLoadFatBinary(CUmodule* module, const void* code) {
  return load_module(module, code);
}
MEMLEDGER_ANSWER CUresult cuModuleUnload(CUmodule module) { return unload(module); }

MEMLEDGER_ANSWER CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                                              const char* name) {
  return find_kernel(reinterpret_cast<Kernel**>(function), module, name);
}

MEMLEDGER_ANSWER CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  return count_kernels(count, module);
}

MEMLEDGER_ANSWER CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count,
                                                     CUmodule module) {
  return list_kernels(functions, count, module);
}

MEMLEDGER_ANSWER CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                               const char* name) {
  const CUresult error = find_variable(address, bytes, module, name, /*managed=*/false);
  return error == CUDA_ERROR_NOT_FOUND
             ? find_variable(address, bytes, module, name, /*managed=*/true)
             : error;
}

// Lazily, as by default from CUDA 12.2 on, unless the user says otherwise.
MEMLEDGER_ANSWER CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = loads_eagerly() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* state) {
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  *state = reinterpret_cast<CUlinkState>(&linked_code);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLinkAddData_v2(CUlinkState, CUjitInputType, void*, size_t, const char*,
                                           unsigned, CUjit_option*, void**) {
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLinkAddFile_v2(CUlinkState, CUjitInputType, const char*, unsigned,
                                           CUjit_option*, void**) {
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLinkComplete(CUlinkState, void** image, size_t* bytes) {
  if (!image || !bytes) return CUDA_ERROR_INVALID_VALUE;
  *image = &linked_code;
  *bytes = sizeof linked_code;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLinkDestroy(CUlinkState) { return CUDA_SUCCESS; }

// Kernels.

MEMLEDGER_ANSWER CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  if (const cudaError_t error = ready()) return driver_result(error);
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  Kernel* const found = kernel_of(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = load_on(*found->library, current_device())) return error;
  *function = reinterpret_cast<CUfunction>(found);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  Libraries& l = libraries();
  std::lock_guard<std::mutex> lock(l.mutex);
  const Kernel* const found = kernel_of(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *library = reinterpret_cast<CUlibrary>(found->library);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  return cuKernelGetLibrary(reinterpret_cast<CUlibrary*>(module),
                            reinterpret_cast<CUkernel>(function));
}

MEMLEDGER_ANSWER CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return name_of(name, kernel);
}
MEMLEDGER_ANSWER CUresult cuFuncGetName(const char** name, CUfunction function) {
  return name_of(name, function);
}

MEMLEDGER_ANSWER CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  const char* name = nullptr;
  if (const CUresult error = name_of(&name, function)) return error;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuFuncLoad(CUfunction function) {
  const char* name = nullptr;
  return name_of(&name, function);
}

MEMLEDGER_ANSWER CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                             CUfunction function) {
  return attribute_of(value, attribute, function, current_device());
}

MEMLEDGER_ANSWER CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute,
                                               CUkernel kernel, CUdevice device) {
  return attribute_of(value, attribute, kernel, device);
}

MEMLEDGER_ANSWER CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                             int value) {
  return set_attribute(function, attribute, value, current_device());
}

MEMLEDGER_ANSWER CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value,
                                               CUkernel kernel, CUdevice device) {
  if (!Machine::get().is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return set_attribute(kernel, attribute, value, device);
}

MEMLEDGER_ANSWER CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
MEMLEDGER_ANSWER CUresult cuKernelSetCacheConfig(CUkernel, CUfunc_cache, CUdevice) {
  return CUDA_SUCCESS;
}
MEMLEDGER_ANSWER CUresult cuFuncSetSharedMemConfig(CUfunction, CUsharedconfig) {
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned shared_bytes, CUstream stream,
                                         void** arguments, void** extra) {
  return check_and_launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                          shared_bytes, stream, arguments, extra);
}

MEMLEDGER_ANSWER CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x,
                                                    unsigned grid_y, unsigned grid_z,
                                                    unsigned block_x, unsigned block_y,
                                                    unsigned block_z, unsigned shared_bytes,
                                                    CUstream stream, void** arguments) {
  int blocks = 0;
  if (const CUresult error = cuOccupancyMaxActiveBlocksPerMultiprocessor(
          &blocks, function, static_cast<int>(block_x * block_y * block_z), shared_bytes))
    return error;
  const uint64_t at_once =
      uint64_t(blocks) *
      static_cast<unsigned>(Machine::get().profile(current_device()).multiprocessors);
  if (uint64_t{grid_x} * grid_y * grid_z > at_once) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return check_and_launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                          shared_bytes, stream, arguments, nullptr);
}

MEMLEDGER_ANSWER CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                           void** arguments, void** extra) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  return check_and_launch(function, {config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                          config->sharedMemBytes, config->hStream, arguments, extra);
}

MEMLEDGER_ANSWER CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, CUfunction function, int block_size, size_t shared_bytes, unsigned) {
  if (!blocks) return CUDA_ERROR_INVALID_VALUE;
  if (const cudaError_t error = ready()) return driver_result(error);
  Facts facts;
  if (const CUresult error = facts_of(function, current_device(), &facts)) return error;
  const size_t all_shared = shared_bytes + static_cast<size_t>(facts.shared_bytes);
  *blocks =
      block_size > facts.max_threads ? 0 : active_blocks(block_size, all_shared, facts.registers);
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                      CUfunction function,
                                                                      int block_size,
                                                                      size_t shared_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                              shared_bytes, 0);
}

MEMLEDGER_ANSWER CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes,
                                                                  CUfunction function, int blocks,
                                                                  int block_size) {
  Facts facts;
  if (const CUresult error = facts_of(function, current_device(), &facts)) return error;
  if (const CUresult error = as_runtime(cudaOccupancyAvailableDynamicSMemPerBlock, bytes,
                                        static_cast<const void*>(function), blocks, block_size))
    return error;
  *bytes -= std::min(*bytes, static_cast<size_t>(facts.shared_bytes));
  return CUDA_SUCCESS;
}

MEMLEDGER_ANSWER CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function,
                                                             const CUlaunchConfig* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  const cudaLaunchConfig_t none{};
  return as_runtime(cudaOccupancyMaxPotentialClusterSize, size, static_cast<const void*>(function),
                    &none);
}

MEMLEDGER_ANSWER CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                                       const CUlaunchConfig* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  // The attributes of both have one layout.
  cudaLaunchConfig_t same{};
  same.blockDim = {config->blockDimX, config->blockDimY, config->blockDimZ};
  same.dynamicSmemBytes = config->sharedMemBytes;
  same.attrs = reinterpret_cast<cudaLaunchAttribute*>(config->attrs);
  same.numAttrs = config->numAttrs;
  return as_runtime(cudaOccupancyMaxActiveClusters, clusters, static_cast<const void*>(function),
                    &same);
}
