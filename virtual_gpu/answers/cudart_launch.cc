// The runtime: kernels, which are not run, and what is known of them.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "virtual_gpu/answers/cudart.h"
#include "virtual_gpu/answers/kept_over_fork.h"

namespace memledger::virtual_gpu {
namespace {

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
};

thread_local CallConfiguration call_configuration;

// The variables of device code, by the address of their shadow on the host.
struct Variables {
  std::mutex mutex;
  std::map<const void*, size_t> bytes;
};

Variables& variables() { return kept_over_fork<Variables>(); }

// A file's device code, and for which architectures it was compiled. Libraries (CUB) choose among
// those they were compiled for by what a kernel says of itself, and fail where that is another: on
// a device of 8.9 code for 8.6 runs and says 8.6.
struct Binary {
  const unsigned char* code = nullptr;
  int chosen = 0;      // as 86; 0 until asked for
  int chosen_for = 0;  // the device's, as devices of a process can differ
  bool loaded = true;
};

struct RegisteredKernel {
  const void* stub;  // on the host
  Binary* binary;
  const char* name;  // mangled; the binary's

  bool operator<(const RegisteredKernel& other) const { return stub < other.stub; }
};

struct Kernels {
  std::mutex mutex;
  std::vector<std::unique_ptr<Binary>> owned;
  std::vector<RegisteredKernel> registered;
  bool sorted = true;

