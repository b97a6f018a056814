#include "reporter/names/name_book.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <list>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "registry/core/fork_safe_mutex.h"
#include "registry/hooks/training_notes.h"
#include "reporter/names/module_type.h"
#include "reporter/names/optimizer_state.h"
#include "reporter/names/optimizer_watch.h"
#include "reporter/names/program_names.h"
#include "reporter/names/prototype_layers.h"
#include "reporter/names/script_module.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Later ones are noted as they are made.
void note_gradient_of(const at::Tensor& tensor) {
  const LiveRead live;
  if (live && tensor.defined()) GradientNotes::note(tensor);
}

// An entry whose subject the program may end once it is removed. Guarded by the book's lock.
struct Pinned {
  bool removed = false;
  int pins = 0;
  pid_t process = 0;  // whose pins these are: a child of fork has none of its parent's threads
};

struct ModuleEntry : Pinned {
  std::string prefix;
  const torch::nn::Module* module;
  std::weak_ptr<const torch::nn::Module> owner;
  bool owned;  // by a shared_ptr when it was added; else the caller keeps it

  ModuleEntry(std::string its_prefix, const torch::nn::Module& its_module)
      : prefix(std::move(its_prefix)),
        module(&its_module),
        owner(its_module.weak_from_this()),
        owned(!owner.expired()) {}
  bool ended() const { return owned && owner.expired(); }
};

struct ScriptEntry {
  std::string prefix;
  ScriptModuleRef module;

  ScriptEntry(std::string its_prefix, const torch::jit::Module& its_module)
      : prefix(std::move(its_prefix)), module(its_module) {}
  bool ended() const { return module.ended(); }
};

struct OptimizerEntry : Pinned {
  std::unique_ptr<OptimizerWatch> watch;

  explicit OptimizerEntry(const torch::optim::Optimizer& optimizer)
      : watch(std::make_unique<OptimizerWatch>(optimizer)) {}
};

struct TensorEntry {
  std::string name;
  Role role;
  WeakTensor tensor;

  TensorEntry(std::string its_name, Role its_role, const at::Tensor& its_tensor)
      : name(std::move(its_name)), role(its_role), tensor(its_tensor.getIntrusivePtr()) {}
  bool ended() const { return tensor.expired(); }
};

// Shared with readers. In lists, as entries move to another list without memory.
template <typename E>
using EntryList = std::list<std::shared_ptr<E>>;
template <typename E>
using EntryVector = std::vector<std::shared_ptr<E>>;

// Declared before a lock is taken, so that its entries end without the lock: deleters and
// destructors are the program's.
struct Dropped {
  EntryList<ModuleEntry> modules;
  EntryList<ScriptEntry> scripts;
  EntryList<OptimizerEntry> optimizers;
  EntryList<TensorEntry> tensors;
};

std::string join(const std::string& prefix, const std::string& path) {
  return prefix.empty() ? path : path.empty() ? prefix : prefix + "." + path;
}

// Returns encoder.0 for encoder.0.weight: the names of parameters have no dots.
std::string path_of_owner(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// Returns the names that the program gave to tensors that are not among those named.
std::vector<ProgramNames::Living> told_beside(const std::vector<NamedTensor>& named) {
  if (ProgramNames::global().empty()) return {};
  std::unordered_set<const c10::TensorImpl*> known;
  for (const NamedTensor& one : named) known.insert(one.tensor.unsafeGetTensorImpl());
  std::vector<ProgramNames::Living> told = ProgramNames::global().living();
  told.erase(std::remove_if(told.begin(), told.end(),
                            [&known](const ProgramNames::Living& living) {
                              return known.count(living.tensor.unsafeGetTensorImpl()) > 0;
                            }),
             told.end());
  return told;
}

at::Tensor lock(const WeakTensor& weak) {
  auto held = weak.lock();
  return held ? at::Tensor(std::move(held)) : at::Tensor();
}

}  // namespace

struct NameBook::Entries {
  using Hold = std::lock_guard<ForkSafeMutex>;

