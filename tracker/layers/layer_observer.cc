// Compiled with NDEBUG whatever the build mode: see SEES_LIBTORCH_INLINES_COPTS.
#include "tracker/layers/layer_observer.h"

#include <c10/util/Exception.h>

#include <memory>
#include <utility>

namespace memledger::layers {
namespace {

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value() && tensor->defined()) visit(*tensor);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements())
      for_each_tensor(element, visit);
  }
}

struct Listening {
  const ModuleTree* tree;
  OperatorListener* listener;
  int depth;
};
thread_local Listening listening;

void tell_leaves(const at::RecordFunction& fn, OperatorListener& listener) {
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      if (tensor.requires_grad() && tensor.is_leaf()) listener.on_leaf(tensor);
    });
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  Listening& mine = listening;
  if (mine.listener == nullptr || mine.depth++ > 0) return nullptr;
  try {
    if (mine.tree == nullptr) tell_leaves(fn, *mine.listener);
    mine.listener->on_operator(
        fn.name(), mine.tree == nullptr ? std::nullopt : consumed_layer(*mine.tree, fn));
  } catch (...) {
    // An operator must not fail because it is watched.
  }
  return nullptr;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* /*context*/) {
  Listening& mine = listening;
  if (mine.listener == nullptr || mine.depth == 0) return;
  const bool outermost = --mine.depth == 0;
  try {
    for (const c10::IValue& output : fn.outputs()) {
      for_each_tensor(
          output, [&](const at::Tensor& tensor) { mine.listener->on_result(tensor, outermost); });
    }
  } catch (...) {
  }
}

}  // namespace

std::string plain_type_name(std::string_view demangled) {
  // Namespaces end before the template's arguments begin.
  const size_t arguments = demangled.find('<');
  const size_t colons = demangled.substr(0, arguments).rfind("::");
  if (colons != std::string_view::npos) demangled.remove_prefix(colons + 2);
  std::string_view name = demangled.substr(0, demangled.find('<'));
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.substr(name.size() - kImpl.size()) == kImpl)
    name.remove_suffix(kImpl.size());
  return std::string(name);
}

ModuleTree::ModuleTree(torch::nn::Module& module) { add(module, ""); }

ModuleTree::ModuleTree(ModuleLayer ended) {
  ended.parameters = 0;
  layers_.push_back(std::move(ended));
}

void ModuleTree::add(torch::nn::Module& module, const std::string& path) {
  if (!indices_.try_emplace(&module, layers_.size()).second) return;
  const size_t index = layers_.size();
  modules_.push_back(&module);
  ModuleLayer& layer = layers_.emplace_back();
  layer.name = path;
  layer.type = plain_type_name(module.name());
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    if (!parameter.value().defined()) continue;
    const at::Tensor& tensor = parameter.value();
    Owner owner{index, decltype(Owner::parameter)(tensor.getIntrusivePtr())};
    // A tied parameter is its first owner's.
    if (owners_.try_emplace(tensor.unsafeGetTensorImpl(), std::move(owner)).second) {
      layers_[index].parameters += parameter.value().numel();
    }
  }
  for (const auto& child : module.named_children())
    add(*child.value(), path.empty() ? child.key() : path + "." + child.key());
}

std::optional<size_t> ModuleTree::owner_of(const c10::TensorImpl* parameter) const {
  const auto owner = owners_.find(parameter);
  if (owner == owners_.end()) return std::nullopt;
  return owner->second.layer;
}

std::optional<size_t> consumed_layer(const ModuleTree& tree, const at::RecordFunction& fn) {
  std::optional<size_t> owner;
  for (const c10::IValue& input : fn.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      if (!owner.has_value()) owner = tree.owner_of(tensor.unsafeGetTensorImpl());
    });
    if (owner.has_value()) break;
  }
  return owner;
}

ScopedOperators::ScopedOperators(const ModuleTree* tree, OperatorListener& listener) {
  TORCH_CHECK(listening.listener == nullptr,
              "memledger: this thread's operators are already being listened to");
  listening = {tree, &listener, 0};
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

ScopedOperators::~ScopedOperators() {
  at::removeCallback(handle_);
  listening = {};
}

}  // namespace memledger::layers
