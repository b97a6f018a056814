#include "graph/graph_walk.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "registry/core/growing_map.h"

namespace memledger::graph_internal {
namespace {

using torch::autograd::Node;

class Walk final : public NodeContents {
 public:
  Walk(NodeReader& reader, SavedTensorsData& data, SavedAccount& account)
      : reader_(reader), data_(data), account_(account) {}

  // A graph is spread over memory, and most of the time would be spent waiting for it. So a node is
  // read kAhead nodes after it was opened; meanwhile what reading it needs is asked for, in steps,
  // each of which looks at what the one before has brought. The next node's edges are asked for
  // while the oldest node is read.
  void run(const std::vector<NodePtr>& roots) {
    visited_.reserve(kUsualNodes);
    for (auto root = roots.rbegin(); root != roots.rend(); ++root) push(*root);
    while (!stack_.empty() || opened_ != read_) {
      if (stack_.empty()) {
        read_oldest();
        continue;
      }
      const OpenNode& newest = open_next();
      if (opened_ - read_ > kAhead) read_oldest();
      follow(newest);
      __builtin_prefetch(edges_in_stack(0));
      __builtin_prefetch(edges_in_stack(kDeep / 2));
      look_ahead();
    }
  }

  // Nodes that hold nothing, though they may have. Valid while this walk lives.
  const std::vector<const NodePtr*>& empty_nodes() const { return empty_; }
  std::vector<TorchScriptNode> take_torchscript() { return std::move(torchscript_); }
  bool found_something() const { return found_something_; }

  // NodeContents:
  void tensor(const OpenNode& node, const char* slot, int slot_index, const at::Tensor& tensor,
              bool in_place_modified) override {
    found_something_ = true;
    const int edge = edge_of(**node.node, tensor);
    if (edge >= 0) measure_edge(node, static_cast<uint32_t>(edge), tensor);
    account_.add({node.index, static_cast<int16_t>(edge), slot, slot_index, in_place_modified},
                 tensor);
    // What came in by an edge is reached by it.
    if (edge < 0 || is_view(tensor))
      for_each_node_held_by(tensor, [&](const NodePtr& held) { held_node(node, held); });
  }

  void leaf(const OpenNode& node, const at::Tensor& leaf, const at::Tensor& gradient) override {
    account_.add_leaf(node.index, leaf, gradient);
  }

  void held_node(const OpenNode& node, const NodePtr& held) override {
    if (visited_.contains(held.get())) return;
    for (const auto& edge : (*node.node)->next_edges()) {
      if (edge.function == held) return;
    }
    kept_.push_back(held);
    push(kept_.back());
  }

  void unread(const OpenNode& node, UnreadReason reason, std::string detail) override {
    found_something_ = true;
    UnreadNode unread = unread_node(**node.node, reason, std::move(detail));
    if (reason == UnreadReason::kTorchScript) {
      torchscript_.push_back({node.index, std::move(unread)});
    } else {
      data_.unread.push_back(std::move(unread));
    }
  }

  void empty(const OpenNode& node) override { empty_.push_back(node.node); }

  void calling_out() override {
    for (size_t i = read_; i != opened_; ++i) {
      opened(i).node.lock = {};
      opened(i).tensor_count = 0;
    }
  }

 private:
  struct Found {
    const NodePtr* node = nullptr;
    uint32_t index = 0;
  };
  struct Opened {
    OpenNode node;
    size_t tensor_count = 0;  // of `tensors`, which are valid while the node is locked
    std::array<const at::Tensor*, 4> tensors;
  };
  static constexpr size_t kAhead = 16;        // nodes; 8 and 32 gain nothing
  static constexpr size_t kDeep = 8;          // nodes in the stack
  static constexpr size_t kUsualNodes = 800;  // for which the table need not grow

  Opened& opened(size_t number) { return ring_[number % ring_.size()]; }

  const OpenNode& open_next() {
    if (stack_.size() > kDeep) prefetch_edges(**stack_[stack_.size() - 1 - kDeep].node);
    Opened& next = opened(opened_++);
    next.tensor_count = 0;
    reader_.open(*stack_.back().node, stack_.back().index, next.node);
    stack_.pop_back();
    const Node& node = **next.node.node;
    const auto& edges = node.next_edges();
    for (size_t i = 0; i < std::min(edges.size(), kDeep); ++i) {
      if (!edges[i].function) continue;
      prefetch_edges(*edges[i].function);
      visited_.prefetch(edges[i].function.get());
    }
    prefetch_slots(node);
    return next.node;
  }

  // Returns where the edges are of the node so deep in the stack. (gcc 12 drops the call of a
  // function that only prefetches.)
  const void* edges_in_stack(size_t depth) const {
    return stack_.size() > depth ? (*stack_[stack_.size() - 1 - depth].node)->next_edges().data()
                                 : nullptr;
  }

