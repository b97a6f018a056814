#include "graph/libtorch/libtorch_autograd.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph/counted_hooks.h"
#include "registry/hooks/training_notes.h"

namespace memledger::graph_internal {
struct ContextAccess;
}

// AutogradContext befriends every CppNode<T>, so this specialisation, which is no node, may read
// its private members.
template <>
struct torch::autograd::CppNode<memledger::graph_internal::ContextAccess> {
  static const std::vector<SavedVariable>& saved_variables(const AutogradContext& context) {
    return context.saved_variables_;
  }
  static bool has_freed_buffers(const AutogradContext& context) {
    return context.has_freed_buffers_;
  }
  static bool belongs_to(const AutogradContext& context, const Node& node) {
    return context.grad_fn_.lock().get() == &node;
  }
};

namespace memledger::graph_internal {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;

// SavedVariable returns its tensor only as a copy, and its hooks not at all; but an explicit
// instantiation may name private members.
template <auto Data, auto Hooks, auto SavedVersion>
struct SavedVariableMembers {
  friend const at::Tensor& data_of(const SavedVariable& slot) { return slot.*Data; }
  friend const torch::autograd::SavedVariableHooks* hooks_of(const SavedVariable& slot) {
    return (slot.*Hooks).get();
  }
  friend uint32_t saved_version_of(const SavedVariable& slot) { return slot.*SavedVersion; }
};
const at::Tensor& data_of(const SavedVariable& slot);
const torch::autograd::SavedVariableHooks* hooks_of(const SavedVariable& slot);
uint32_t saved_version_of(const SavedVariable& slot);
template struct SavedVariableMembers<&SavedVariable::data_, &SavedVariable::hooks_,
                                     &SavedVariable::saved_version_>;

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

const char* kept(OwnSlots& own_slots, std::string name) {
  return own_slots.insert(std::move(name)).first->c_str();
}

// A slot that backward() has cleared looks like one that never held anything. Only unpack() tells
// them apart; without data and hook it runs nothing and makes nothing.
bool slot_is_released(const SavedVariable& slot) {
  if (slot.has_hooks()) return false;
  try {
    slot.unpack();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// Only for nodes all of whose slots are empty.
class ReleaseFinder final : public SavedSlotVisitor {
 public:
  void one(const char* /*name*/, const SavedVariable& slot) override {
    found = found || slot_is_released(slot);
  }
  void list(const char* /*name*/, const std::vector<SavedVariable>& slots, bool released) override {
    found = found || released;
    for (const SavedVariable& slot : slots) {
      found = found || slot_is_released(slot);
    }
  }
  bool found = false;
};

// True where the tensor was written to after it was saved, so that backward() would refuse it.
bool is_modified(const SavedVariable& slot, const at::Tensor& data, const NodePtr& node) {
  namespace impl = torch::autograd::impl;
  c10::TensorImpl* tensor = data.unsafeGetTensorImpl();
  if (tensor->is_inference()) return false;
  const c10::VariableVersion& counter = tensor->version_counter();
  if (!counter.enabled()) return false;
  const uint32_t version = counter.current_version();
  if (version == saved_version_of(slot)) return false;
  const auto* view = impl::get_view_autograd_meta(data);
  if (view != nullptr && view->has_bw_view() && view->get_attr_version() != version &&
      (view->grad_fn_ || view->get_backward_view().base_.requires_grad())) {
    // unpack() would renew the view's node here. A view's node is up to date
    // when it is saved, so the write came later.
    return true;
  }
  try {
    slot.unpack(node);
  } catch (const c10::Error& error) {
    return std::string_view(error.what_without_backtrace())
               .find("modified by an inplace operation") != std::string_view::npos;
  }
  return false;
}

using Context = torch::autograd::AutogradContext;
using ContextAccessor = torch::autograd::CppNode<ContextAccess>;

// Stands for any Function, as their nodes all keep the context at the same offset.
struct SomeFunction : torch::autograd::Function<SomeFunction> {
  static torch::autograd::variable_list forward(Context*, torch::autograd::variable_list inputs) {
    return inputs;
  }
  static torch::autograd::variable_list backward(Context*, torch::autograd::variable_list grads) {
    return grads;
  }
};

// Returns null where the node's layout is not that of LibTorch's headers.
const Context* context_of(const Node& node) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kOffset = offsetof(torch::autograd::CppNode<SomeFunction>, ctx_);
#pragma GCC diagnostic pop
  const auto* context =
      reinterpret_cast<const Context*>(reinterpret_cast<const char*>(&node) + kOffset);
  return ContextAccessor::belongs_to(*context, node) ? context : nullptr;
}

// Reads the tensors in one entry of saved_data, however deep in lists, tuples, dictionaries and
// objects. Their slots are `saved_data.key`, with `#i` for each level.
class SavedDataReader {
 public:
  SavedDataReader(const OpenNode& node, OwnSlots& own_slots, NodeContents& contents)
      : node_(node), own_slots_(own_slots), contents_(contents) {}

  void read(const std::string& key, const c10::IValue& value) {
    todo_.emplace_back("saved_data." + key, value);
    while (!todo_.empty()) {
      const auto [name, next] = std::move(todo_.back());
      todo_.pop_back();
      look_at(name, next);
    }
  }

 private:
  void look_at(const std::string& name, const c10::IValue& value) {
    if (value.isTensor()) {
      if (value.toTensor().defined())
        contents_.tensor(node_, kept(own_slots_, name), -1, value.toTensor(), false);
    } else if (value.isList()) {
      push_all(name, value.toListRef());
    } else if (value.isTuple()) {
      push_all(name, value.toTupleRef().elements());
    } else if (value.isGenericDict()) {
      size_t i = 0;
      for (const auto& entry : value.toGenericDict()) {
        const std::string entry_name = name + "#" + std::to_string(i++);
        todo_.emplace_back(entry_name, entry.value());
        todo_.emplace_back(entry_name + ".key", entry.key());
      }
    } else if (value.isObject()) {
      const c10::ivalue::Object& object = value.toObjectRef();
      if (seen_.insert(&object).second) push_all(name, object.slots());
    } else if (value.isStorage() || value.isCapsule() || value.isFuture() || value.isPyObject() ||
               value.isRRef() || value.isAwait()) {
      contents_.unread(node_, UnreadReason::kFailed,
                       name + " is a " + value.tagKind() + ", which may hold tensors");
    }
  }

  template <typename Values>
  void push_all(const std::string& name, const Values& values) {
    for (size_t i = values.size(); i-- > 0;)
      todo_.emplace_back(name + "#" + std::to_string(i), values[i]);
  }

  const OpenNode& node_;
  OwnSlots& own_slots_;
  NodeContents& contents_;
  std::vector<std::pair<std::string, c10::IValue>> todo_;
  std::unordered_set<const void*> seen_;  // objects may hold each other
};

void read_saved_data(const OpenNode& node, const Context& context, OwnSlots& own_slots,
                     NodeContents& contents) {
  std::vector<const std::string*> keys;
  for (const auto& entry : context.saved_data) keys.push_back(&entry.first);
  std::sort(keys.begin(), keys.end(),
            [](const std::string* a, const std::string* b) { return *a < *b; });
  SavedDataReader reader(node, own_slots, contents);
  for (const std::string* key : keys) reader.read(*key, context.saved_data.at(*key));
}

// backward() holds this lock while it runs the node and while it frees what the node saved.
struct NodeLock : Node {
  static std::mutex& of(const Node& node) { return const_cast<Node&>(node).*(&NodeLock::mutex_); }
};

// Whether all hooks of C++ that a tensor had were removed: the list of them stays, and a place in
// it.
bool is_emptied(const torch::autograd::FunctionPreHook& hooks) {
  // LibTorch does not export its type.
  if (c10::demangle(typeid(hooks).name()) != "torch::autograd::CppFunctionTensorPreHook")
    return false;
  const auto& list = static_cast<const torch::autograd::CppFunctionTensorPreHook&>(hooks).hooks_;
  return std::none_of(list->begin(), list->end(),
                      [](const auto& hook) { return static_cast<bool>(hook); });
}

// LibTorch's own, for retain_grad(), are apart, and hold nothing. The node's lock guards no hooks.
bool has_hooks(Node& node) {
  const auto& of_tensors = node.tensor_pre_hooks();
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !std::all_of(of_tensors.begin(), of_tensors.end(),
                      [](const auto& hooks) { return is_emptied(*hooks); });
}

void read_copy_slices(const OpenNode& node, NodeContents& contents) {
  const auto& slices = static_cast<const torch::autograd::CopySlices&>(**node.node);
  if (!slices.fn) {
    contents.empty(node);
    return;
  }
  contents.held_node(node, slices.fn);
  if (slices.view_fn == nullptr || slices.view_fn->num_tensors() == 0) return;
  int index = 0;
  for (const at::Tensor& tensor : slices.view_fn->get_tensors()) {
    contents.tensor(node, "view_fn", index++, tensor, false);
  }
}

// A tensor that several slots of a node hold counts once.
class FirstTensors final : public SavedSlotVisitor {
 public:
  explicit FirstTensors(absl::Span<const at::Tensor*> room) : room_(room) {}
  size_t count() const { return count_; }

  void one(const char* /*name*/, const SavedVariable& slot) override { add(data_of(slot)); }
  void list(const char* /*name*/, const std::vector<SavedVariable>& slots,
            bool /*released*/) override {
    for (const SavedVariable& slot : slots) add(data_of(slot));
  }

 private:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || count_ == room_.size() ||
        (count_ > 0 && room_[count_ - 1]->is_same(tensor)))
      return;
    room_[count_++] = &tensor;
  }