  // nullptr where the stub is none of a loaded library.
  const RegisteredKernel* find(const void* stub);
};

Kernels& kernels() { return kept_over_fork<Kernels>(); }

const RegisteredKernel* Kernels::find(const void* stub) {
  if (!sorted) std::sort(registered.begin(), registered.end());
  sorted = true;
  auto found = std::lower_bound(registered.begin(), registered.end(),
                                RegisteredKernel{stub, nullptr, nullptr});
  while (found != registered.end() && found->stub == stub && !found->binary->loaded) ++found;
  return found == registered.end() || found->stub != stub ? nullptr : &*found;
}

template <typename T>
T read_at(const unsigned char* from, size_t offset) {
  T value;
  std::memcpy(&value, from + offset, sizeof value);
  return value;
}

// The layout of a "fat binary": a header, then entries of a header and code each.
int choose_architecture(const unsigned char* code, int capability) {
  constexpr uint32_t kMagic = 0xba55ed50;
  constexpr uint16_t kPtx = 1, kMachineCode = 2;
  constexpr size_t kLeastHeader = 32;
  if (!code || read_at<uint32_t>(code, 0) != kMagic) return capability;
  const unsigned char* entry = code + read_at<uint16_t>(code, 6);
  uint64_t left = read_at<uint64_t>(code, 8);
  int machine_code = 0, ptx = 0;
  while (left >= kLeastHeader) {
    const int architecture = static_cast<int>(read_at<uint32_t>(entry, 28));
    const uint64_t bytes = read_at<uint32_t>(entry, 4) + read_at<uint64_t>(entry, 8);
    if (architecture <= capability) {
      const uint16_t kind = read_at<uint16_t>(entry, 0);
      if (kind == kMachineCode && architecture / 10 == capability / 10)
        machine_code = std::max(machine_code, architecture);
      if (kind == kPtx) ptx = std::max(ptx, architecture);
    }
    if (bytes < kLeastHeader || bytes > left) break;
    entry += bytes;
    left -= bytes;
  }
  return machine_code ? machine_code : ptx ? ptx : capability;
}

int architecture_of(const void* kernel) {
  const int capability = Machine::get().profile(current_device()).compute_capability();
  Kernels& k = kernels();
  std::lock_guard<std::mutex> lock(k.mutex);
  const RegisteredKernel* const found = k.find(kernel);
  if (!found) return capability;
  Binary& binary = *found->binary;
  if (binary.chosen_for != capability) {
    binary.chosen = choose_architecture(binary.code, capability);
    binary.chosen_for = capability;
  }
  return binary.chosen;
}

std::optional<size_t> variable_bytes(const void* symbol) {
  Variables& v = variables();
  std::lock_guard<std::mutex> lock(v.mutex);
  const auto found = v.bytes.find(symbol);
  if (found == v.bytes.end()) return std::nullopt;
  return found->second;
}

cudaError_t symbol_address(void** pointer, const void* symbol) {
  if (!pointer || !symbol) return cudaErrorInvalidValue;
  if (const cudaError_t error = ready()) return error;
  const std::optional<size_t> bytes = variable_bytes(symbol);
  if (!bytes) return cudaErrorInvalidSymbol;
  *pointer = Machine::get().symbol_address(current_device(), symbol, *bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

// Part of a variable, for a copy.
cudaError_t symbol_address(char** pointer, const void* symbol, size_t bytes, size_t offset) {
  void* begin = nullptr;
  if (const cudaError_t error = symbol_address(&begin, symbol)) return error;
  const size_t known = variable_bytes(symbol).value_or(0);
  if (offset > known || bytes > known - offset) return cudaErrorInvalidValue;
  *pointer = static_cast<char*>(begin) + offset;
  return cudaSuccess;
}

cudaError_t copy_to_symbol(const void* symbol, const void* source, size_t bytes, size_t offset,
                           cudaMemcpyKind kind, cudaStream_t stream, bool asynchronous) {
  char* pointer = nullptr;
  if (const cudaError_t error = symbol_address(&pointer, symbol, bytes, offset)) return error;
  return copy_on_stream(pointer, source, bytes, kind, stream, asynchronous);
}

cudaError_t copy_from_symbol(void* destination, const void* symbol, size_t bytes, size_t offset,
                             cudaMemcpyKind kind, cudaStream_t stream, bool asynchronous) {
  char* pointer = nullptr;
  if (const cudaError_t error = symbol_address(&pointer, symbol, bytes, offset)) return error;
  return copy_on_stream(destination, pointer, bytes, kind, stream, asynchronous);
}

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, void* const* arguments,
                   size_t shared_bytes, cudaStream_t stream) {
  if (const cudaError_t error = ready()) return error;
  if (const cudaError_t error = check_launch(grid, block, shared_bytes)) return error;
  return launch_kernel(stream, {kernel, grid, block, arguments});
}

}  // namespace

void tell_of_work(const Streams::Submission& submission, const KernelLaunch& launch) {
  const memledger_virtual_gpu_work work = {launch.kernel,
                                           launch.grid.x * launch.grid.y * launch.grid.z,
                                           launch.block.x * launch.block.y * launch.block.z,
                                           submission.queued || streams().has_queued(),
                                           launch.arguments,
                                           launch.argument_bytes,
                                           launch.argument_byte_count};
  const memledger_virtual_gpu_values& values = known_values();
  if (!submission.captured) return values.worked(&work);
  std::shared_ptr<void> known(values.captured(&work), values.dropped);
  streams().with_node(submission.node,
                      [&](GraphNode& node, Graph&) { node.known_work.swap(known); });
}

cudaError_t launch_kernel(cudaStream_t stream, const KernelLaunch& launch) {
  const Streams::Submission submission = streams().submit_kernel(stream, current_device());
  if (submission.error != StreamError::kNone) return stream_result(submission.error);
  tell_of_work(submission, launch);
  if (!submission.captured) Machine::get().note_kernel();
  return cudaSuccess;
}

cudaError_t check_launch(dim3 grid, dim3 block, size_t shared_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || !threads || threads > kMaxThreadsPerBlock || block.z > 64 ||
      grid.x > static_cast<unsigned>(std::numeric_limits<int>::max()) || grid.y > 65535 ||
      grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  const size_t most = Machine::get().profile(current_device()).shared_memory_per_block_optin;
  return shared_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

namespace {

// The warps that the registers of a multiprocessor are enough for: they are given out in units of
// 256, from four parts.
int warps_within(int registers) {
  constexpr int kUnit = 256, kParts = 4;
  const int per_warp = (registers * kWarpSize + kUnit - 1) / kUnit * kUnit;
  return kRegistersPerMultiprocessor / per_warp / kParts * kParts;
}

}  // namespace

int threads_within(int registers) {
  return std::min(kMaxThreadsPerBlock, warps_within(registers) * kWarpSize);
}

int active_blocks(int block_size, size_t shared_bytes, int registers) {
  const Profile& profile = Machine::get().profile(current_device());
  if (block_size <= 0 || block_size > kMaxThreadsPerBlock) return 0;
  if (shared_bytes > static_cast<size_t>(profile.shared_memory_per_block_optin)) return 0;
  const int threads = (block_size + kWarpSize - 1) / kWarpSize * kWarpSize;
  int blocks = std::min(profile.max_blocks_per_multiprocessor,
                        profile.max_threads_per_multiprocessor / threads);
  blocks = std::min(blocks, warps_within(registers) * kWarpSize / threads);
  const size_t shared =
      shared_bytes + static_cast<size_t>(profile.reserved_shared_memory_per_block);
  if (shared)
    blocks =
        std::min<int>(blocks, static_cast<int>(profile.shared_memory_per_multiprocessor / shared));
  return blocks;
}

}  // namespace memledger::virtual_gpu

using namespace memledger::virtual_gpu;

bool memledger_virtual_gpu_defers() { return streams().has_captures() || streams().has_queued(); }

bool memledger_virtual_gpu_only_waits(const void* kernel) {
  // at::cuda::(anonymous namespace)::spin_kernel(int64_t)
  constexpr std::string_view kBegin = "_ZN2at4cuda", kEnd = "11spin_kernelEl";
  Kernels& k = kernels();
  std::lock_guard<std::mutex> lock(k.mutex);
  const RegisteredKernel* const found = k.find(kernel);
  if (!found || !found->name) return false;
  const std::string_view name = found->name;
  return name.size() > kBegin.size() + kEnd.size() && name.substr(0, kBegin.size()) == kBegin &&
         name.substr(name.size() - kEnd.size()) == kEnd;
}

// What compiled device code calls at load: it is noted, and looked at only when a kernel is asked
// about.

MEMLEDGER_ANSWER void** __cudaRegisterFatBinary(void* description) {
  constexpr uint32_t kMagic = 0x466243b1;
  auto binary = std::make_unique<Binary>();
  const auto* const words = static_cast<const unsigned char*>(description);
  if (words && read_at<uint32_t>(words, 0) == kMagic)
    binary->code = read_at<const unsigned char*>(words, 8);
  Kernels& k = kernels();
  std::lock_guard<std::mutex> lock(k.mutex);
  k.owned.push_back(std::move(binary));
  return reinterpret_cast<void**>(k.owned.back().get());
}

MEMLEDGER_ANSWER void __cudaRegisterFatBinaryEnd(void**) {}
// Kept, as taking its kernels out would cost every program time at its end.
MEMLEDGER_ANSWER void __cudaUnregisterFatBinary(void** handle) {
  Kernels& k = kernels();
  std::lock_guard<std::mutex> lock(k.mutex);
  reinterpret_cast<Binary*>(handle)->loaded = false;
}
MEMLEDGER_ANSWER char __cudaInitModule(void**) { return 1; }

MEMLEDGER_ANSWER void __cudaRegisterFunction(void** handle, const char* kernel, char*,
                                             const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                             int*) {
  Kernels& k = kernels();
  std::lock_guard<std::mutex> lock(k.mutex);
  k.registered.push_back({kernel, reinterpret_cast<Binary*>(handle), name});
  k.sorted = false;
}

MEMLEDGER_ANSWER void __cudaRegisterVar(void**, char* host_variable, char*, const char*, int,
                                        size_t bytes, int, int) {
  Variables& v = variables();
  std::lock_guard<std::mutex> lock(v.mutex);
  v.bytes[host_variable] = bytes;
}

MEMLEDGER_ANSWER void __cudaRegisterManagedVar(void**, void** host_variable, char*, const char*,
                                               int, size_t bytes, int, int) {
  Variables& v = variables();
  std::lock_guard<std::mutex> lock(v.mutex);
  v.bytes[host_variable] = bytes;
}

MEMLEDGER_ANSWER unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                      cudaStream_t stream) {
  call_configuration = {grid, block, shared_bytes, stream};
  return 0;
}

