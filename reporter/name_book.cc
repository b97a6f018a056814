#include "reporter/name_book.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "registry/core/calls_out_knowingly.h"
#include "registry/core/thread_context.h"
#include "registry/core/training_threads.h"
#include "registry/training_notes.h"
#include "reporter/optimizer_state.h"
#include "reporter/optimizer_watch.h"
#include "reporter/prototype_layers.h"
#include "reporter/script_module.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The thread that added an entry may read its gradients and states as long as no other one was seen to train, as may one that
// trains itself. Any other thread could be beside one that will be seen next.
struct Entry {
  uint32_t added_by = core::this_thread().thread;

  bool may_be_read() const {
    const uint32_t me = core::this_thread().thread;
    return no_other_thread_trains() && (added_by == me || core::TrainingThreads::is_training(me));
  }
};

struct ModuleEntry : Entry {
  std::string prefix;
  const torch::nn::Module* module;
  std::weak_ptr<const torch::nn::Module> owner;
  bool owned;  // by a shared_ptr when it was added; else it is on the stack and the caller's to keep

  bool ended() const { return owned && owner.expired(); }

  // Keeps an owned module alive while it is read; the second is null when it has ended.
  std::pair<std::shared_ptr<const torch::nn::Module>, const torch::nn::Module*> lock() const {
    if (!owned) return {nullptr, module};
    auto held = owner.lock();
    const auto* raw = held.get();
    return {std::move(held), raw};
  }
};

struct ScriptEntry : Entry {
  std::string prefix;
  ScriptModuleRef module;
};

struct OptimizerEntry : Entry {
  std::unique_ptr<OptimizerWatch> watch;
};

struct TensorEntry : Entry {
  std::string name;
  Role role;
  WeakTensor tensor;
};

std::string join(const std::string& prefix, const std::string& path) {
  return prefix.empty() ? path : path.empty() ? prefix : prefix + "." + path;
}

// Linear for torch::nn::LinearImpl.
std::string type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const size_t colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.compare(name.size() - kImpl.size(), kImpl.size(), kImpl) == 0)
    name.resize(name.size() - kImpl.size());
  return name;
}

// Of encoder.0.weight: encoder.0; the names of parameters have no dots.
std::string path_of_owner(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

at::Tensor lock(const WeakTensor& weak) {
  auto held = weak.lock();
  return held ? at::Tensor(std::move(held)) : at::Tensor();
}

}  // namespace

struct NameBook::Entries {
  std::vector<ModuleEntry> modules;
  std::vector<ScriptEntry> scripts;
  std::vector<OptimizerEntry> optimizers;
  std::list<TensorEntry> tensors;  // in order of registration
  std::unordered_map<std::string, std::list<TensorEntry>::iterator> tensor_of_name;
  const GradientNotes::Wanted gradients_wanted;
  // Adding looks for dead entries only when there may be as many of them as live ones, so that it stays cheap on average.
  size_t prune_at = 64;

  std::list<TensorEntry>::iterator erase(std::list<TensorEntry>::iterator entry) {
    tensor_of_name.erase(entry->name);
    return tensors.erase(entry);
  }

  void prune() {
    const core::CallsOutKnowingly known;
    modules.erase(std::remove_if(modules.begin(), modules.end(), [](const ModuleEntry& entry) { return entry.ended(); }),
                  modules.end());
    scripts.erase(std::remove_if(scripts.begin(), scripts.end(), [](const ScriptEntry& entry) { return entry.module.ended(); }),
                  scripts.end());
    for (auto entry = tensors.begin(); entry != tensors.end();) {
      entry = entry->tensor.expired() ? erase(entry) : std::next(entry);
    }
    prune_at = std::max<size_t>(64, 2 * (modules.size() + scripts.size() + tensors.size()));
  }

  void prune_sometimes() {
    if (modules.size() + scripts.size() + tensors.size() >= prune_at) prune();
  }

  void add(std::string name, Role role, const at::Tensor& tensor) {
    TORCH_CHECK(tensor.defined(), "memledger: the tensor given for \"", name, "\" is undefined");
    prune_sometimes();
    if (const auto found = tensor_of_name.find(name); found != tensor_of_name.end()) erase(found->second);
    const auto entry = tensors.insert(tensors.end(), {{}, name, role, WeakTensor(tensor.getIntrusivePtr())});
    tensor_of_name.emplace(std::move(name), entry);
    if (no_other_thread_trains() && tensor.is_leaf()) GradientNotes::note(tensor);
  }
};