  const absl::Span<const at::Tensor*> room_;
  size_t count_ = 0;
};

// Asks for the bytes [first, last) of an object.
void prefetch_bytes(const void* object, size_t first, size_t last) {
  constexpr uintptr_t kLine = 64;
  const auto address = reinterpret_cast<uintptr_t>(object);
  for (uintptr_t line = (address + first) / kLine * kLine; line < address + last; line += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}

}  // namespace

struct NodeType {
  enum class Kind {
    kGenerated,
    kSavesNothing,
    kCopySlices,
    kCustomFunction,
    kLeaf,
    kTorchScript,
    kUnknown,
  };
  Kind kind;
  VisitFunction visit;
  const char* why_unknown;
  uint32_t number = 0;

  bool has_slots() const { return kind == Kind::kGenerated && visit != &visit_nothing; }
  bool saves_nothing() const { return kind == Kind::kSavesNothing || visit == &visit_nothing; }
};

class NodeReader::SlotReader final : public SavedSlotVisitor {
 public:
  explicit SlotReader(OwnSlots& own_slots) : own_slots_(own_slots) {}

  void read(const OpenNode& node, NodeContents& contents) {
    begin(node, contents);
    node.type->visit(**node.node, *this);
    if (has_empty_ && !holds_something_) contents.empty(node);
    tell_packed();
  }

