#include "virtual_gpu/graph_memory.h"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "virtual_gpu/machine.h"

namespace memledger::virtual_gpu {

// Memory that belongs to a graph's blocks and gaps, and goes with the last of them.
struct GraphBlock::Range {
  Range(void* from, int of_device)
      : pointer(from), device(of_device), resets(Machine::get().resets(of_device)) {}
  ~Range() {
    // After a reset it is another's.
    if (Machine::get().resets(device) == resets) Machine::get().free(pointer);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  void* const pointer;
  const int device;
  const uint64_t resets;
};

namespace {

using State = GraphBlock::State;

// Held over a fork, like all locks here; before the machine's.
struct Blocks {
  std::mutex mutex;
  // Those that the program can free: no node of their graph does.
  std::map<const void*, std::shared_ptr<GraphBlock>> open;
};

Blocks* made_blocks = nullptr;

Blocks& blocks() {
  static Blocks* const made = [] {
    made_blocks = new Blocks;
    pthread_atfork([] { made_blocks->mutex.lock(); }, [] { made_blocks->mutex.unlock(); },
                   [] { made_blocks->mutex.unlock(); });
    return made_blocks;
  }();
  return *made;
}

}  // namespace

std::shared_ptr<GraphBlock> GraphMemory::allocate(
    int device, size_t bytes, const std::function<Predecessors()>& predecessors) {
  if (bytes > Machine::get().capacity(device)) return nullptr;
  const size_t rounded = round_up(bytes, Machine::kSmallAlignment);
  bool has_gaps = false;
  {
    std::lock_guard<std::mutex> lock(blocks().mutex);
    has_gaps = !gaps_.empty();
  }
  Predecessors before;
  if (has_gaps) before = predecessors();
  std::lock_guard<std::mutex> lock(blocks().mutex);
  std::shared_ptr<GraphBlock> block = take_gap(device, rounded, before);
  if (block == nullptr) {
    Machine& machine = Machine::get();
    void* const pointer = machine.allocate_from(machine.graph_pool(device), rounded);
    if (pointer == nullptr) return nullptr;
    block = std::make_shared<GraphBlock>(GraphBlock{pointer, rounded, device});
    block->range = std::make_shared<GraphBlock::Range>(pointer, device);
  }
  ++nodes_;
  open_.push_back(block);
  blocks().open[block->pointer] = block;
  return block;
}

void GraphMemory::take_back(const GraphBlock& block) {
  std::shared_ptr<GraphBlock> taken;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(blocks().mutex);
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const auto& open) { return open.get() == &block; });
  if (found == open_.end()) return;
  --nodes_;
  taken = std::move(*found);
  open_.erase(found);
  blocks().open.erase(block.pointer);
  if (!block.freed_by.empty())
    gaps_.push_back(
        {reinterpret_cast<uintptr_t>(block.pointer), block.bytes, block.freed_by, block.range});
}

// The smallest gap that is large enough. Gaps side by side are joined only where both can be used,
// as the whole then comes after the nodes that freed either.
std::shared_ptr<GraphBlock> GraphMemory::take_gap(int device, size_t bytes,
                                                  const Predecessors& predecessors) {
  std::vector<Gap*> usable;
  for (Gap& gap : gaps_) {
    if (gap.range->device == device &&
        std::all_of(gap.freed_by.begin(), gap.freed_by.end(),
                    [&](size_t index) { return predecessors.has(index); }))
      usable.push_back(&gap);
  }
  const auto best = [&]() -> Gap* {
    Gap* found = nullptr;
    for (Gap* gap : usable) {
      if (gap->bytes >= bytes && (found == nullptr || gap->bytes < found->bytes)) found = gap;
    }
    return found;
  };
  Gap* taken = best();
  if (taken == nullptr) {
    std::sort(usable.begin(), usable.end(),
              [](const Gap* a, const Gap* b) { return a->begin < b->begin; });
    for (size_t i = usable.size(); i-- > 1;) {
      Gap &left = *usable[i - 1], &right = *usable[i];
      if (left.range != right.range || left.begin + left.bytes != right.begin) continue;
      left.bytes += right.bytes;
      left.freed_by.insert(left.freed_by.end(), right.freed_by.begin(), right.freed_by.end());
      right.bytes = 0;
    }
    taken = best();
  }
  std::shared_ptr<GraphBlock> block;
  if (taken != nullptr) {
    block = std::make_shared<GraphBlock>(
        GraphBlock{reinterpret_cast<void*>(taken->begin), bytes, device});
    block->range = taken->range;
    block->freed_by = taken->freed_by;
    taken->begin += bytes;
    taken->bytes -= bytes;
  }
  gaps_.erase(std::remove_if(gaps_.begin(), gaps_.end(), [](const Gap& gap) { return !gap.bytes; }),
              gaps_.end());
  return block;
}