NameBook::NameBook() : entries_(std::make_unique<Entries>()) {}
NameBook::~NameBook() = default;
NameBook::NameBook(NameBook&&) noexcept = default;
NameBook& NameBook::operator=(NameBook&&) noexcept = default;

void NameBook::add_module(std::string prefix, const torch::nn::Module& module) {
  std::weak_ptr<const torch::nn::Module> owner = module.weak_from_this();
  const bool owned = !owner.expired();
  entries_->prune_sometimes();
  entries_->modules.push_back({{}, std::move(prefix), &module, std::move(owner), owned});
  if (!no_other_thread_trains()) return;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.defined()) GradientNotes::note(parameter);
  }
}

void NameBook::add_module(std::string prefix, const torch::jit::Module& module) {
  entries_->prune_sometimes();
  entries_->scripts.push_back({{}, std::move(prefix), ScriptModuleRef(module)});
  if (!no_other_thread_trains()) return;
  entries_->scripts.back().module.for_each_tensor([](const std::string&, const std::string&, Role, const at::Tensor& tensor) {
    if (tensor.is_leaf()) GradientNotes::note(tensor);
  });
}

void NameBook::add_optimizer(const torch::optim::Optimizer& optimizer) {
  entries_->optimizers.push_back({{}, std::make_unique<OptimizerWatch>(optimizer)});
  if (!no_other_thread_trains()) return;
  entries_->optimizers.back().watch->note();
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.defined()) GradientNotes::note(parameter);
    }
  }
}

void NameBook::add_tensor(std::string name, const at::Tensor& tensor) { entries_->add(std::move(name), Role::kTensor, tensor); }

void NameBook::add_input(std::string name, const at::Tensor& tensor) { entries_->add(std::move(name), Role::kInput, tensor); }

void NameBook::remove(std::string_view name) {
  entries_->prune();  // whether a dead one is an error must not depend on when it was last looked for
  auto& modules = entries_->modules;
  auto& scripts = entries_->scripts;
  const size_t before = modules.size() + scripts.size();
  const auto has_prefix = [&](const auto& entry) { return entry.prefix == name; };
  modules.erase(std::remove_if(modules.begin(), modules.end(), has_prefix), modules.end());
  scripts.erase(std::remove_if(scripts.begin(), scripts.end(), has_prefix), scripts.end());
  const auto found = entries_->tensor_of_name.find(std::string(name));
  TORCH_CHECK(modules.size() + scripts.size() < before || found != entries_->tensor_of_name.end(),
              "memledger: nothing that lives was added under the name \"", name, "\"");
  if (found != entries_->tensor_of_name.end()) entries_->erase(found->second);
}

void NameBook::remove_optimizer(const torch::optim::Optimizer& optimizer) {
  auto& optimizers = entries_->optimizers;
  const auto gone = std::remove_if(optimizers.begin(), optimizers.end(),
                                   [&](const OptimizerEntry& entry) { return &entry.watch->optimizer() == &optimizer; });
  TORCH_CHECK(gone != optimizers.end(), "memledger: this optimizer was not added");
  optimizers.erase(gone, optimizers.end());
}

