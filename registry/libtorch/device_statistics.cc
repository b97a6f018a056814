#include "registry/device_statistics.h"

#include <atomic>
#include <cinttypes>
#include <cstdio>

#include "registry/libtorch/forget_cuda.h"
#include "registry/libtorch/reset_peaks.h"

#if MEMLEDGER_LIBTORCH_HAS_CUDA
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/env.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <thread>
#include <tuple>

#include "registry/core/loaded_libraries.h"
#include "registry/hooks/cuda_allocator.h"
#include "registry/libtorch/cuda_symbols.h"
#include "registry/libtorch/driver_memory.h"
#include "registry/libtorch/libtorch_version.h"
#include "registry/libtorch/newest_libtorch.h"
#include "registry/second_copy/copies.h"
#include "virtual_gpu/workspaces.h"
#endif

namespace memledger {
namespace {

std::atomic<bool> device_memory_is_forgotten{false};

}  // namespace

void forget_device_memory() noexcept {
  device_memory_is_forgotten.store(true, std::memory_order_relaxed);
}

std::string LibraryWorkspace::name() const {
  char where[32];
  std::snprintf(where, sizeof(where), stream == 0 ? "%" PRIu64 : "0x%" PRIx64, stream);
  const std::string of_handle = handle == 1 ? "" : ", handle " + std::to_string(handle);
  return std::string(library) + " workspace (stream " + where + of_handle + ")";
}

#if MEMLEDGER_LIBTORCH_HAS_CUDA

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// Returns what `read` returns, or nothing where LibTorch throws: it does where an allocator has no
// such figures.
template <typename Read>
auto unless_it_throws(const Read& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// A device without an index is the first one.
c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

// Null where it could only throw, which costs LibTorch milliseconds for the stack.
CUDAAllocator* initialized_allocator(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  auto* const allocator = static_cast<CUDAAllocator*>(CudaAllocator::in_use());
  if (allocator == nullptr || !allocator_is_usable(device.type()) || !allocator->initialized())
    return nullptr;
  const auto* const guard =
      c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
  return guard != nullptr && index_of(device) < guard->deviceCount() ? allocator : nullptr;
}

Statistic to_value(const c10::CachingAllocator::Stat& stat) {
  return {stat.current, stat.peak, stat.allocated, stat.freed};
}

Statistic to_value(const c10::CachingAllocator::StatArray& stats) {
  return to_value(stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]);
}

DeviceSegment to_value(const c10::cuda::CUDACachingAllocator::SegmentInfo& segment) {
  DeviceSegment value;
  value.address = segment.address;
  value.nbytes = static_cast<int64_t>(segment.total_size);
  value.stream = reinterpret_cast<uintptr_t>(segment.stream);
  value.large = segment.is_large;
  value.expandable = segment.is_expandable;
  value.pool = {segment.owner_private_pool_id.first, segment.owner_private_pool_id.second};
  value.blocks.reserve(segment.blocks.size());
  uintptr_t address = segment.address;
  for (const auto& block : segment.blocks) {
    DeviceBlock& added = value.blocks.emplace_back();
    added.address = address;
    added.nbytes = static_cast<int64_t>(block.size);
    added.state = block.allocated ? BlockState::kInUse
                  : block.active  ? BlockState::kAwaitingFree
                                  : BlockState::kFree;
    if (added.state != BlockState::kFree)
      added.requested_bytes = static_cast<int64_t>(block.requested_size);
    address += block.size;
  }
  return value;
}

void add(DeviceBlocks& sums, const DeviceBlock& block) {
  switch (block.state) {
    case BlockState::kInUse:
      sums.requested_bytes += block.requested_bytes;
      sums.rounding_bytes += block.rounding_bytes();
      sums.unsplit_bytes += block.unsplit_bytes();
      break;
    case BlockState::kAwaitingFree:
      sums.awaiting_free_bytes += block.nbytes;
      sums.awaiting_free_requested_bytes += block.requested_bytes;
      break;
    case BlockState::kFree:
      sums.free_bytes += block.nbytes;
      sums.largest_free_block = std::max(sums.largest_free_block, block.nbytes);
      break;
  }
}

#if MEMLEDGER_TORCH_AT_LEAST(11)
// at::cuda::WorkspaceMapWithMutex, whose header needs headers of libraries that memledger does
// without. Newer versions keep the size behind the DataPtr in each entry, so iterating is the same.
struct WorkspaceTable {
  std::map<std::tuple<void*, void*>, c10::DataPtr> workspaces;  // by library handle and stream
  std::shared_mutex mutex;
};

// Returns a number that changes when libraries are loaded.
unsigned long long loaded_libraries() {
  unsigned long long loaded = 0;
  core::for_each_loaded_library(
      [](dl_phdr_info* library, size_t, void* result) {
        *static_cast<unsigned long long*>(result) = library->dlpi_adds;
        return 1;
      },
      &loaded);
  return loaded;
}

// Finds a function of LibTorch's CUDA library, looking again only when libraries were loaded since,
// as each reading of the registry asks.
class TableFunction {
 public:
  constexpr explicit TableFunction(const char* mangled) : mangled_(mangled) {}
  void* get() {
    if (void* const known = symbol_.load(std::memory_order_acquire)) return known;
    const unsigned long long loaded = loaded_libraries();
    if (looked_among_.load(std::memory_order_relaxed) == loaded) return nullptr;
    void* const symbol = find_symbol_of_loaded_library(mangled_);
    if (symbol != nullptr) symbol_.store(symbol, std::memory_order_release);
    looked_among_.store(loaded, std::memory_order_relaxed);
    return symbol;
  }

