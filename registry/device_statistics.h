#pragma once

// What LibTorch's CUDA allocator says of itself: the figures that a report checks its rows against.
//
//   const c10::Device device(c10::kCUDA, 0);
//   if (const auto statistics = memledger::device_statistics(device))
//     std::cout << statistics->requested_bytes.current << " bytes requested\n";
//
// Any thread may call these functions. They throw nothing but std::bad_alloc, initialize and load
// nothing, and work whether or not the registry is active. What LibTorch does not report is empty;
// so is everything where memledger was built against a LibTorch without CUDA.

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memledger {

// LibTorch's CachingAllocator::Stat: `allocated` and `freed` only grow, `peak` is since the program
// last reset it.
struct Statistic {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;
  int64_t freed = 0;
};

// One device. Its figures fit together as follows, exactly while no other thread allocates or
// frees:
//   requested = rows and raw blocks of the registry + made before tracking
//               + freed but awaited by other streams
//   allocated = requested bytes of blocks in use + rounding + unsplit remainders
//   active    = allocated + blocks freed but awaited by other streams
//   reserved  = active + cached, free
// DeviceBlocks has the sums.
struct DeviceStatistics {
  std::string allocator;  // its name: "native", "cudaMallocAsync", or the program's own
  // False if it passes each request to the driver (PYTORCH_NO_CUDA_MEMORY_CACHING=1): no figure
  // below counts such blocks.
  bool caching = true;

  Statistic requested_bytes;  // as asked for; 0 with cudaMallocAsync, which does not remember it
  Statistic allocated_bytes;  // blocks in use
  Statistic active_bytes;     // these, and blocks freed that other streams may still use
  Statistic reserved_bytes;   // taken from the driver
  Statistic inactive_split_bytes;  // free pieces of segments that are in use elsewhere

  // Numbers of blocks and of segments.
  Statistic allocations;
  Statistic active_blocks;
  Statistic segments;
  Statistic inactive_split_blocks;

  // Numbers of events.
  int64_t allocation_retries = 0;  // granted by the driver only after the cache was emptied
  int64_t out_of_memory_errors = 0;
  int64_t driver_allocations = 0;
  int64_t driver_frees = 0;
};

// Returns the statistics of a CUDA device. Empty for other devices, where LibTorch's CUDA library
// is not in the process, and where its allocator is not initialized yet (nothing was allocated) or
// keeps no statistics. Cost: a lock of that device's allocator, some microseconds.
std::optional<DeviceStatistics> device_statistics(c10::Device device);

// Returns false where LibTorch's allocator threw while it was initialized (it could not read its
// settings), and would crash if asked anything.
bool allocator_is_usable(c10::DeviceType type) noexcept;

// A device's memory, whoever uses it: what nvidia-smi calls total and free.
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Returns a CUDA device's memory. Empty as device_statistics(), and with a LibTorch older
// than 2.10. Cost: a call of the driver, some ten microseconds.
std::optional<DeviceMemory> device_memory(c10::Device device);

enum class BlockState : uint8_t {
  kInUse,
  kAwaitingFree,  // freed by the program; kept until the streams it was recorded on are done with
                  // it (recordStream)
  kFree,
};

struct DeviceBlock {
  uintptr_t address = 0;
  int64_t nbytes = 0;
  int64_t requested_bytes = 0;  // 0 for a free block
  BlockState state = BlockState::kFree;

  // Return what LibTorch's rounding to 512 bytes adds to a request, and what the block has beyond
  // that: a rest too small to split off, or the program's own rounding (roundup_power2_divisions).
  int64_t rounding_bytes() const { return (requested_bytes + 511) / 512 * 512 - requested_bytes; }
  int64_t unsplit_bytes() const { return nbytes - requested_bytes - rounding_bytes(); }
};

// Memory that the allocator took from the driver in one piece, or mapped into one range of
// addresses.
struct DeviceSegment {
  uintptr_t address = 0;
  int64_t nbytes = 0;
  uint64_t stream = 0;  // the CUDA stream's handle; 0 is the default stream
  bool large = false;   // in the pool for blocks over 1 MiB
  bool expandable = false;
  std::pair<uint64_t, uint64_t> pool{0, 0};  // LibTorch's MempoolId_t; {0, 0}: the device's own
  std::vector<DeviceBlock> blocks;           // by address, without gaps
};

// All blocks of a device, and their sums.
struct DeviceBlocks {
  std::vector<DeviceSegment> segments;
  int64_t requested_bytes = 0;  // blocks in use
  int64_t rounding_bytes = 0;   // blocks in use
  int64_t unsplit_bytes = 0;    // blocks in use
  int64_t awaiting_free_bytes = 0;
  int64_t awaiting_free_requested_bytes = 0;
  int64_t free_bytes = 0;
  int64_t largest_free_block = 0;
  // Whether new segments will be expandable, as the environment or the program asked.
  bool expandable_segments = false;

  int64_t allocated_bytes() const { return requested_bytes + rounding_bytes + unsplit_bytes; }
  int64_t active_bytes() const { return allocated_bytes() + awaiting_free_bytes; }
  int64_t reserved_bytes() const { return active_bytes() + free_bytes; }
};

// Returns every block of a CUDA device, from the allocator's own snapshot; LibTorch's recording of
// its history, where it is on, notes that one was taken. Empty as device_statistics(), and for
// allocators without snapshots (cudaMallocAsync). Cost: about a microsecond per ten blocks of *all*
// devices, while the allocator is locked: for reports, not for every step.
std::optional<DeviceBlocks> device_blocks(c10::Device device);

// Memory that LibTorch took from the allocator for a library and keeps. It belongs to no tensor.
struct LibraryWorkspace {
  std::string_view library;  // "cuBLAS" or "cuBLASLt"
  uintptr_t address = 0;     // the registry's row at this address has its size
  c10::Device device = c10::Device(c10::DeviceType::CUDA, 0);
  uint64_t stream = 0;  // the CUDA stream's handle; 0 is the default stream
  // The number of the library's handle: LibTorch has one per thread that uses it, autograd's too,
  // in no particular order.
  int handle = 1;

  // Returns "cuBLAS workspace (stream 0)" or "cuBLAS workspace (stream 0, handle 2)"; streams other
  // than 0 are handles in hexadecimal.
  std::string name() const;
};

// Returns the workspaces that exist now, from LibTorch's own tables; one that cuBLASLt shares with
// cuBLAS appears once. Empty with a LibTorch older than 2.11, or newer than the newest that
// memledger was tested with, as the tables cannot be read safely: workspaces are scratch then.
// Cost: a lock of each table; a table that another thread keeps locked for a millisecond (LibTorch
// makes a workspace) is left out.
std::vector<LibraryWorkspace> library_workspaces();

// What libraries asked for while their operations ran on the virtual GPU. LibTorch frees it when
// the operation ends, so it is part of peaks, and their only part that is a model
// (docs/virtual_gpu_workspaces.md).
struct ModelledWorkspace {
  std::string_view name;      // "cuDNN convolution forward"
  int64_t largest_bytes = 0;  // the largest request
  int64_t requests = 0;       // including those for 0 bytes
};

// Returns them since the process began, all devices together, without those that never were more
// than 0 bytes. Empty on a real GPU, whose libraries do not report them.
std::vector<ModelledWorkspace> modelled_workspaces();

// Pinned host memory: CPU memory that LibTorch takes through the CUDA driver (pin_memory(), copies
// to the host). The CPU's figures leave it out, as the CPU allocator never sees it. Blocks are
// rounded up to powers of two.
struct PinnedStatistics {
  Statistic in_use_bytes;    // blocks that the program holds; see in_use_is_exact
  Statistic reserved_bytes;  // these, and free blocks kept for later
  Statistic in_use_blocks;
  Statistic reserved_blocks;
  int64_t driver_allocations = 0;
  int64_t driver_frees = 0;
  // False with a LibTorch before 2.15, which still counts a block as in use that was freed without
  // having been used on a stream: figures in use are upper bounds then, and can exceed the
  // reserved.
  bool in_use_is_exact = false;
};

// Returns what LibTorch's host allocator says. Empty where LibTorch's CUDA library is not in the
// process. Cost: that allocator's locks, some microseconds.
std::optional<PinnedStatistics> pinned_statistics();

}  // namespace memledger