std::vector<NamedTensor> NameBook::read() const {
  const core::CallsOutKnowingly known;
  entries_->prune();
  std::vector<NamedTensor> found;
  found.reserve(entries_->tensors.size());
  struct Known {
    std::string name, module;
  };
  std::unordered_map<const c10::TensorImpl*, Known> parameters;
  const auto add = [&](std::string name, Role role, const std::string& module, const at::Tensor& tensor) {
    if (tensor.defined()) found.push_back({std::move(name), role, module, tensor, nullptr});
  };
  bool may_be_read = false;  // what threads that train set without a lock
  const auto add_with_grad = [&](const std::string& name, Role role, const std::string& module, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    add(name, role, module, tensor);
    at::Tensor gradient;
    if (!may_be_read) {
      gradient = GradientNotes::find(tensor);
    } else if (tensor.is_leaf() || tensor.retains_grad()) {  // frozen parameters keep theirs; asked of others LibTorch would warn
      gradient = tensor.grad();
    }
    if (gradient.defined()) add(name + ".grad", Role::kGradient, module, gradient);
  };
  const auto add_parameter = [&](const std::string& name, const std::string& module, const at::Tensor& tensor) {
    add_with_grad(name, Role::kParameter, module, tensor);
    if (tensor.defined()) parameters.emplace(tensor.unsafeGetTensorImpl(), Known{name, module});
  };
  // The last reference to a module may be the one that reading took: it ends with what was read of it.
  const auto keep_with_what_it_has = [&](size_t first, std::shared_ptr<const void> owner) {
    if (first < found.size()) found[first].owner = std::move(owner);
  };
  for (const ModuleEntry& entry : entries_->modules) {
    auto [held, module] = entry.lock();
    if (module == nullptr) continue;
    const size_t first = found.size();
    may_be_read = entry.may_be_read();
    const auto owner_of = [&, root = module](const std::string& name) {
      const std::string path = path_of_owner(name);
      return path.empty() ? type_name(*root) : path;
    };
    for (const auto& parameter : module->named_parameters()) {
      const std::string name = join(entry.prefix, parameter.key());
      add_parameter(name, owner_of(name), parameter.value());
    }
    for (const auto& buffer : module->named_buffers()) {
      const std::string name = join(entry.prefix, buffer.key());
      add(name, Role::kBuffer, owner_of(name), buffer.value());
    }
    for_each_prototype_layer(*module, [&](const std::string& path, const torch::nn::Module& prototype) {
      const std::string owner = join(entry.prefix, path);
      for (const auto& parameter : prototype.named_parameters())
        add_with_grad(join(owner, parameter.key()), Role::kTensor, owner, parameter.value());
      for (const auto& buffer : prototype.named_buffers()) add(join(owner, buffer.key()), Role::kTensor, owner, buffer.value());
    });
    keep_with_what_it_has(first, std::move(held));
  }
  for (const ScriptEntry& entry : entries_->scripts) {
    const size_t first = found.size();
    may_be_read = entry.may_be_read();
    auto held = entry.module.for_each_tensor(
        [&](const std::string& path, const std::string& module, Role role, const at::Tensor& tensor) {
          const std::string name = join(entry.prefix, path);
          std::string owner = join(entry.prefix, module);
          if (owner.empty()) owner = entry.module.type_name();
          if (role == Role::kParameter) {
            add_parameter(name, owner, tensor);
          } else {
            add_with_grad(name, role, owner, tensor);
          }
        });
    keep_with_what_it_has(first, std::move(held));
  }
  std::unordered_map<const c10::TensorImpl*, std::string> given_names;
  for (const TensorEntry& entry : entries_->tensors) {
    const at::Tensor tensor = lock(entry.tensor);
    may_be_read = entry.may_be_read();
    add_with_grad(entry.name, entry.role, "", tensor);
    if (tensor.defined() && !entries_->optimizers.empty()) given_names.emplace(tensor.unsafeGetTensorImpl(), entry.name);
  }
  for (const OptimizerEntry& entry : entries_->optimizers) {
    const torch::optim::Optimizer& optimizer = entry.watch->optimizer();
    may_be_read = entry.may_be_read();
    const bool states_may_be_read = may_be_read || entry.watch->steps_on_this_thread();
    entry.watch->find_parameters();
    const std::string optimizer_name = name_of(optimizer);
    const auto& groups = optimizer.param_groups();
    for (size_t group = 0; group < groups.size(); ++group) {
      const auto& params = groups[group].params();
      for (size_t index = 0; index < params.size(); ++index) {
        const at::Tensor& param = params[index];
        if (!param.defined()) continue;
        Known known{"param" + std::to_string(group) + "." + std::to_string(index), ""};
        if (const auto named = parameters.find(param.unsafeGetTensorImpl()); named != parameters.end()) {
          known = named->second;
        } else {
          if (const auto given = given_names.find(param.unsafeGetTensorImpl()); given != given_names.end())
            known.name = given->second;
          known.module = known.name;
          add_with_grad(known.name, Role::kParameter, known.module, param);
        }
        const auto add_state = [&](const std::string& slot, const at::Tensor& tensor) {
          add(optimizer_name + "." + known.name + "." + slot, Role::kOptimizerState, known.module, tensor);
        };
        if (states_may_be_read) {
          for_each_state(optimizer, param.unsafeGetTensorImpl(), add_state);
        } else {
          for (const auto& [slot, tensor] : entry.watch->noted(param.unsafeGetTensorImpl())) add_state(slot, tensor);
        }
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const NamedTensor& a, const NamedTensor& b) { return a.role < b.role; });
  return found;
}

}  // namespace memledger
