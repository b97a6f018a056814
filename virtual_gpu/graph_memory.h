#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "virtual_gpu/streams.h"

namespace memledger::virtual_gpu {

// What an allocation node stands for: an address that is fixed, and memory behind it.
struct GraphBlock {
  // A block lives from the launch that reaches its allocation node to the first of: a node that
  // frees it, cudaFreeAsync, cudaFree.
  enum class State { kFresh, kLive, kFreed };
  struct Range;

  void* pointer;
  size_t bytes;
  int device;
  State state = State::kFresh;
  bool has_graph = true;
  std::shared_ptr<Range> range = nullptr;  // of the device's memory, which blocks may share
  std::vector<size_t> freed_by = {};       // the nodes that freed its place before, by index
};

// The memory of a graph, which its executables share. CUDA takes addresses when a node is made, and
// physical memory at some time from instantiation on; here, both when the node is made, so that a
// graph that is never launched is on the safe side. All of it is given back with the graph, but for
// blocks that live.
//
// A block may have the place of another one of its graph that a node has freed, if that comes
// before the new block's node. Graphs share no memory with each other, as they do on a device if
// they are launched in the same stream.
class GraphMemory {
 public:
  GraphMemory() = default;
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  // nullptr: no memory left. `predecessors` are asked for with no lock held.
  std::shared_ptr<GraphBlock> allocate(int device, size_t bytes,
                                       const std::function<Predecessors()>& predecessors);
  // Takes back a block for which no node could be made.
  void take_back(const GraphBlock& block);
  // The block is freed by the node of that index. False where it is not one of this graph, or has
  // been freed.
  bool free_by_node(const GraphBlock& block, size_t index);
  bool has_nodes();

  // Only one executable of such a graph may be there at a time.
  bool add_instance();
  void drop_instance();

 private:
  // A part that has been freed by nodes.
  struct Gap {
    uintptr_t begin;
    size_t bytes;
    std::vector<size_t> freed_by;
    std::shared_ptr<GraphBlock::Range> range;
  };

  std::shared_ptr<GraphBlock> take_gap(int device, size_t bytes, const Predecessors& predecessors);

  std::vector<std::shared_ptr<GraphBlock>> open_;  // what no node of the graph frees
  std::vector<Gap> gaps_;
  size_t nodes_ = 0;  // that allocate
  bool has_instance_ = false;
};

// The block of a graph that is at that address, if the program can free it.
std::shared_ptr<GraphBlock> find_graph_block(const void* pointer);

// What a launch does. False where a block lives still and is not freed by the launch.
bool reach_allocations(const std::vector<std::shared_ptr<GraphBlock>>& blocks, bool frees_first);
void reach_free(GraphBlock& block);

enum class FreedFromGraph { kNoneOfGraphs, kFreed, kFreedAlready };

// For cudaFree and cudaFreeAsync.
FreedFromGraph free_of_graph(const void* pointer);

}  // namespace memledger::virtual_gpu