  void read_custom_function(const OpenNode& node, NodeContents& contents) {
    const Context* context = context_of(**node.node);
    if (context == nullptr) {
      contents.unread(node, UnreadReason::kFailed, "its layout is not that of LibTorch's headers");
      return;
    }
    begin(node, contents);
    list("saved", ContextAccessor::saved_variables(*context), false);
    read_saved_data(node, *context, own_slots_, contents);
    if (ContextAccessor::has_freed_buffers(*context)) contents.empty(node);
    tell_packed();
  }

  void one(const char* name, const SavedVariable& slot) override { read_slot(name, -1, slot); }

  void list(const char* name, const std::vector<SavedVariable>& slots, bool released) override {
    if (released) has_empty_ = true;
    int index = 0;
    for (const SavedVariable& slot : slots) read_slot(name, index++, slot);
  }

 private:
  void begin(const OpenNode& node, NodeContents& contents) {
    node_ = &node;
    contents_ = &contents;
    packed_slots_.clear();
    holds_something_ = false;
    has_empty_ = false;
  }

  void read_slot(const char* name, int index, const SavedVariable& slot) {
    if (const auto* hooks = hooks_of(slot)) {
      holds_something_ = true;
      read_hooks(name, index, *hooks);
    } else if (const at::Tensor& data = data_of(slot); data.defined()) {
      holds_something_ = true;
      contents_->tensor(*node_, name, index, data, is_modified(slot, data, *node_->node));
    } else {
      has_empty_ = true;
    }
  }

  void read_hooks(const char* name, int index, const torch::autograd::SavedVariableHooks& hooks) {
    const auto* counted = dynamic_cast<const CountedHooks*>(&hooks);
    if (counted == nullptr) {
      add_packed(name, index);
      return;
    }
    const char* slot = kept(own_slots_, std::string(name) + ".packed");
    std::vector<at::Tensor> tensors;
    contents_->calling_out();
    try {
      tensors = counted->packed_tensors();
    } catch (...) {  // the program's code failed: what the hooks hold is not known
      add_packed(name, index);
      return;
    }
    for (const at::Tensor& tensor : tensors) contents_->tensor(*node_, slot, index, tensor, false);
  }

  void add_packed(const char* name, int index) {
    if (!packed_slots_.empty()) packed_slots_ += ", ";
    packed_slots_ += name;
    if (index >= 0) packed_slots_ += "#" + std::to_string(index);
  }

  void tell_packed() {
    if (!packed_slots_.empty()) contents_->unread(*node_, UnreadReason::kPacked, packed_slots_);
  }

  OwnSlots& own_slots_;
  // The node being read: the generated code calls one() and list() without naming it.
  const OpenNode* node_ = nullptr;
  NodeContents* contents_ = nullptr;
  std::string packed_slots_;
  bool holds_something_ = false;
  bool has_empty_ = false;
};

