#pragma once

#include <cstddef>

namespace memledger::virtual_gpu {

// What a context takes of a device's memory as the program uses it, besides the program's own
// allocations: local memory of kernels, the heap of malloc() in kernels, nodes of graphs. How it
// does was measured on an H200, driver 580.159.04, on 2026-11-27: to the byte where not said
// otherwise. Thread-safe.

inline constexpr size_t kDefaultStackBytes = size_t{1} << 10;  // of each thread; in the context
inline constexpr size_t kDefaultHeapBytes = size_t{8} << 20;   // in no context before it is used
inline constexpr size_t kDefaultPrintfBytes = 8650752;

// cudaLimitStackSize, cudaLimitMallocHeapSize and cudaLimitPrintfFifoSize of a device.
enum class ContextLimit { kStack, kHeap, kPrintf, kCount };

size_t context_limit(int device, ContextLimit limit);
// Takes the memory of a stack at once, and gives back what is above a smaller one. Returns false,
// and leaves the limit as it is, where the memory is not there.
bool set_context_limit(int device, ContextLimit limit, size_t bytes);
// Takes the heap, for a kernel that uses it. Returns false where the memory is not there.
bool take_heap(int device);

// Makes room for kernels with this much local memory for each thread. It is for as many threads as
// the device runs at a time, however many a launch has. CUDA keeps it until the context ends.
// Returns false where the memory is not there.
bool take_local_memory(int device, size_t bytes_per_thread);

// Nodes of executable graphs: what was once taken for kernels is kept for other graphs until the
// context ends, other nodes take nothing. A kernel's node takes some 2.3 KiB, and 8.2 KiB with 4
// KiB of parameters. The low end of a dry run counts 2 KiB for each, less 1 MiB in total; the high
// end counts 8.5 KiB. Returns false where the memory is not there.
bool take_graph_nodes(int device, size_t kernels);
void give_graph_nodes(int device, size_t kernels);

// The context of the device is gone, with its memory.
void forget_context_limits(int device);

}  // namespace memledger::virtual_gpu
