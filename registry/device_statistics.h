#pragma once

// What LibTorch's CUDA allocator says of itself: the independent figures that a report holds its
// rows against.
//
//   if (const auto statistics = memledger::device_statistics(c10::Device(c10::kCUDA, 0))) {
//     std::cout << statistics->requested_bytes.current << " of " <<
//     statistics->reserved_bytes.current << '\n';
//   }
//
// How the figures of one device fit together (each exact while no other thread allocates or frees
// between two calls; the sums are members of DeviceBlocks):
//
//   requested = rows and raw blocks that the registry knows + made before tracking + freed, but
//   awaited by other streams allocated = requested of the blocks in use + rounding + unsplit
//   remainders active    = allocated + blocks freed, but awaited by other streams reserved  =
//   active + cached, free
//
// Units: bytes, unless said. Thread-safety: all functions may be called from any thread. Errors:
// none is thrown but std::bad_alloc; where LibTorch cannot answer, the result is empty. They
// initialize nothing and load nothing, work whether or not the registry is active, and change no
// statistic, except that LibTorch's own recording of its history (where a program has turned it on)
// notes that a snapshot was taken. Where memledger was built against a LibTorch without CUDA, every
// result is empty.

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memledger {

// As LibTorch's CachingAllocator::Stat: `allocated` and `freed` only grow, `peak` is since the
// program last reset it.
struct Statistic {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;
  int64_t freed = 0;
};

struct DeviceStatistics {
  std::string allocator;  // its name: "native", "cudaMallocAsync", or the program's own
  // False if it hands each request to the driver (PYTORCH_NO_CUDA_MEMORY_CACHING=1): such blocks
  // are in no figure below.
  bool caching = true;

  Statistic requested_bytes;  // as asked for; 0 with cudaMallocAsync, which does not remember it
  Statistic allocated_bytes;  // blocks in use
  Statistic active_bytes;     // these, and blocks freed that other streams may still use
  Statistic reserved_bytes;   // taken from the driver
  Statistic inactive_split_bytes;  // free pieces of segments that are in use elsewhere

  // Numbers of blocks and segments.
  Statistic allocations;
  Statistic active_blocks;
  Statistic segments;
  Statistic inactive_split_blocks;

  // Numbers of events.
  int64_t allocation_retries = 0;  // the driver refused, and granted it after the cache was emptied
  int64_t out_of_memory_errors = 0;
  int64_t driver_allocations = 0;
  int64_t driver_frees = 0;
};

// Of one CUDA device. Empty: no CUDA device, LibTorch's CUDA library is not in the process, or its
// allocator has not been initialized (nothing was allocated yet) or keeps no statistics. Cost: one
// lock of that device's allocator, some microseconds.
std::optional<DeviceStatistics> device_statistics(c10::Device device);

// False: LibTorch's allocator threw while it was initialized, and would crash if it were asked
// anything (its settings could not be read).
bool allocator_is_usable(c10::DeviceType type) noexcept;

// The device's own memory, whoever uses it: what nvidia-smi calls total and free.
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Empty as device_statistics(), and where LibTorch is older than 2.10. Cost: a call of the driver,
// some ten microseconds.
std::optional<DeviceMemory> device_memory(c10::Device device);

enum class BlockState : uint8_t {
  kInUse,
  kAwaitingFree,  // freed by the program, and kept until the streams that it was recorded on have
                  // passed (recordStream)
  kFree,
};

struct DeviceBlock {
  uintptr_t address = 0;
  int64_t nbytes = 0;
  int64_t requested_bytes = 0;  // 0 for a free block
  BlockState state = BlockState::kFree;

  // What a request becomes by LibTorch's rounding to 512 bytes, and what the block is larger than
  // that: a rest too small to split off, or the program's own rounding (roundup_power2_divisions).
  int64_t rounding_bytes() const { return (requested_bytes + 511) / 512 * 512 - requested_bytes; }
  int64_t unsplit_bytes() const { return nbytes - requested_bytes - rounding_bytes(); }
};

// Memory that the allocator took from the driver in one piece, or mapped in one piece of address
// space.
struct DeviceSegment {
  uintptr_t address = 0;
  int64_t nbytes = 0;
  uint64_t stream = 0;  // the CUDA stream's handle; 0 is the default stream
  bool large = false;   // of the pool for blocks over 1 MiB
  bool expandable = false;
  std::pair<uint64_t, uint64_t> pool{0, 0};  // LibTorch's MempoolId_t; {0, 0}: the device's own
  std::vector<DeviceBlock> blocks;           // by address, without gaps
};

struct DeviceBlocks {
  std::vector<DeviceSegment> segments;
  // Sums over the blocks.
  int64_t requested_bytes = 0;  // of blocks in use
  int64_t rounding_bytes = 0;   // of blocks in use
  int64_t unsplit_bytes = 0;    // of blocks in use
  int64_t awaiting_free_bytes = 0;
  int64_t awaiting_free_requested_bytes = 0;
  int64_t free_bytes = 0;
  int64_t largest_free_block = 0;
  // How new segments are made by now, whether the environment or the program asked for it.
  bool expandable_segments = false;

  int64_t allocated_bytes() const { return requested_bytes + rounding_bytes + unsplit_bytes; }
  int64_t active_bytes() const { return allocated_bytes() + awaiting_free_bytes; }
  int64_t reserved_bytes() const { return active_bytes() + free_bytes; }
};

// Every block of one CUDA device, from the allocator's own snapshot. Empty as device_statistics(),
// and for allocators that have no snapshot (cudaMallocAsync). Cost: by the number of blocks of
// *all* devices, about a microsecond for ten, while the allocator is locked: for reports, not for
// every step.
std::optional<DeviceBlocks> device_blocks(c10::Device device);

// Memory that LibTorch took from the allocator for a library, and keeps: it belongs to no tensor.
struct LibraryWorkspace {
  std::string_view library;  // "cuBLAS" or "cuBLASLt"
  uintptr_t address = 0;     // the registry's row at this address tells its size
  c10::Device device = c10::Device(c10::DeviceType::CUDA, 0);
  uint64_t stream = 0;  // the CUDA stream's handle; 0 is the default stream
  int handle = 1;  // of the library: LibTorch has one for each thread that uses it, autograd's too;
                   // in no particular order

  // "cuBLAS workspace (stream 0)", "cuBLAS workspace (stream 0, handle 2)"; other streams by their
  // handle in hexadecimal.
  std::string name() const;
};

// Those that exist now, read from LibTorch's own tables; a workspace that cuBLASLt shares with
// cuBLAS appears once. Empty also where LibTorch is older than 2.11, whose tables cannot be read
// safely: such workspaces then are blocks made by an operator that has ended, without a tensor.
// Cost: a lock of each table; a table whose lock is held for a millisecond by someone else
// (LibTorch makes a workspace) is left out.
std::vector<LibraryWorkspace> library_workspaces();

// What libraries asked for while their operations ran, on the virtual GPU
// (docs/virtual_gpu_workspaces.md): LibTorch gives it back when the operation ends, so it is part
// of peaks, and there it is the one part that is a model.
struct ModelledWorkspace {
  std::string_view name;      // "cuDNN convolution forward"
  int64_t largest_bytes = 0;  // of one request
  int64_t requests = 0;       // those of 0 bytes included
};

// Since the process began, on all devices together, only those that were ever more than 0 bytes.
// Empty on a real GPU, whose libraries do not tell.
std::vector<ModelledWorkspace> modelled_workspaces();

// Pinned host memory: CPU memory that LibTorch takes through the CUDA driver (pin_memory(), copies
// to the host). It is in none of the CPU's figures, as the CPU allocator never sees it. Blocks are
// rounded up to powers of two.
struct PinnedStatistics {
  Statistic in_use_bytes;    // blocks that the program holds; see in_use_is_exact
  Statistic reserved_bytes;  // these, and free blocks kept for later
  Statistic in_use_blocks;
  Statistic reserved_blocks;
  int64_t driver_allocations = 0;
  int64_t driver_frees = 0;
  // LibTorch before 2.15 goes on counting a block as in use when it is freed without having been
  // used on a stream: the figures in use then are upper bounds, and can exceed those reserved.
  bool in_use_is_exact = false;
};

// Empty: LibTorch's CUDA library is not in the process. Cost: the locks of LibTorch's host
// allocator, some microseconds.
std::optional<PinnedStatistics> pinned_statistics();

}  // namespace memledger