NodeReader::NodeReader(OwnSlots& own_slots)
    : slot_reader_(std::make_unique<SlotReader>(own_slots)) {}
NodeReader::~NodeReader() = default;

namespace {

NodeType classify(const std::type_info& type) {
  namespace ag = torch::autograd;
  using Kind = NodeType::Kind;
  if (VisitFunction visit = find_visit_function(type)) {
    return {Kind::kGenerated, visit, nullptr};
  }
  if (type == typeid(ag::CopySlices)) {
    return {Kind::kCopySlices, nullptr, nullptr};
  }
  // AccumulateGrad refers to the leaf whose gradient it adds up, which is not saved.
  if (type == typeid(ag::AccumulateGrad)) {
    return {Kind::kLeaf, nullptr, nullptr};
  }
  for (const std::type_info* known :
       {&typeid(ag::CopyBackwards), &typeid(ag::Error), &typeid(ag::NotImplemented),
        &typeid(ag::DelayedError), &typeid(ag::UndefinedGrad), &typeid(ag::UndefinedGradBackward),
        &typeid(ag::Identity)}) {
    if (type == *known) return {Kind::kSavesNothing, nullptr, nullptr};
  }
  const std::string name = c10::demangle(type.name());
  if (starts_with(name, "torch::autograd::CppNode<")) {
    return {Kind::kCustomFunction, nullptr, nullptr};
  }
  if (name == "torch::autograd::Scatter" || name == "torch::autograd::Gather") {
    return {Kind::kSavesNothing, nullptr, nullptr};
  }
  if (starts_with(name, "torch::jit::")) {
    return {Kind::kTorchScript, nullptr, nullptr};
  }
  if (name == "torch::autograd::PyNode") {
    return {Kind::kUnknown, nullptr, "a Function written in Python"};
  }
  return {Kind::kUnknown, nullptr, "a node type that LibTorch does not declare"};
}

}  // namespace

const NodeType& NodeReader::type_of(const Node& node) {
  const std::type_info& type = typeid(node);
  auto& latest = latest_types_[(reinterpret_cast<uintptr_t>(&type) >> 4) % latest_types_.size()];
  if (latest.first != &type) {
    std::unique_ptr<NodeType>& known = types_[&type];
    if (known == nullptr) {
      known = std::make_unique<NodeType>(classify(type));
      known->number = static_cast<uint32_t>(types_.size()) - 1;
    }
    latest = {&type, known.get()};
  }
  return *latest.second;
}

uint32_t NodeReader::number_of(const NodeType& type) { return type.number; }

void NodeReader::open(const NodePtr& node, uint32_t index, OpenNode& open_node) {
  open_node.node = &node;
  open_node.index = index;
  open_node.type = &type_of(*node);
}

size_t NodeReader::peek(OpenNode& open_node, absl::Span<const at::Tensor*> tensors) {
  if (!open_node.type->has_slots()) return 0;
  const Node& node = **open_node.node;
  open_node.lock = std::unique_lock<std::mutex>(NodeLock::of(node), std::try_to_lock);
  if (!open_node.lock.owns_lock()) return 0;
  FirstTensors first(tensors);
  open_node.type->visit(node, first);
  return first.count();
}

bool NodeReader::is_released(const NodePtr& node) {
  using Kind = NodeType::Kind;
  const NodeType& type = type_of(*node);
  if (type.kind == Kind::kCopySlices) {
    return !static_cast<const torch::autograd::CopySlices&>(*node).fn;
  }
  if (type.kind == Kind::kCustomFunction) {
    const Context* context = context_of(*node);
    return context != nullptr && ContextAccessor::has_freed_buffers(*context);
  }
  if (type.kind != Kind::kGenerated) return false;
  ReleaseFinder finder;
  type.visit(*node, finder);
  return finder.found;
}

