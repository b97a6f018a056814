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
#include "virtual_gpu/answers/cudart_modules.h"
#include "virtual_gpu/gpc_layout.h"
#include "virtual_gpu/unwatched_reads.h"

namespace memledger::virtual_gpu {
namespace {

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
};

thread_local CallConfiguration call_configuration;

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
  if (const cudaError_t error = load_kernel(kernel)) return error;
  return launch_kernel(stream, {kernel, grid, block, arguments, nullptr, 0, kernel});
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
  note_host_addresses(work, launch.origin);
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
  if (const cudaError_t error = load_kernel(kernel)) return result(error);
  const uint64_t at_once =
      uint64_t(active_blocks(static_cast<int>(block.x * block.y * block.z), shared_bytes)) *
      Machine::get().profile(current_device()).multiprocessors;
  if (uint64_t{grid.x} * grid.y * grid.z > at_once)
    return result(cudaErrorCooperativeLaunchTooLarge);
  return result(launch_kernel(stream, {kernel, grid, block, arguments, nullptr, 0, kernel}));
}

MEMLEDGER_ANSWER cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                                   const void* kernel) {
  if (!attributes) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = ready()) return result(error);
  const KernelFacts facts = facts_of_kernel(kernel);
  if (facts.error != cudaSuccess) return result(facts.error);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = kMaxThreadsPerBlock;
  attributes->numRegs = kAssumedRegisters;
  attributes->localSizeBytes = facts.code.local_bytes;
  attributes->ptxVersion = facts.ptx_version;
  attributes->binaryVersion = facts.binary_version;
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
  const Machine& machine = Machine::get();
  *clusters = active_clusters(machine.profile(current_device()), machine.specification().unevenness,
                              blocks, static_cast<int>(std::max(1u, cluster)));
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