bool GraphMemory::free_by_node(const GraphBlock& block, size_t index) {
  std::lock_guard<std::mutex> lock(blocks().mutex);
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const auto& open) { return open.get() == &block; });
  if (found == open_.end()) return false;
  gaps_.push_back({reinterpret_cast<uintptr_t>(block.pointer), block.bytes, {index}, block.range});
  blocks().open.erase(block.pointer);
  open_.erase(found);
  return true;
}

bool GraphMemory::has_nodes() {
  std::lock_guard<std::mutex> lock(blocks().mutex);
  return nodes_ != 0;
}

bool GraphMemory::add_instance() {
  std::lock_guard<std::mutex> lock(blocks().mutex);
  if (nodes_ != 0 && has_instance_) return false;
  has_instance_ = true;
  return true;
}

void GraphMemory::drop_instance() {
  std::lock_guard<std::mutex> lock(blocks().mutex);
  has_instance_ = false;
}

// What lives is the program's to be freed. So is the address, though not the memory, of what it
// never had the use of: a library that frees it must not free another's.
GraphMemory::~GraphMemory() {
  if (open_.empty() && gaps_.empty()) return;
  std::lock_guard<std::mutex> lock(blocks().mutex);
  gaps_.clear();
  for (const std::shared_ptr<GraphBlock>& block : open_) {
    block->has_graph = false;
    if (block->state == State::kFreed) {
      blocks().open.erase(block->pointer);
      continue;
    }
    const bool is_used = std::any_of(open_.begin(), open_.end(), [&](const auto& other) {
      return other->range == block->range && other->state == State::kLive;
    });
    if (!is_used && Machine::get().resets(block->device) == block->range->resets)
      Machine::get().give_up_memory(block->range->pointer);
  }
  open_.clear();
}

std::shared_ptr<GraphBlock> find_graph_block(const void* pointer) {
  std::lock_guard<std::mutex> lock(blocks().mutex);
  const auto found = blocks().open.find(pointer);
  return found == blocks().open.end() ? nullptr : found->second;
}

bool reach_allocations(const std::vector<std::shared_ptr<GraphBlock>>& reached, bool frees_first) {
  if (reached.empty()) return true;
  std::lock_guard<std::mutex> lock(blocks().mutex);
  const auto is_live = [](const auto& block) { return block->state == State::kLive; };
  if (!frees_first && std::any_of(reached.begin(), reached.end(), is_live)) return false;
  for (const std::shared_ptr<GraphBlock>& block : reached) block->state = State::kLive;
  return true;
}

void reach_free(GraphBlock& block) {
  std::lock_guard<std::mutex> lock(blocks().mutex);
  block.state = State::kFreed;
}

// A block whose graph is gone goes with the registration.
FreedFromGraph free_of_graph(const void* pointer) {
  std::shared_ptr<GraphBlock> freed;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(blocks().mutex);
  const auto found = blocks().open.find(pointer);
  if (found == blocks().open.end()) return FreedFromGraph::kNoneOfGraphs;
  GraphBlock& block = *found->second;
  if (Machine::get().resets(block.device) != block.range->resets) {
    blocks().open.erase(found);
    return FreedFromGraph::kNoneOfGraphs;
  }
  if (block.state == State::kFreed) return FreedFromGraph::kFreedAlready;
  block.state = State::kFreed;
  if (block.has_graph) return FreedFromGraph::kFreed;
  freed = std::move(found->second);
  blocks().open.erase(found);
  return FreedFromGraph::kFreed;
}

}  // namespace memledger::virtual_gpu