 private:
  const char* const mangled_;
  std::atomic<void*> symbol_{nullptr};
  std::atomic<unsigned long long> looked_among_{0};
};

void add_workspaces(TableFunction& table_function, std::string_view library,
                    std::vector<LibraryWorkspace>& all) {
  void* const symbol = table_function.get();
  if (symbol == nullptr) return;
  WorkspaceTable& table = reinterpret_cast<WorkspaceTable& (*)()>(symbol)();
  // LibTorch may hold the lock on this very thread, when it is a workspace that finds no memory.
  std::shared_lock<std::shared_mutex> hold(table.mutex, std::try_to_lock);
  for (int tries = 0; !hold.owns_lock() && tries < 100; ++tries) {
    std::this_thread::sleep_for(std::chrono::microseconds(10));
    if (hold.try_lock()) break;
  }
  if (!hold.owns_lock()) return;
  std::vector<void*> handles;
  for (const auto& [handle_and_stream, data] : table.workspaces) {
    LibraryWorkspace workspace;
    void* const handle = std::get<0>(handle_and_stream);
    if (handles.empty() || handles.back() != handle) handles.push_back(handle);  // they come sorted
    workspace.handle = static_cast<int>(handles.size());
    workspace.library = library;
    workspace.address = reinterpret_cast<uintptr_t>(data.get());
    workspace.device = data.device();
    workspace.stream = reinterpret_cast<uintptr_t>(std::get<1>(handle_and_stream));
    const bool known = std::any_of(all.begin(), all.end(), [&](const LibraryWorkspace& earlier) {
      return earlier.address == workspace.address;
    });
    if (workspace.address != 0 && !known) all.push_back(workspace);
  }
}
#endif

// Older versions called blocks in use allocated, and all of them reserved.
template <typename Stats>
auto to_pinned(const Stats& stats, int)
    -> decltype(static_cast<void>(stats.active_bytes), PinnedStatistics()) {
  PinnedStatistics value;
  value.in_use_bytes = to_value(stats.active_bytes);
  value.in_use_blocks = to_value(stats.active_requests);
  value.reserved_bytes = to_value(stats.allocated_bytes);
  value.reserved_blocks = to_value(stats.allocations);
  return value;
}
template <typename Stats>
PinnedStatistics to_pinned(const Stats& stats, long) {
  PinnedStatistics value;
  value.in_use_bytes = to_value(stats.allocated_bytes);
  value.in_use_blocks = to_value(stats.allocation);
  value.reserved_bytes = to_value(stats.reserved_bytes);
  value.reserved_blocks = to_value(stats.segment);
  return value;
}

}  // namespace

std::optional<DeviceStatistics> device_statistics(c10::Device device) {
  CUDAAllocator* const allocator = initialized_allocator(device);
  if (allocator == nullptr) return std::nullopt;
  return unless_it_throws([&] {
    const c10::CachingDeviceAllocator::DeviceStats stats =
        allocator->getDeviceStats(index_of(device));
    DeviceStatistics value;
    value.allocator = allocator->name();
    value.caching =
        allocator->isEnabled() && c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") != true;
    value.requested_bytes = to_value(stats.requested_bytes);
    value.allocated_bytes = to_value(stats.allocated_bytes);
    value.active_bytes = to_value(stats.active_bytes);
    value.reserved_bytes = to_value(stats.reserved_bytes);
    value.inactive_split_bytes = to_value(stats.inactive_split_bytes);
    value.allocations = to_value(stats.allocation);
    value.active_blocks = to_value(stats.active);
    value.segments = to_value(stats.segment);
    value.inactive_split_blocks = to_value(stats.inactive_split);
    value.allocation_retries = stats.num_alloc_retries;
    value.out_of_memory_errors = stats.num_ooms;
    value.driver_allocations = stats.num_device_alloc;
    value.driver_frees = stats.num_device_free;
    return value;
  });
}

void reset_device_peaks(c10::Device device) {
  CUDAAllocator* const allocator = initialized_allocator(device);
  if (allocator == nullptr) return;
  unless_it_throws([&] {
    allocator->resetPeakStats(index_of(device));
    return true;
  });
}

