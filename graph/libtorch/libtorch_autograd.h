// What memledger needs from LibTorch's autograd, and all of it that changes
// between LibTorch's versions: how a node is held, and how one node is read.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "absl/types/span.h"
#include "graph/libtorch/saved_slots.h"

namespace memledger::graph_internal {

// shared_ptr up to LibTorch 2.12, intrusive_ptr from 2.13.
using NodePtr = std::decay_t<decltype(torch::autograd::Edge().function)>;

// Receives what one node holds. Tensors are passed by reference and gone, as
// far as the reader is concerned, when the call returns.
class NodeContents {
 public:
  virtual ~NodeContents() = default;
  // `slot` is a string literal or comes from keep(); `index` the place in a list, or -1.
  virtual void tensor(const char* slot, int index, const at::Tensor& tensor,
                      bool in_place_modified) = 0;
  // A name for tensor() that is no literal, as long-lived as the contents.
  virtual const char* keep(std::string name) = 0;
  // A node that is kept alive otherwise than by an edge.
  virtual void held_node(const NodePtr& node) = 0;
  // The program's own code runs next, in which no lock must be held but the node's.
  virtual void calling_out() = 0;
  // Held through hooks that do not say what they made of it (CountedHooks do).
  virtual void packed(const char* slot, int index) = 0;
  // Nothing is saved where something may have been: ask is_released().
  virtual void empty() = 0;
  // A node that adds up the gradient of this leaf, which may be undefined yet.
  virtual void leaf(const at::Tensor& leaf, const at::Tensor& gradient) = 0;
  virtual void unknown_type(const char* why) = 0;
  // What a TorchScript node holds is closed to us.
  virtual void torchscript() = 0;
  // backward() is at work on this very node, in another thread or further up.
  virtual void busy() = 0;
  virtual void failed(const std::string& why) = 0;
};

// Reads nodes; keeps what it learns about types, nothing else. No unpack hook is run. A node is
// read under its own lock, which backward() holds while it uses or frees what the node saved, and
// which is only ever tried. Not thread-safe: one reader per walk.
class NodeReader {
 public:
  struct Type;

  // A node between open() and the end of read(), which leaves it locked or not: the caller unlocks.
  struct Reading {
    const NodePtr* node = nullptr;
    const Type* type = nullptr;
    std::unique_lock<std::mutex> lock;
  };

  NodeReader();
  ~NodeReader();
  NodeReader(const NodeReader&) = delete;
  NodeReader& operator=(const NodeReader&) = delete;

  void open(const NodePtr& node, Reading& reading);

  // For those who prefetch: locks the node, and shows the first tensors in its slots, which stay
  // there while it is locked. How many; none where the node is in use.
  size_t peek(Reading& reading, absl::Span<const at::Tensor*> tensors);

  // Whether or not it was peeked at.
  void read(Reading& reading, NodeContents& contents);

  // Types are numbered from 0 on, as they are opened.
  static uint32_t number_of(const Type& type);

  // True where backward has freed what the node had saved. Slow, some 20 us,
  // where the answer is yes.
  bool is_released(const NodePtr& node);

 private:
  class SlotReader;

  const Type& type_of(const torch::autograd::Node& node);

  std::unordered_map<const std::type_info*, std::unique_ptr<Type>> types_;
  std::array<std::pair<const std::type_info*, const Type*>, 64> latest_types_ =
      {};  // by their addresses
  std::unique_ptr<SlotReader> slot_reader_;
};

// What is not in the cache takes half as long to come as a node takes to be read. These ask for it
// ahead; they look at nothing but what their argument itself holds.
void prefetch_edges(
    const torch::autograd::Node& node);  // where they are, and what else the node is known by
void prefetch_slots(const torch::autograd::Node& node);
void prefetch_tensor(const at::Tensor& tensor);
void prefetch_storage(const at::Tensor& tensor);  // and its place in the graph

// The node that computed the tensor, null for a leaf. A view whose base was
// written to gets its node renewed by LibTorch here, as backward() would do.
NodePtr grad_fn_of(const at::Tensor& tensor);

// A leaf's gradient, where it has one that no backward() is just now writing and
// that the calling thread may know of (registry/hooks/training_notes.h).
void with_gradient_of(const at::Tensor& leaf,
                      const std::function<void(const at::Tensor&)>& callback);

// Bytes of the tensor that flowed along this edge in the forward pass; -1 where
// the node on the other end does not know.
int64_t bytes_along(const torch::autograd::Edge& edge);

// The place among the node's first 1024 edges that the tensor came in by; -1 for
// leaves that need no gradient, and for what the node itself has made.
int edge_of(const torch::autograd::Node& node, const at::Tensor& tensor);

// The nodes that a tensor keeps alive: its own as it stands now (never
// renewed) and, for a view, its base's.
template <typename Callback>
void for_each_node_held_by(const at::Tensor& tensor, Callback callback);

}  // namespace memledger::graph_internal

#include <torch/csrc/autograd/variable.h>

namespace memledger::graph_internal {

// torch::autograd::impl::get_autograd_meta(), which is asked for every saved tensor, without the
// call. Null for what needs no gradient.
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
