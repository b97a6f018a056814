#include "graph/libtorch_autograd.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <exception>
#include <string_view>
#include <vector>

namespace memledger::graph_internal {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// What kept compiled_args() from its end, in one line.
std::string trouble_of(const std::exception& error) {
  std::string text;
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    text = torch_error->what_without_backtrace();
  } else {
    text = error.what();
  }
  if (text.find("non_differentiable_") != std::string::npos || text.find("dirty_inputs_") != std::string::npos) {
    return "its forward calls mark_non_differentiable() or mark_dirty(), and LibTorch then lists saved_data only";
  }
  return text.substr(0, text.find('\n'));
}

// backward clears a slot; a slot that never held anything looks the same from
// outside. Only unpack() tells them apart, and with no data and no hook it
// neither runs nor makes anything.
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
  void one(const char* /*name*/, const SavedVariable& slot) override { found = found || slot_is_released(slot); }
  void list(const char* /*name*/, const std::vector<SavedVariable>& slots, bool released) override {
    found = found || released;
    for (const SavedVariable& slot : slots) {
      found = found || slot_is_released(slot);
    }
  }
  bool found = false;
};

// True where the tensor was written to after it was saved, so that backward
// would refuse it.
bool is_modified(const SavedVariable& slot, const at::Tensor& data, const NodePtr& node) {
  namespace impl = torch::autograd::impl;
  c10::TensorImpl* tensor = data.unsafeGetTensorImpl();
  if (tensor->is_inference()) return false;
  const c10::VariableVersion& counter = tensor->version_counter();
  if (!counter.enabled()) return false;
  const uint32_t version = counter.current_version();
  if (version == 0) return false;
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
    return std::string_view(error.what_without_backtrace()).find("modified by an inplace operation") != std::string_view::npos;
  }
  return false;
}

// A custom Function's node can only be read by compiled_args(), which unpacks
// its saved variables. Variables saved by a custom Function are private, so the
// only hooks they can have are those the engine hands out by default: none from
// LibTorch's own engine, and from Python's, hooks that compiled_args() lists
// without running them.
bool custom_functions_are_readable() {
  const torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  return typeid(engine) == typeid(torch::autograd::Engine) ||
         c10::demangle(typeid(engine).name()) == "torch::autograd::python::PythonEngine";
}

void read_custom_function(const NodePtr& node, NodeContents& contents) {
  namespace dynamo = torch::dynamo::autograd;
  if (!custom_functions_are_readable()) {
    contents.packed("saved", -1);
    return;
  }
  dynamo::AutogradCompilerCall call(dynamo::SizeInput::STATIC);
  dynamo::NodeCall node_call(0, node);
  std::string trouble;
  try {
    dynamo::CompiledNodeArgs arguments(call, node_call);
    node->compiled_args(arguments);
  } catch (const std::exception& error) {
    trouble = trouble_of(error);
  }
  int index = 0;
  for (const at::Tensor& tensor : call.tensor_args.inputs) {
    contents.tensor("saved", index++, tensor, false);
  }
  if (!call.sv_to_hooks.empty()) contents.packed("saved", -1);
  if (!trouble.empty()) contents.failed(trouble);
}

void read_copy_slices(const Node& node, NodeContents& contents) {
  const auto& slices = static_cast<const torch::autograd::CopySlices&>(node);
  if (!slices.fn) {
    contents.empty();
    return;
  }
  contents.held_node(slices.fn);
  if (slices.view_fn == nullptr || slices.view_fn->num_tensors() == 0) return;
  int index = 0;
  for (const at::Tensor& tensor : slices.view_fn->get_tensors()) {
    contents.tensor("view_fn", index++, tensor, false);
  }
}

}  // namespace

class NodeReader::SlotReader final : public SavedSlotVisitor {
 public:
  void read(const NodePtr& node, VisitFunction visit, NodeContents& contents) {
    node_ = &node;
    contents_ = &contents;
    holds_something_ = false;
    has_empty_ = false;
    visit(*node, *this);
    if (has_empty_ && !holds_something_) contents.empty();
  }

  void one(const char* name, const SavedVariable& slot) override { read_slot(name, -1, slot); }

  void list(const char* name, const std::vector<SavedVariable>& slots, bool released) override {
    if (released) has_empty_ = true;
    int index = 0;
    for (const SavedVariable& slot : slots) read_slot(name, index++, slot);
  }

 private:
  void read_slot(const char* name, int index, const SavedVariable& slot) {
    const std::optional<at::Tensor> data = slot.get_raw_data();
    if (!data.has_value()) {
      holds_something_ = true;
      contents_->packed(name, index);
    } else if (data->defined()) {
      holds_something_ = true;
      contents_->tensor(name, index, *data, is_modified(slot, *data, *node_));
    } else {
      has_empty_ = true;
    }
  }

  const NodePtr* node_ = nullptr;
  NodeContents* contents_ = nullptr;
  bool holds_something_ = false;
  bool has_empty_ = false;
};

NodeReader::NodeReader() : slot_reader_(std::make_unique<SlotReader>()) {}
NodeReader::~NodeReader() = default;

NodeReader::Type NodeReader::classify(const std::type_info& type) {
  namespace ag = torch::autograd;
  if (VisitFunction visit = find_visit_function(type)) {
    return {Kind::kGenerated, visit, nullptr};
  }
  if (type == typeid(ag::CopySlices)) {
    return {Kind::kCopySlices, nullptr, nullptr};
  }
  // AccumulateGrad refers to the leaf whose gradient it adds up: not saved.
  for (const std::type_info* known :
       {&typeid(ag::AccumulateGrad), &typeid(ag::CopyBackwards), &typeid(ag::Error), &typeid(ag::NotImplemented),
        &typeid(ag::DelayedError), &typeid(ag::UndefinedGrad), &typeid(ag::UndefinedGradBackward), &typeid(ag::Identity)}) {
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
    return {Kind::kUnknown, nullptr, "a TorchScript graph, whose node LibTorch keeps private"};
  }
  if (name == "torch::autograd::PyNode") {
    return {Kind::kUnknown, nullptr, "a Function written in Python"};
  }
  return {Kind::kUnknown, nullptr, "a node type that LibTorch does not declare"};
}

const NodeReader::Type& NodeReader::type_of(const Node& node) {
  const std::type_info& type = typeid(node);
  auto found = types_.find(&type);
  if (found == types_.end()) {
    found = types_.emplace(&type, classify(type)).first;
  }
  return found->second;
}

bool NodeReader::is_released(const NodePtr& node) {
  const Type& type = type_of(*node);
  if (type.kind == Kind::kCopySlices) {
    return !static_cast<const torch::autograd::CopySlices&>(*node).fn;
  }
  if (type.kind != Kind::kGenerated) return false;
  ReleaseFinder finder;
  type.visit(*node, finder);
  return finder.found;
}

void NodeReader::read(const NodePtr& node, NodeContents& contents) {
  const Type& type = type_of(*node);
  switch (type.kind) {
    case Kind::kGenerated:
      slot_reader_->read(node, type.visit, contents);
      break;
    case Kind::kSavesNothing:
      break;
    case Kind::kCopySlices:
      read_copy_slices(*node, contents);
      break;
    case Kind::kCustomFunction:
      read_custom_function(node, contents);
      break;
    case Kind::kUnknown:
      contents.unknown_type(type.why);
      break;
  }
}

NodePtr grad_fn_of(const at::Tensor& tensor) { return tensor.grad_fn(); }

}  // namespace memledger::graph_internal
