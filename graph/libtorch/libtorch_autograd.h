// What memledger needs from LibTorch's autograd, and all of it that changes between LibTorch's
// versions: how a node is held, and how one node is read.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "absl/types/span.h"
#include "graph/libtorch/saved_slots.h"
#include "graph/saved_tensors.h"

namespace memledger::graph_internal {

// shared_ptr up to LibTorch 2.12, intrusive_ptr from 2.13.
using NodePtr = std::decay_t<decltype(torch::autograd::Edge().function)>;

struct NodeType;

// A node between NodeReader::open() and the end of read(), which may leave it locked: the caller
// unlocks.
struct OpenNode {
  const NodePtr* node = nullptr;
  uint32_t index = 0;  // the caller's number of the node
  const NodeType* type = nullptr;
  std::unique_lock<std::mutex> lock;
};

// Names of slots that are no literals of the generated code. Strings stay where they are.
using OwnSlots = std::set<std::string>;

// Receives what a node holds. Tensors are passed by reference, and the reader forgets them when the
// call returns.
class NodeContents {
 public:
  virtual ~NodeContents() = default;
  // `slot` is a literal or in the reader's OwnSlots; `slot_index` is the place in a list, or -1.
  virtual void tensor(const OpenNode& node, const char* slot, int slot_index,
                      const at::Tensor& tensor, bool in_place_modified) = 0;
  // A node that adds up the gradient of this leaf, which may be undefined yet.
  virtual void leaf(const OpenNode& node, const at::Tensor& leaf, const at::Tensor& gradient) = 0;
  // `held` is kept alive by the node otherwise than by an edge.
  virtual void held_node(const OpenNode& node, const NodePtr& held) = 0;
  // All that the node holds, or some of it, cannot be read.
  virtual void unread(const OpenNode& node, UnreadReason reason, std::string detail) = 0;
  // Nothing is saved where something may have been: ask is_released().
  virtual void empty(const OpenNode& node) = 0;
  // The program's own code runs next, during which only the node being read may be locked.
  virtual void calling_out() = 0;
};

// Reads nodes; keeps what it learns about types, nothing else. Runs no unpack hook. Reads a node
// under the node's own lock, which backward() holds while it uses or frees what the node saved, and
// which is only ever tried. Not thread-safe: one reader per walk.
class NodeReader {
 public:
  explicit NodeReader(OwnSlots& own_slots);
  ~NodeReader();
  NodeReader(const NodeReader&) = delete;
  NodeReader& operator=(const NodeReader&) = delete;

  void open(const NodePtr& node, uint32_t index, OpenNode& open_node);

  // For prefetching: locks the node, and returns how many of the first tensors in its slots it has
  // put into `tensors`. They stay there while the node is locked. 0 where the node is in use.
  size_t peek(OpenNode& open_node, absl::Span<const at::Tensor*> tensors);

  // Whether or not peek() was called before.
  void read(OpenNode& open_node, NodeContents& contents);

  // Types are numbered from 0 on, as they are opened.
  static uint32_t number_of(const NodeType& type);

  // True where backward() has freed what the node had saved. Takes some 20 us where it has.
  bool is_released(const NodePtr& node);

 private:
  class SlotReader;

  const NodeType& type_of(const torch::autograd::Node& node);

  std::unordered_map<const std::type_info*, std::unique_ptr<NodeType>> types_;
  // By their addresses.
  std::array<std::pair<const std::type_info*, const NodeType*>, 64> latest_types_ = {};
  std::unique_ptr<SlotReader> slot_reader_;
};

// Returns what unread_nodes() says of a node.
UnreadNode unread_node(const torch::autograd::Node& node, UnreadReason reason, std::string detail);

// A cache miss takes half as long as reading a node. These ask for what the next step will need;
// they look at nothing but their argument itself.
//
// Where the edges are, and what else the node is known by.
void prefetch_edges(const torch::autograd::Node& node);
void prefetch_slots(const torch::autograd::Node& node);
void prefetch_tensor(const at::Tensor& tensor);
// The storage, and the tensor's place in the graph.
void prefetch_storage(const at::Tensor& tensor);

// Returns the node that computed the tensor, null for a leaf. LibTorch renews the node of a view
// whose base was written to, as it would for backward().
NodePtr grad_fn_of(const at::Tensor& tensor);

// Calls back with a leaf's gradient, unless it has none, a backward() is just now writing it, or
// the calling thread may not know of it (registry/hooks/training_notes.h).
void with_gradient_of(const at::Tensor& leaf,
                      const std::function<void(const at::Tensor&)>& callback);

// Returns the bytes of the tensor that flowed along this edge in the forward pass; -1 where the
// node on the other end does not know.
int64_t bytes_along(const torch::autograd::Edge& edge);

// Returns the place among the node's first 1024 edges that the tensor came in by; -1 for leaves
// that need no gradient, and for what the node itself has made.
int edge_of(const torch::autograd::Node& node, const at::Tensor& tensor);

// Calls back with the nodes that a tensor keeps alive: its own as it stands now (never renewed)
// and, for a view, its base's.
template <typename Callback>
void for_each_node_held_by(const at::Tensor& tensor, Callback callback);

}  // namespace memledger::graph_internal

#include <torch/csrc/autograd/variable.h>

namespace memledger::graph_internal {

// torch::autograd::impl::get_autograd_meta() without the call, as every saved tensor is asked. Null
// for what needs no gradient.
inline const torch::autograd::AutogradMeta* autograd_meta_of(const at::Tensor& tensor) {
  return static_cast<const torch::autograd::AutogradMeta*>(
      tensor.unsafeGetTensorImpl()->autograd_meta());
}

inline bool is_view(const at::Tensor& tensor) {
  const torch::autograd::AutogradMeta* meta = autograd_meta_of(tensor);
  return meta != nullptr && meta->is_view_;
}

template <typename Callback>
void for_each_node_held_by(const at::Tensor& tensor, Callback callback) {
  namespace impl = torch::autograd::impl;
  const torch::autograd::AutogradMeta* meta = autograd_meta_of(tensor);
  if (meta == nullptr) return;
  if (meta->grad_fn_) callback(meta->grad_fn_);
  if (!meta->is_view_) return;
  const auto* view = impl::get_view_autograd_meta(tensor);
  if (view == nullptr || !view->has_bw_view()) return;
  const at::Tensor& base = view->get_backward_view().base_;
  const auto* base_meta = impl::get_autograd_meta(base);
  if (base_meta != nullptr && base_meta->grad_fn_) {
    callback(base_meta->grad_fn_);
  }
}

}  // namespace memledger::graph_internal