void NodeReader::read(OpenNode& open_node, NodeContents& contents) {
  using Kind = NodeType::Kind;
  const NodeType& type = *open_node.type;
  // Those of a leaf are the leaf's, not the graph's.
  if (type.kind != Kind::kLeaf && has_hooks(**open_node.node))
    contents.unread(open_node, UnreadReason::kHooks, "they may hold tensors");
  if (type.saves_nothing()) return;
  if (!open_node.lock.owns_lock())
    open_node.lock = std::unique_lock<std::mutex>(NodeLock::of(**open_node.node), std::try_to_lock);
  if (!open_node.lock.owns_lock()) {
    if (type.kind != Kind::kLeaf)
      contents.unread(open_node, UnreadReason::kBusy, "backward() is running on it");
    return;
  }
  switch (type.kind) {
    case Kind::kGenerated:
      slot_reader_->read(open_node, contents);
      break;
    case Kind::kSavesNothing:
      break;
    case Kind::kCopySlices:
      read_copy_slices(open_node, contents);
      break;
    case Kind::kCustomFunction:
      slot_reader_->read_custom_function(open_node, contents);
      break;
    case Kind::kLeaf: {
      const at::Tensor& leaf =
          static_cast<const torch::autograd::AccumulateGrad&>(**open_node.node).variable;
      contents.leaf(open_node, leaf, gradient_of(leaf));
      break;
    }
    case Kind::kTorchScript:
      contents.unread(open_node, UnreadReason::kTorchScript, "");
      break;
    case Kind::kUnknown:
      contents.unread(open_node, UnreadReason::kUnknownType, type.why_unknown);
      break;
  }
}

UnreadNode unread_node(const Node& node, UnreadReason reason, std::string detail) {
  return {node.name(), node.sequence_nr(), node.thread_id(), reason, std::move(detail)};
}

// The numbers are offsets in LibTorch 2.11 on x86-64. Where they differ, prefetching only gains
// less.

void prefetch_edges(const Node& node) { prefetch_bytes(&node, 0, 112); }  // up to next_edges_

void prefetch_slots(const Node& node) {
  // input_metadata_ is the last member of Node, and the slots of its heirs come next.
  prefetch_bytes(&node, sizeof(Node) - 208, sizeof(Node) + 2 * sizeof(SavedVariable));
}

void prefetch_tensor(const at::Tensor& tensor) {
  prefetch_bytes(tensor.unsafeGetTensorImpl(), 16, sizeof(c10::TensorImpl));  // from storage_ on
}

void prefetch_storage(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (const auto* meta = autograd_meta_of(tensor))
    prefetch_bytes(meta, 48, 152);  // grad_fn_ to output_nr_
  if (const auto* storage = impl->unsafe_storage().unsafeGetStorageImpl())
    prefetch_bytes(storage, 16, 64);
  const void* counter = nullptr;  // VariableVersion's only member, a private pointer
  static_assert(sizeof(c10::VariableVersion) == sizeof(counter));
  std::memcpy(&counter, &impl->version_counter(), sizeof(counter));
  __builtin_prefetch(counter);
}

NodePtr grad_fn_of(const at::Tensor& tensor) { return tensor.grad_fn(); }

void with_gradient_of(const at::Tensor& leaf,
                      const std::function<void(const at::Tensor&)>& callback) {
  // Another thread's training is known by its notes only: its leaves' accumulators must not be
  // asked for.
  std::unique_lock<std::mutex> lock;
  if (const LiveRead live; live) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
    if (accumulator) {
      lock = std::unique_lock<std::mutex>(NodeLock::of(*accumulator), std::try_to_lock);
      if (!lock.owns_lock()) return;
    }
  }
  if (const at::Tensor gradient = gradient_of(leaf); gradient.defined()) callback(gradient);
}

int64_t bytes_along(const torch::autograd::Edge& edge) {
  const Node& node = *edge.function;
  if (edge.input_nr >= node.num_inputs()) return -1;
  const auto& metadata = node.input_metadata(edge.input_nr);
  if (metadata.was_default_constructed() || metadata.is_nested_tensor()) return -1;
  int64_t bytes = static_cast<int64_t>(metadata.dtype().itemsize());
  for (const c10::SymInt& size : metadata.shape_as_dim_vector()) {
    const auto known = size.maybe_as_int();
    if (!known) return -1;
    bytes *= *known;
  }
  return bytes;
}

int edge_of(const Node& node, const at::Tensor& tensor) {
  const torch::autograd::AutogradMeta* meta = autograd_meta_of(tensor);
  if (meta == nullptr) return -1;
  // The caller keeps the result in 16 bits, and a node with thousands of edges that saves all its
  // inputs must not cost their square.
  constexpr size_t kMost = 1024;
  const auto& edges = node.next_edges();
  for (size_t i = 0; i < std::min(edges.size(), kMost); ++i) {
    const Node* producer = edges[i].function.get();
    if (producer == nullptr) continue;
    if (meta->grad_fn_
            ? producer == meta->grad_fn_.get() && edges[i].input_nr == meta->output_nr_
            : meta->requires_grad_ &&
                  typeid(*producer) == typeid(torch::autograd::AccumulateGrad) &&
                  static_cast<const torch::autograd::AccumulateGrad&>(*producer)
                          .variable.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace memledger::graph_internal