  void look_ahead() {
    if (Opened* const node = opened_before(kAhead / 4)) {
      node->tensor_count = reader_.peek(node->node, absl::MakeSpan(node->tensors));
      for (size_t i = 0; i < node->tensor_count; ++i) prefetch_tensor(*node->tensors[i]);
    }
    if (const Opened* const node = opened_before(kAhead / 2)) {
      for (size_t i = 0; i < node->tensor_count; ++i) prefetch_storage(*node->tensors[i]);
    }
    if (const Opened* const node = opened_before(3 * kAhead / 4)) {
      for (size_t i = 0; i < node->tensor_count; ++i) account_.prefetch(*node->tensors[i]);
    }
  }

  // Returns the node that was opened `count` nodes ago; null if it has been read.
  Opened* opened_before(size_t count) {
    return opened_ - read_ >= count ? &opened(opened_ - count) : nullptr;
  }

  void read_oldest() {
    OpenNode& oldest = opened(read_++).node;
    reader_.read(oldest, *this);
    oldest.lock = {};
    measure_edges(oldest);
  }

  // Returns the index of a node, which it gets when it is first met.
  uint32_t push(const NodePtr& node) {
    const auto [entry, is_new] =
        visited_.try_emplace(node.get(), static_cast<uint32_t>(data_.nodes.size()));
    if (is_new) {
      make_room(data_.nodes);
      data_.nodes.emplace_back();
      stack_.push_back({&node, entry->second});
    }
    return entry->second;
  }

  void follow(const OpenNode& newest) {
    const Node& node = **newest.node;
    // The type was numbered when the node was opened, just now.
    const uint32_t name = NodeReader::number_of(*newest.type);
    if (name == data_.names.size()) data_.names.push_back(node.name());
    const auto& edges = node.next_edges();
    const auto begin = static_cast<uint32_t>(data_.edges.size());
    make_room(data_.edges, edges.size());
    data_.edges.resize(begin + edges.size());
    CompactNode& compact = data_.nodes[newest.index];
    compact.sequence_number = node.sequence_nr();
    compact.forward_thread = node.thread_id();
    compact.name = name;
    compact.edges_begin = begin;
    compact.edge_count = static_cast<uint32_t>(edges.size());
    for (size_t i = edges.size(); i-- > 0;) {
      if (!edges[i].function) continue;
      CompactEdge& edge = data_.edges[begin + i];
      const bool as_before =
          i + 1 < edges.size() && edges[i].function == edges[i + 1].function;  // x * x
      edge.node = as_before ? data_.edges[begin + i + 1].node : push(edges[i].function);
      edge.output_number = edges[i].input_nr;
      edge.bytes = CompactEdge::kNotMeasured;
    }
  }

  // By the saved tensor that came in by the edge.
  void measure_edge(const OpenNode& node, uint32_t edge, const at::Tensor& tensor) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (impl->layout() != c10::kStrided || impl->is_nested() || impl->has_symbolic_sizes_strides())
      return;
    data_.edges[data_.nodes[node.index].edges_begin + edge].bytes =
        impl->numel() * static_cast<int64_t>(impl->itemsize());
  }

  // Asks the producers for the sizes of tensors that came in and were not saved.
  void measure_edges(const OpenNode& node) {
    const CompactNode& compact = data_.nodes[node.index];
    const auto& edges = (*node.node)->next_edges();
    for (uint32_t i = 0; i < compact.edge_count; ++i) {
      CompactEdge& edge = data_.edges[compact.edges_begin + i];
      if (edge.bytes == CompactEdge::kNotMeasured && edges[i].function)
        edge.bytes = bytes_along(edges[i]);
    }
  }

  NodeReader& reader_;
  SavedTensorsData& data_;
  SavedAccount& account_;
  core::GrowingMap<const Node*, uint32_t> visited_;  // their indices in data_.nodes
  std::vector<Found> stack_;
  std::deque<NodePtr> kept_;
  std::array<Opened, 2 * kAhead> ring_;
  size_t opened_ = 0, read_ = 0;  // how many nodes
  std::vector<const NodePtr*> empty_;
  std::vector<TorchScriptNode> torchscript_;
  bool found_something_ = false;
};

// Notes the nodes that backward() has freed. Returns whether there are any; where the graph holds
// nothing else the first one is answer enough, and is not noted.
bool note_released(NodeReader& reader, const Walk& walk, SavedTensorsData& data) {
  bool found_released = false;
  for (const NodePtr* node : walk.empty_nodes()) {
    if (!reader.is_released(*node)) continue;
    found_released = true;
    if (!walk.found_something()) break;
    data.unread.push_back(
        unread_node(**node, UnreadReason::kReleased, "backward has freed what it had saved"));
  }
  return found_released;
}

}  // namespace

WalkedGraph walk_graph(const std::vector<NodePtr>& roots, SavedTensorsData& data,
                       SavedAccount& account) {
  NodeReader reader(*data.own_slots);
  Walk walk(reader, data, account);
  walk.run(roots);
  WalkedGraph graph;
  graph.found_something = walk.found_something();
  graph.found_released = note_released(reader, walk, data);
  graph.torchscript = walk.take_torchscript();
  return graph;
}

}  // namespace memledger::graph_internal