  // Guards what follows, and the entries' Pinned; the rest of an entry does not change while the
  // book has it. While it is held, LibTorch is only asked whether something has ended.
  ForkSafeMutex lock;
  EntryList<ModuleEntry> modules;
  EntryList<ScriptEntry> scripts;
  EntryList<OptimizerEntry> optimizers;
  EntryList<TensorEntry> tensors;  // in order of registration
  std::unordered_map<std::string, EntryList<TensorEntry>::iterator> tensor_of_name;
  const GradientNotes::Wanted gradients_wanted;
  // Adding looks for dead entries only when there may be as many as live ones, so that it stays
  // cheap on average; except for TorchScript modules, whose memory LibTorch keeps until they are
  // let go of here.
  size_t prune_at = 64;

  template <typename E>
  static void move_ended(EntryList<E>& from, EntryList<E>& to) {
    move_if(from, to, [](const E& entry) { return entry.ended(); });
  }
  template <typename E, typename Goes>
  static void move_if(EntryList<E>& from, EntryList<E>& to, const Goes& goes) {
    for (auto entry = from.begin(); entry != from.end();) {
      const auto next = std::next(entry);
      if (goes(**entry)) to.splice(to.end(), from, entry);
      entry = next;
    }
  }

  void prune(Dropped& dropped) {
    move_ended(modules, dropped.modules);
    move_ended(scripts, dropped.scripts);
    move_if(tensors, dropped.tensors, [this](const TensorEntry& entry) {
      if (!entry.ended()) return false;
      tensor_of_name.erase(entry.name);
      return true;
    });
    prune_at = std::max<size_t>(64, 2 * (modules.size() + tensors.size()));
  }

  void prune_sometimes(Dropped& dropped) {
    if (modules.size() + tensors.size() >= prune_at) {
      prune(dropped);
    } else {
      move_ended(scripts, dropped.scripts);
    }
  }

  template <typename E>
  void add(EntryList<E>& to, std::shared_ptr<E> entry) {
    EntryList<E> added;
    added.push_back(std::move(entry));
    Dropped dropped;
    const Hold hold(lock);
    prune_sometimes(dropped);
    to.splice(to.end(), added);
  }

  void add(std::string name, Role role, const at::Tensor& tensor) {
    TORCH_CHECK(tensor.defined(), "memledger: the tensor given for \"", name, "\" is undefined");
    if (tensor.is_leaf()) note_gradient_of(tensor);
    EntryList<TensorEntry> added;
    added.push_back(std::make_shared<TensorEntry>(name, role, tensor));
    Dropped dropped;
    const Hold hold(lock);
    prune_sometimes(dropped);
    const auto [entry, is_new] = tensor_of_name.try_emplace(std::move(name), added.begin());
    if (!is_new) {
      dropped.tensors.splice(dropped.tensors.end(), tensors, entry->second);
      entry->second = added.begin();
    }
    tensors.splice(tensors.end(), added);
  }

  // Waits until no other thread reads the entry. Polls, as a condition variable does not outlive a
  // fork: removing is rare, and a read takes milliseconds.
  void wait_for_readers(const Pinned& removed);
};