MEMLEDGER_ANSWER cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                                        size_t* shared_bytes, void* stream) {
  *grid = call_configuration.grid;
  *block = call_configuration.block;
  *shared_bytes = call_configuration.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = call_configuration.stream;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                void** arguments, size_t shared_bytes,
                                                cudaStream_t stream) {
  return result(launch(kernel, grid, block, arguments, shared_bytes, stream));
}

MEMLEDGER_ANSWER cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block,
                                              void** arguments, size_t shared_bytes,
                                              cudaStream_t stream) {
  return result(launch(kernel, grid, block, arguments, shared_bytes, stream));
}

MEMLEDGER_ANSWER cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                                 const void* kernel, void** arguments) {
  if (!config) return result(cudaErrorInvalidValue);
  return result(launch(kernel, config->gridDim, config->blockDim, arguments,
                       config->dynamicSmemBytes, config->stream));
}

MEMLEDGER_ANSWER cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block,
                                                         void** arguments, size_t shared_bytes,
                                                         cudaStream_t stream) {
  if (const cudaError_t error = ready()) return result(error);
  if (const cudaError_t error = check_launch(grid, block, shared_bytes)) return result(error);
  const uint64_t at_once =
      uint64_t(active_blocks(static_cast<int>(block.x * block.y * block.z), shared_bytes)) *
      Machine::get().profile(current_device()).multiprocessors;
  if (uint64_t{grid.x} * grid.y * grid.z > at_once)
    return result(cudaErrorCooperativeLaunchTooLarge);
  return result(launch_kernel(stream, {kernel, grid, block, arguments}));
}

