#include "virtual_gpu/context_memory.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "virtual_gpu/machine.h"

namespace memledger::virtual_gpu {
namespace {

constexpr size_t kDevices = 8;
constexpr auto kLimits = static_cast<size_t>(ContextLimit::kCount);
constexpr std::array<size_t, kLimits> kDefaults = {kDefaultStackBytes, kDefaultHeapBytes,
                                                   kDefaultPrintfBytes};

// The heap's own tables.
constexpr size_t kBesideHeap = size_t{2} << 20;

// What a context keeps, by device.
struct Kept {
  std::array<std::atomic<size_t>, kLimits> limits;  // 0: the default
  std::atomic<size_t> kernel_nodes;                 // of graphs that are alive
  // Owners of the memory, by address.
  char local_memory, heap, graph_nodes;
};

std::array<Kept, kDevices> kept;

Kept& kept_of(int device) { return kept[static_cast<size_t>(device)]; }

std::atomic<size_t>& place_of(int device, ContextLimit limit) {
  return kept_of(device).limits[static_cast<size_t>(limit)];
}

// Whole pages; more than the device has where `bytes` is.
size_t in_pages(int device, size_t bytes) {
  const size_t most = Machine::get().capacity(device) + 1;
  return (std::min(bytes, most) + Machine::kPage - 1) / Machine::kPage * Machine::kPage;
}

size_t for_all_threads(int device, size_t bytes_per_thread) {
  const Profile& profile = Machine::get().profile(device);
  const size_t threads = static_cast<size_t>(profile.multiprocessors) *
                         static_cast<size_t>(profile.max_threads_per_multiprocessor);
  if (bytes_per_thread <= kDefaultStackBytes) return 0;
  const size_t more = bytes_per_thread - kDefaultStackBytes;
  const size_t capacity = Machine::get().capacity(device);
  return in_pages(device, more > capacity / threads ? capacity + 1 : more * threads);
}

}  // namespace

size_t context_limit(int device, ContextLimit limit) {
  const size_t set = place_of(device, limit).load(std::memory_order_relaxed);
  return set != 0 ? set : kDefaults[static_cast<size_t>(limit)];
}

bool set_context_limit(int device, ContextLimit limit, size_t bytes) {
  if (limit == ContextLimit::kStack) {
    if (bytes < context_limit(device, limit))
      Machine::get().release_held(&kept_of(device).local_memory);
    if (!take_local_memory(device, bytes)) return false;
  }
  place_of(device, limit).store(bytes, std::memory_order_relaxed);
  return true;
}

bool take_local_memory(int device, size_t bytes_per_thread) {
  const size_t bytes = for_all_threads(device, bytes_per_thread);
  return bytes == 0 || Machine::get().hold(device, &kept_of(device).local_memory, bytes);
}

bool take_heap(int device) {
  const size_t bytes = in_pages(device, context_limit(device, ContextLimit::kHeap));
  return Machine::get().hold(device, &kept_of(device).heap, bytes + kBesideHeap);
}

bool take_graph_nodes(int device, size_t kernels) {
  constexpr size_t kLeast = size_t{2} << 10, kMost = 8704, kInContext = size_t{1} << 20;
  const size_t all = kept_of(device).kernel_nodes.fetch_add(kernels) + kernels;
  const bool most = Machine::get().specification().workspaces == WorkspaceEnd::kUpper;
  const size_t bytes = most ? all * kMost : all * kLeast - std::min(all * kLeast, kInContext);
  if (bytes == 0 ||
      Machine::get().hold(device, &kept_of(device).graph_nodes, in_pages(device, bytes)))
    return true;
  give_graph_nodes(device, kernels);
  return false;
}

void give_graph_nodes(int device, size_t kernels) {
  std::atomic<size_t>& alive = kept_of(device).kernel_nodes;
  // A reset may have been in between.
  size_t now = alive.load();
  while (!alive.compare_exchange_weak(now, now - std::min(now, kernels))) {
  }
}

void forget_context_limits(int device) {
  for (std::atomic<size_t>& limit : kept_of(device).limits) limit.store(0);
  kept_of(device).kernel_nodes.store(0);
}

}  // namespace memledger::virtual_gpu