std::optional<DeviceMemory> device_memory(c10::Device device) {
#if MEMLEDGER_TORCH_AT_LEAST(10)
  if (device_memory_is_forgotten.load(std::memory_order_relaxed)) {
    const std::optional<DriverMemory> memory = driver_memory(index_of(device));
    if (!memory) return std::nullopt;
    return DeviceMemory{memory->total_bytes, memory->total_bytes - memory->used_bytes};
  }
  CUDAAllocator* const allocator = initialized_allocator(device);
  if (allocator == nullptr) return std::nullopt;
  return unless_it_throws([&] {
    const auto [free_bytes, total_bytes] = allocator->getMemoryInfo(index_of(device));
    return DeviceMemory{static_cast<int64_t>(total_bytes), static_cast<int64_t>(free_bytes)};
  });
#else
  return std::nullopt;
#endif
}

std::optional<DeviceBlocks> device_blocks(c10::Device device) {
  CUDAAllocator* const allocator = initialized_allocator(device);
  if (allocator == nullptr) return std::nullopt;
  return unless_it_throws([&] {
#if MEMLEDGER_TORCH_AT_LEAST(11)
    const auto snapshot = allocator->snapshot({0, 0}, /*include_traces=*/false);
#else
    const auto snapshot = allocator->snapshot({0, 0});
#endif
    DeviceBlocks value;
    value.expandable_segments = snapshot.config_metadata.expandable_segments;
    for (const auto& segment : snapshot.segments) {
      if (segment.device != index_of(device)) continue;
      value.segments.push_back(to_value(segment));
      for (const DeviceBlock& block : value.segments.back().blocks) add(value, block);
    }
    return value;
  });
}

bool allocator_is_usable(c10::DeviceType type) noexcept {
  if (const CopyOffer* const first = first_copy())
    return first->services->allocator_is_usable(type);
  return type != c10::DeviceType::CUDA || !CudaAllocator::is_half_made();
}

std::vector<LibraryWorkspace> library_workspaces() {
  std::vector<LibraryWorkspace> all;
#if MEMLEDGER_TORCH_AT_LEAST(11)
  // A newer release's tables may have another layout than WorkspaceTable.
  if (is_newer_than_known(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR)) return all;
  if (CudaAllocator::in_use() == nullptr) return all;
  static TableFunction cublas("_ZN2at4cuda33cublas_handle_stream_to_workspaceEv");
  static TableFunction cublaslt("_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv");
  add_workspaces(cublas, "cuBLAS", all);
  add_workspaces(cublaslt, "cuBLASLt", all);
#endif
  return all;
}

std::vector<ModelledWorkspace> modelled_workspaces() {
  std::vector<ModelledWorkspace> all;
  if (CudaAllocator::in_use() == nullptr) return all;
  void* const symbol = find_symbol_of_loaded_library("memledger_virtual_gpu_workspaces");
  if (symbol == nullptr) return all;
  const auto ask = reinterpret_cast<decltype(&memledger_virtual_gpu_workspaces)>(symbol);
  std::vector<memledger_virtual_gpu_workspace> rows(ask(nullptr, 0));
  rows.resize(std::min(rows.size(), ask(rows.data(), rows.size())));
  for (const memledger_virtual_gpu_workspace& row : rows) {
    if (row.largest_bytes == 0) continue;
    all.push_back(
        {row.name, static_cast<int64_t>(row.largest_bytes), static_cast<int64_t>(row.asked)});
  }
  return all;
}

std::optional<PinnedStatistics> pinned_statistics() {
  if (CudaAllocator::in_use() == nullptr) return std::nullopt;
  at::HostAllocator* const allocator = at::getHostAllocator(c10::DeviceType::CUDA);
  if (allocator == nullptr) return std::nullopt;  // the small CUDA library alone
  return unless_it_throws([&] {
    const at::HostStats stats = allocator->get_stats();
    PinnedStatistics value = to_pinned(stats, 0);
    value.driver_allocations = stats.num_host_alloc;
    value.driver_frees = stats.num_host_free;
    value.in_use_is_exact = MEMLEDGER_TORCH_AT_LEAST(15);
    return value;
  });
}

#else

std::optional<DeviceStatistics> device_statistics(c10::Device) { return std::nullopt; }
void reset_device_peaks(c10::Device) {}
bool allocator_is_usable(c10::DeviceType) noexcept { return true; }
std::optional<DeviceMemory> device_memory(c10::Device) { return std::nullopt; }
std::optional<DeviceBlocks> device_blocks(c10::Device) { return std::nullopt; }
std::vector<LibraryWorkspace> library_workspaces() { return {}; }
std::vector<ModelledWorkspace> modelled_workspaces() { return {}; }
std::optional<PinnedStatistics> pinned_statistics() { return std::nullopt; }

#endif

}  // namespace memledger