MEMLEDGER_ANSWER cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                                   const void* kernel) {
  if (!attributes) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = kMaxThreadsPerBlock;
  attributes->numRegs = kAssumedRegisters;
  attributes->ptxVersion = attributes->binaryVersion = architecture_of(kernel);
  attributes->maxDynamicSharedSizeBytes = kSharedMemoryPerBlock;
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute,
                                                  int value) {
  if (const cudaError_t error = ready()) return result(error);
  const bool too_much =
      attribute == cudaFuncAttributeMaxDynamicSharedMemorySize &&
      (value < 0 || value > Machine::get().profile(current_device()).shared_memory_per_block_optin);
  return result(too_much ? cudaErrorInvalidValue : cudaSuccess);
}

MEMLEDGER_ANSWER cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaFuncGetName(const char** name, const void*) {
  if (!name) return result(cudaErrorInvalidValue);
  *name = "kernel";
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int block_size, size_t shared_bytes, unsigned) {
  if (!blocks) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  *blocks = active_blocks(block_size, shared_bytes);
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                           const void* function,
                                                                           int block_size,
                                                                           size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                shared_bytes, 0);
}

MEMLEDGER_ANSWER cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*,
                                                                       int blocks, int) {
  if (!bytes || blocks <= 0) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  const Profile& profile = Machine::get().profile(current_device());
  const int each =
      profile.shared_memory_per_multiprocessor / blocks - profile.reserved_shared_memory_per_block;
  *bytes = static_cast<size_t>(std::max(0, std::min(each, profile.shared_memory_per_block_optin)));
  return cudaSuccess;
}

namespace {
bool has_clusters() { return Machine::get().profile(current_device()).major >= 9; }
}  // namespace

MEMLEDGER_ANSWER cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void*,
                                                                  const cudaLaunchConfig_t*) {
  if (!size) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  *size = has_clusters() ? 8 : 1;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*,
                                                            const cudaLaunchConfig_t* config) {
  if (!clusters || !config) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != cudaLaunchAttributeClusterDimension) continue;
    cluster = attribute.val.clusterDim.x * attribute.val.clusterDim.y * attribute.val.clusterDim.z;
  }
  if (cluster > 1 && !has_clusters()) return result(cudaErrorInvalidConfiguration);
  const dim3 block = config->blockDim;
  const int blocks =
      active_blocks(static_cast<int>(block.x * block.y * block.z), config->dynamicSmemBytes);
  *clusters = blocks * Machine::get().profile(current_device()).multiprocessors /
              static_cast<int>(std::max(1u, cluster));
  return cudaSuccess;
}

// Variables of device code.

MEMLEDGER_ANSWER cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return result(symbol_address(pointer, symbol));
}

MEMLEDGER_ANSWER cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  const std::optional<size_t> known = variable_bytes(symbol);
  if (!bytes) return result(cudaErrorInvalidValue);
  if (!known) return result(cudaErrorInvalidSymbol);
  *bytes = *known;
  return cudaSuccess;
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source,
                                                size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return result(copy_to_symbol(symbol, source, bytes, offset, kind, nullptr, false));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source,
                                                     size_t bytes, size_t offset,
                                                     cudaMemcpyKind kind, cudaStream_t stream) {
  return result(copy_to_symbol(symbol, source, bytes, offset, kind, stream, true));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpyFromSymbol(void* destination, const void* symbol,
                                                  size_t bytes, size_t offset,
                                                  cudaMemcpyKind kind) {
  return result(copy_from_symbol(destination, symbol, bytes, offset, kind, nullptr, false));
}

MEMLEDGER_ANSWER cudaError_t cudaMemcpyFromSymbolAsync(void* destination, const void* symbol,
                                                       size_t bytes, size_t offset,
                                                       cudaMemcpyKind kind, cudaStream_t stream) {
  return result(copy_from_symbol(destination, symbol, bytes, offset, kind, stream, true));
}

// The driver's functions.

MEMLEDGER_ANSWER cudaError_t
cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                 unsigned long long, cudaDriverEntryPointQueryResult* status) {
  if (!name || !function) return result(cudaErrorInvalidValue);
  *function = find_driver_function(name, static_cast<int>(version));
  if (status)
    *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  // Not knowing a name is not an error where the caller asks for the status.
  return result(*function || status ? cudaSuccess : cudaErrorSymbolNotFound);
}

MEMLEDGER_ANSWER cudaError_t cudaGetDriverEntryPoint(const char* name, void** function,
                                                     unsigned long long flags,
                                                     cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}