namespace {

// Keeps the program from ending what an entry stands for: remove() waits for pins of other threads.
// While pinned, nothing whose end may call the program is let go of, unless memory fails.
class Pin {
 public:
  Pin(ForkSafeMutex& lock, Pinned& what) : lock_(lock), what_(what) {
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    if (what_.removed) return;
    if (what_.process != process_) {
      what_.process = process_;
      what_.pins = 0;
    }
    ++what_.pins;
    outer_ = std::exchange(innermost_, this);
    pinned_ = true;
  }
  ~Pin() {
    if (!pinned_) return;
    innermost_ = outer_;
    const std::lock_guard<ForkSafeMutex> hold(lock_);
    if (what_.process == process_) --what_.pins;
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  // False if the entry was removed: then it must not be touched.
  explicit operator bool() const { return pinned_; }

  static int of_this_thread(const Pinned& what) {
    int count = 0;
    for (const Pin* pin = innermost_; pin != nullptr; pin = pin->outer_)
      count += &pin->what_ == &what ? 1 : 0;
    return count;
  }

 private:
  static thread_local const Pin* innermost_;

  ForkSafeMutex& lock_;
  Pinned& what_;
  const pid_t process_ = getpid();
  const Pin* outer_ = nullptr;
  bool pinned_ = false;
};

thread_local const Pin* Pin::innermost_ = nullptr;

}  // namespace

void NameBook::Entries::wait_for_readers(const Pinned& removed) {
  const pid_t process = getpid();
  const int own = Pin::of_this_thread(removed);
  while (true) {
    {
      const Hold hold(lock);
      if (removed.process != process || removed.pins <= own) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

NameBook::NameBook() : entries_(std::make_unique<Entries>()) {}
NameBook::~NameBook() = default;
NameBook::NameBook(NameBook&&) noexcept = default;
NameBook& NameBook::operator=(NameBook&&) noexcept = default;

void NameBook::add_module(std::string prefix, const torch::nn::Module& module) {
  {
    const LiveRead live;  // its answer is that of all parameters
    for (const at::Tensor& parameter : module.parameters()) note_gradient_of(parameter);
  }
  entries_->add(entries_->modules, std::make_shared<ModuleEntry>(std::move(prefix), module));
}

void NameBook::add_module(std::string prefix, const torch::jit::Module& module) {
  const auto entry = std::make_shared<ScriptEntry>(std::move(prefix), module);
  entry->module.for_each_tensor(
      [](const std::string&, const std::string&, Role, const at::Tensor& tensor) {
        if (tensor.is_leaf()) note_gradient_of(tensor);
      });
  entries_->add(entries_->scripts, entry);
}

void NameBook::add_optimizer(const torch::optim::Optimizer& optimizer) {
  const auto entry = std::make_shared<OptimizerEntry>(optimizer);
  if (const LiveRead live; live) {
    entry->watch->note();
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) note_gradient_of(parameter);
    }
  }
  entries_->add(entries_->optimizers, entry);
}

void NameBook::add_tensor(std::string name, const at::Tensor& tensor) {
  entries_->add(std::move(name), Role::kTensor, tensor);
}

void NameBook::add_input(std::string name, const at::Tensor& tensor) {
  entries_->add(std::move(name), Role::kInput, tensor);
}

void NameBook::add_state(std::string name, const at::Tensor& tensor) {
  entries_->add(std::move(name), Role::kOptimizerState, tensor);
}

void NameBook::remove(std::string_view name) {
  const std::string wanted(name);
  Dropped ended;
  Dropped removed;
  {
    const Entries::Hold hold(entries_->lock);
    // Whether a dead name is an error must not depend on when the book last looked for it.
    entries_->prune(ended);
    Entries::move_if(entries_->modules, removed.modules,
                     [&](ModuleEntry& entry) { return entry.prefix == wanted; });
    Entries::move_if(entries_->scripts, removed.scripts,
                     [&](const ScriptEntry& entry) { return entry.prefix == wanted; });
    for (const auto& entry : removed.modules) entry->removed = true;
    if (const auto named = entries_->tensor_of_name.find(wanted);
        named != entries_->tensor_of_name.end()) {
      removed.tensors.splice(removed.tensors.end(), entries_->tensors, named->second);
      entries_->tensor_of_name.erase(named);
    }
  }
  TORCH_CHECK(!removed.modules.empty() || !removed.scripts.empty() || !removed.tensors.empty(),
              "memledger: nothing living was added under the name \"", name, "\"");
  for (const auto& entry : removed.modules) {
    if (!entry->owned) entries_->wait_for_readers(*entry);
  }
}

void NameBook::remove_optimizer(const torch::optim::Optimizer& optimizer) {
  Dropped removed;
  {
    const Entries::Hold hold(entries_->lock);
    Entries::move_if(entries_->optimizers, removed.optimizers, [&](const OptimizerEntry& entry) {
      return &entry.watch->optimizer() == &optimizer;
    });
    for (const auto& entry : removed.optimizers) entry->removed = true;
  }
  TORCH_CHECK(!removed.optimizers.empty(), "memledger: this optimizer was not added");
  for (const auto& entry : removed.optimizers) {
    entries_->wait_for_readers(*entry);
    entry->watch.reset();  // readers may hold the entry for a while
  }
}

std::vector<NamedTensor> NameBook::read(std::vector<UnreadGradient>* unread) const {
  return read(/*with_told=*/true, unread);
}
std::vector<NamedTensor> NameBook::read_added(std::vector<UnreadGradient>* unread) const {
  return read(/*with_told=*/false, unread);
}

std::vector<NamedTensor> NameBook::read(bool with_told, std::vector<UnreadGradient>* unread) const {
  EntryVector<ModuleEntry> modules;
  EntryVector<ScriptEntry> scripts;
  EntryVector<OptimizerEntry> optimizers;
  EntryVector<TensorEntry> tensors;
  {
    Dropped dropped;
    const Entries::Hold hold(entries_->lock);
    entries_->prune(dropped);
    modules.assign(entries_->modules.begin(), entries_->modules.end());
    scripts.assign(entries_->scripts.begin(), entries_->scripts.end());
    optimizers.assign(entries_->optimizers.begin(), entries_->optimizers.end());
    tensors.assign(entries_->tensors.begin(), entries_->tensors.end());
  }
  std::vector<NamedTensor> result;  // declared before any Pin, as it holds what is read of them
  result.reserve(tensors.size());
  struct Known {
    std::string name, module;
  };
  std::unordered_map<const c10::TensorImpl*, Known> parameters;
  const auto add = [&](std::string name, Role role, const std::string& module,
                       const at::Tensor& tensor) {
    if (tensor.defined())
      result.push_back({std::move(name), role, module, tensor, nullptr, {}, false});
  };
  NotesAwaited awaited;
  const LiveRead may_be_read;  // gradients and states, which the program sets without a lock
  const auto add_with_grad = [&](const std::string& name, Role role, const std::string& module,
                                 const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    add(name, role, module, tensor);
    // Frozen parameters keep their gradient. LibTorch would warn if others were asked.
    if (!tensor.is_leaf() && !tensor.retains_grad()) return;
    at::Tensor gradient = gradient_of(tensor);
    if (!gradient.defined() && !may_be_read) gradient = awaited.find(tensor);
    if (gradient.defined()) {
      add(name + ".grad", Role::kGradient, module, gradient);
    } else if (!may_be_read && seems_to_have_gradient(tensor)) {
      if (unread != nullptr) unread->push_back({name + ".grad", module, tensor.device()});
    }
  };
  const auto add_parameter = [&](const std::string& name, const std::string& module,
                                 const at::Tensor& tensor) {
    add_with_grad(name, Role::kParameter, module, tensor);
    if (tensor.defined()) parameters.emplace(tensor.unsafeGetTensorImpl(), Known{name, module});
  };
  // Ours may be the last reference to a module: then it ends with what was read of it.
  const auto keep_with_what_it_has = [&](size_t first, std::shared_ptr<const void> owner) {
    if (first < result.size()) result[first].owner = std::move(owner);
  };
  for (const auto& shared_entry : modules) {
    ModuleEntry& entry = *shared_entry;
    std::shared_ptr<const torch::nn::Module> held;
    if (entry.owned) held = entry.owner.lock();
    if (entry.owned && held == nullptr) continue;
    const Pin pin(entries_->lock, entry);
    if (!pin) continue;
    const torch::nn::Module* const module = entry.module;
    const size_t first = result.size();
    // Python's tensors, of which some are inside others.
    const bool may_be_parts = type_name_now(*module) == "ForeignModule";
    const auto owner_of = [&, root = module](const std::string& name) {
      const std::string path = path_of_owner(name);
      return path.empty() ? type_name_of(*root) : path;
    };
    for (const auto& parameter : module->named_parameters()) {
      const std::string name = join(entry.prefix, parameter.key());
      const size_t next = result.size();
      add_parameter(name, owner_of(name), parameter.value());
      if (next < result.size()) result[next].is_part = may_be_parts;
    }
    for (const auto& buffer : module->named_buffers()) {
      const std::string name = join(entry.prefix, buffer.key());
      add(name, Role::kBuffer, owner_of(name), buffer.value());
    }
    for_each_prototype_layer(
        *module, [&](const std::string& path, const torch::nn::Module& prototype) {
          const std::string owner = join(entry.prefix, path);
          for (const auto& parameter : prototype.named_parameters())
            add_with_grad(join(owner, parameter.key()), Role::kTensor, owner, parameter.value());
          for (const auto& buffer : prototype.named_buffers())
            add(join(owner, buffer.key()), Role::kTensor, owner, buffer.value());
        });
    keep_with_what_it_has(first, std::move(held));
  }
  for (const auto& shared_entry : scripts) {
    const ScriptEntry& entry = *shared_entry;
    const size_t first = result.size();
    auto held = entry.module.for_each_tensor([&](const std::string& path, const std::string& module,
                                                 Role role, const at::Tensor& tensor) {
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
  for (const auto& shared_entry : tensors) {
    const TensorEntry& entry = *shared_entry;
    const at::Tensor tensor = lock(entry.tensor);
    add_with_grad(entry.name, entry.role, "", tensor);
    if (tensor.defined() && !optimizers.empty())
      given_names.emplace(tensor.unsafeGetTensorImpl(), entry.name);
  }
  // Names that the runner saw the program give come after those that were registered.
  std::vector<ProgramNames::Living> told;
  if (with_told) told = told_beside(result);
  for (const ProgramNames::Living& living : told) {
    if (living.role == Role::kOptimizerState) continue;
    if (living.role == Role::kParameter) {
      const size_t first = result.size();
      add_parameter(living.name, living.module, living.tensor);
      if (first < result.size()) {
        result[first].tied = living.tied;
        result[first].is_part = living.is_part;
      }
    } else {
      add(living.name, living.role, living.module, living.tensor);
    }
  }
  for (const auto& shared_entry : optimizers) {
    OptimizerEntry& entry = *shared_entry;
    const Pin pin(entries_->lock, entry);
    if (!pin) continue;
    const torch::optim::Optimizer& optimizer = entry.watch->optimizer();
    entry.watch->find_parameters();
    const std::string optimizer_name = name_of(optimizer);
    const auto& groups = optimizer.param_groups();
    for (size_t group = 0; group < groups.size(); ++group) {
      const auto& params = groups[group].params();
      for (size_t index = 0; index < params.size(); ++index) {
        const at::Tensor& param = params[index];
        if (!param.defined()) continue;
        Known known{"param" + std::to_string(group) + "." + std::to_string(index), ""};
        if (const auto named = parameters.find(param.unsafeGetTensorImpl());
            named != parameters.end()) {
          known = named->second;
        } else {
          if (const auto given = given_names.find(param.unsafeGetTensorImpl());
              given != given_names.end())
            known.name = given->second;
          known.module = known.name;
          add_with_grad(known.name, Role::kParameter, known.module, param);
        }
        const auto add_state = [&](const std::string& slot, const at::Tensor& tensor) {
          std::string name = optimizer_name;
          name.append(".").append(known.name).append(".").append(slot);
          add(std::move(name), Role::kOptimizerState, known.module, tensor);
        };
        if (may_be_read) {
          for_each_state(optimizer, param.unsafeGetTensorImpl(), add_state);
        } else {
          for (const auto& [slot, tensor] : entry.watch->noted(param.unsafeGetTensorImpl()))
            add_state(slot, tensor);
        }
      }
    }
  }
  told.clear();
  if (with_told) told = told_beside(result);
  for (const ProgramNames::Living& living : told) {
    if (living.role == Role::kOptimizerState)
      add(living.name, living.role, living.module, living.tensor);
  }
  const auto comes_first = [](const NamedTensor& a, const NamedTensor& b) {
    return a.role < b.role;
  };
  // Sorting would move all of them several times.
  if (!std::is_sorted(result.begin(), result.end(), comes_first))
    std::stable_sort(result.begin(), result.end(), comes_first);
  return result;
}

}  // namespace memledger
