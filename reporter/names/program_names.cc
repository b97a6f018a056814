#include "reporter/names/program_names.h"

#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "registry/core/fork_safe_mutex.h"
#include "registry/hooks/training_notes.h"
#include "registry/libtorch/storage_impl.h"
#include "registry/live_storages.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "reporter/names/module_type.h"
#include "reporter/names/optimizer_state.h"
#include "reporter/names/script_module.h"
#include "reporter/names/told_names.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using Hold = std::lock_guard<ForkSafeMutex>;

constexpr size_t kLeastPrune = 1024;
constexpr size_t kLeastKept = size_t{1} << 14;
constexpr size_t kLeastRoots = 1024;

// A module that is part of no other one.
struct Root {
  std::string type;
  // Others lived alongside it, so its type stands before its names; the number is that among roots
  // of its type, from 1. 0: no need.
  int number = 0;
  // Known by registrations only, so it may turn out to be part of another one.
  bool is_provisional = false;
};

// A module that is being made: the root of what it has registered.
struct Building {
  size_t root;
  std::vector<std::string> paths;
};
constexpr size_t kMostBuildings = 256;

// The root of parameters that are known by their optimizer only.
constexpr size_t kNoRoot = ~size_t{0};

// Where a tensor was found. States have the slot's name as path.
struct Place {
  size_t root = kNoRoot;
  std::string path;
  std::string module;
  Role role = Role::kTensor;
  std::string optimizer;  // of a state
};

struct Known {
  WeakTensor tensor;
  Place place;
  uint64_t sequence = 0;
  uint64_t storage_id = 0;
  const c10::TensorImpl* parameter = nullptr;  // whose state it is
};

struct KeptPlace {
  Place place;
  uint64_t parameter = 0;  // storage id of the parameter whose state it is
};

// What was read of a module, before the lock is taken.
struct Found {
  at::Tensor tensor;
  Place place;
  uint64_t storage_id = 0;
};

// The path from the outermost module is the longest, and the best.
bool is_better(const Place& place, const Place& former) {
  if (former.role == Role::kOptimizerState) return true;
  if (former.root == kNoRoot || place.root == kNoRoot) return place.root != kNoRoot;
  const auto depth = [](const Place& of) {
    return std::count(of.path.begin(), of.path.end(), '.');
  };
  return depth(place) > depth(former);
}

std::string owner_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

void know_parameter_on(const at::Tensor& tensor) {
  if (c10::StorageImpl* const storage = storage_impl_of(tensor)) know_parameter(*storage);
}

void know_parameters(const std::vector<Found>& found) {
  for (const Found& one : found) {
    if (one.place.role == Role::kParameter) know_parameter_on(one.tensor);
  }
}

}  // namespace

struct ProgramNames::Table {
  mutable ForkSafeMutex lock;
  // Guarded by it.
  std::vector<Root> roots;
  std::unordered_map<const c10::TensorImpl*, Known> known;
  std::unordered_map<uint64_t, KeptPlace> kept;
  std::unordered_map<const void*, Building> buildings;
  std::vector<size_t> free_roots;  // nothing refers to them
  size_t sort_roots_at = kLeastRoots;
  std::optional<GradientNotes::Wanted> gradients;
  uint64_t next_sequence = 1;
  size_t prune_at = kLeastPrune;
  size_t prune_kept_at = kLeastKept;

  std::atomic<bool> empty{true};

  void note(const std::vector<Found>& found, const std::string& type);
  void note_registered(const void* module, const std::string& type, const Found& found);
  void note_unrooted(const std::vector<Found>& found);
  void note_states(const torch::optim::Optimizer& optimizer);
  void prune(std::vector<Known>& dropped);
  void prune_kept();
  std::string prefix_of(const Place& place) const;
  std::string parameter_name(const Place& place) const;
  template <typename FindParameter>
  ProgramName name_of(const Place& place, const FindParameter& find_parameter) const;

 private:
  void remember(const Found& found, size_t root, const c10::TensorImpl* parameter,
                std::vector<Known>& dropped);
  size_t root_of(const std::vector<Found>& found, const std::string& type);
  void number_roots(size_t made);
  size_t new_root(const std::string& type);
  int number_among_type(const std::string& type) const;
};

// Returns the root that these tensors have already, or a new one.
size_t ProgramNames::Table::root_of(const std::vector<Found>& found, const std::string& type) {
  for (const Found& one : found) {
    const auto same = known.find(one.tensor.unsafeGetTensorImpl());
    if (same != known.end() && same->second.place.root != kNoRoot &&
        same->second.place.path == one.place.path) {
      const size_t root = same->second.place.root;
      if (roots[root].is_provisional) roots[root] = {type, 0, false};
      roots[root].type = type;  // a base's, when it was being made
      return root;
    }
  }
  return new_root(type);
}

// Roots of which nothing is known any more are used again: programs make and drop modules.
size_t ProgramNames::Table::new_root(const std::string& type) {
  if (free_roots.empty() && roots.size() >= sort_roots_at) {
    std::vector<bool> is_used(roots.size(), false);
    const auto mark = [&is_used](const Place& place) {
      if (place.root != kNoRoot) is_used[place.root] = true;
    };
    for (const auto& [tensor, one] : known) mark(one.place);
    for (const auto& [id, one] : kept) mark(one.place);
    buildings.clear();
    for (size_t root = roots.size(); root-- > 0;) {
      if (!is_used[root]) free_roots.push_back(root);
    }
    sort_roots_at = std::max(kLeastRoots, 2 * (roots.size() - free_roots.size()));
  }
  if (free_roots.empty()) {
    roots.emplace_back();
    free_roots.push_back(roots.size() - 1);
  }
  const size_t root = free_roots.back();
  free_roots.pop_back();
  roots[root] = {type, 0, false};
  return root;
}

int ProgramNames::Table::number_among_type(const std::string& type) const {
  int number = 1;
  for (const Root& other : roots) {
    if (other.type == type && other.number >= number) number = other.number + 1;
  }
  return number;
}

void ProgramNames::Table::remember(const Found& found, size_t root,
                                   const c10::TensorImpl* parameter, std::vector<Known>& dropped) {
  const c10::TensorImpl* const key = found.tensor.unsafeGetTensorImpl();
  Place place = found.place;
  place.root = root;
  const auto former = known.find(key);
  if (former != known.end() && parameter == nullptr && !is_better(place, former->second.place))
    place = former->second.place;
  // The storage that the tensor had before to(device), as at the peak of the CPU.
  if (former != known.end() && parameter == nullptr) {
    const auto before = kept.find(former->second.storage_id);
    if (before != kept.end()) before->second.place = place;
  }
  if (found.storage_id != 0) {
    KeptPlace kept_place{place, 0};
    if (parameter != nullptr) {
      const auto its = known.find(parameter);
      if (its != known.end()) kept_place.parameter = its->second.storage_id;
    }
    kept[found.storage_id] = std::move(kept_place);
  }
  if (former != known.end()) {
    former->second.place = std::move(place);
    former->second.storage_id = found.storage_id;
    former->second.parameter = parameter;
    return;
  }
  if (known.size() >= prune_at) prune(dropped);
  known.emplace(key, Known{WeakTensor(found.tensor.getIntrusivePtr()), std::move(place),
                           next_sequence++, found.storage_id, parameter});
}

// Where the new root lives alongside others, all of them need their types.
void ProgramNames::Table::number_roots(size_t made) {
  std::vector<bool> lives(roots.size(), false);
  for (const auto& [tensor, one] : known) {
    if (one.place.role != Role::kOptimizerState && one.place.root != kNoRoot &&
        !one.tensor.expired())
      lives[one.place.root] = true;
  }
  if (!lives[made]) return;
  if (std::count(lives.begin(), lives.end(), true) < 2) return;
  for (size_t root = 0; root < roots.size(); ++root) {
    if (!lives[root] || roots[root].number != 0) continue;
    roots[root].number = number_among_type(roots[root].type);
  }
}

// Always numbered: others of its type are likely, and a root that is part of another one needs no
// number any more.
void ProgramNames::Table::note_registered(const void* module, const std::string& type,
                                          const Found& found) {
  std::vector<Known> dropped;  // let go of without the lock
  const Hold hold(lock);
  if (!gradients.has_value()) gradients.emplace();
  if (buildings.size() >= kMostBuildings) buildings.clear();
  const auto former = buildings.find(module);
  // A module that has ended may have been at this address.
  const bool is_new = former == buildings.end() || !roots[former->second.root].is_provisional ||
                      std::find(former->second.paths.begin(), former->second.paths.end(),
                                found.place.path) != former->second.paths.end();
  if (is_new) {
    const int number = number_among_type(type);
    const size_t root = new_root(type);
    roots[root] = {type, number, true};
    buildings[module] = {root, {}};
  }
  Building& building = buildings[module];
  roots[building.root].type = type;
  building.paths.push_back(found.place.path);
  remember(found, building.root, nullptr, dropped);
  empty.store(false, std::memory_order_release);
}

void ProgramNames::Table::note(const std::vector<Found>& found, const std::string& type) {
  std::vector<Known> dropped;  // let go of without the lock
  if (found.empty()) return;
  const Hold hold(lock);
  if (!gradients.has_value()) gradients.emplace();
  const size_t before = roots.size();
  const size_t root = root_of(found, type);
  for (const Found& one : found) remember(one, root, nullptr, dropped);
  if (roots.size() > before) number_roots(root);
  empty.store(false, std::memory_order_release);
}

void ProgramNames::Table::note_unrooted(const std::vector<Found>& found) {
  std::vector<Known> dropped;  // let go of without the lock
  if (found.empty()) return;
  const Hold hold(lock);
  for (const Found& one : found) {
    if (known.count(one.tensor.unsafeGetTensorImpl()) == 0)
      remember(one, kNoRoot, nullptr, dropped);
  }
  empty.store(false, std::memory_order_release);
}

void ProgramNames::Table::note_states(const torch::optim::Optimizer& optimizer) {
  struct State {
    const c10::TensorImpl* parameter;
    Found found;
  };
  const std::string type = memledger::name_of(optimizer);
  std::vector<Found> parameters;
  std::vector<State> states;
  size_t group_number = 0;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    size_t index = 0;
    for (const at::Tensor& parameter : group.params()) {
      const std::string number = std::to_string(group_number) + "." + std::to_string(index++);
      if (!parameter.defined()) continue;
      Found found{parameter, {}, Registry::global().storage_id(parameter)};
      found.place.path = "param" + number;
      found.place.role = Role::kParameter;
      parameters.push_back(std::move(found));
      for_each_state(optimizer, parameter.unsafeGetTensorImpl(),
                     [&](const std::string& slot, const at::Tensor& tensor) {
                       if (!tensor.defined()) return;
                       Found state{tensor, {}, Registry::global().storage_id(tensor)};
                       state.place.path = slot;
                       state.place.role = Role::kOptimizerState;
                       state.place.optimizer = type;
                       states.push_back({parameter.unsafeGetTensorImpl(), std::move(state)});
                     });
    }
    ++group_number;
  }
  std::vector<Known> dropped;
  const Hold hold(lock);
  if (!gradients.has_value()) gradients.emplace();
  for (const Found& parameter : parameters) remember(parameter, kNoRoot, nullptr, dropped);
  for (const State& state : states) remember(state.found, kNoRoot, state.parameter, dropped);
  empty.store(false, std::memory_order_release);
}

void ProgramNames::Table::prune(std::vector<Known>& dropped) {
  for (auto one = known.begin(); one != known.end();) {
    if (!one->second.tensor.expired()) {
      ++one;
      continue;
    }
    dropped.push_back(std::move(one->second));
    known.erase(one++);
  }
  prune_at = std::max(kLeastPrune, 2 * known.size());
}

void ProgramNames::Table::prune_kept() {
  {
    const Hold hold(lock);
    if (kept.size() < prune_kept_at) return;
  }
  const std::unordered_set<uint64_t> matter = storages_that_matter();
  const Hold hold(lock);
  for (auto one = kept.begin(); one != kept.end();) {
    matter.count(one->first) > 0 ? void(++one) : void(kept.erase(one++));
  }
  prune_kept_at = std::max(kLeastKept, 2 * kept.size());
}

std::string ProgramNames::Table::prefix_of(const Place& place) const {
  if (place.root >= roots.size() || roots[place.root].number == 0) return "";
  const Root& root = roots[place.root];
  return root.number == 1 ? root.type : root.type + "#" + std::to_string(root.number);
}

std::string ProgramNames::Table::parameter_name(const Place& place) const {
  const std::string prefix = prefix_of(place);
  return prefix.empty() ? place.path : prefix + "." + place.path;
}

// `find_parameter` returns the place of the parameter whose state it is, or null.
template <typename FindParameter>
ProgramName ProgramNames::Table::name_of(const Place& place,
                                         const FindParameter& find_parameter) const {
  ProgramName name;
  name.role = place.role;
  const Place* owner = &place;
  if (place.role == Role::kOptimizerState) {
    owner = find_parameter();
    name.name = place.optimizer + "." +
                (owner == nullptr ? std::string("?") : parameter_name(*owner)) + "." + place.path;
  } else {
    name.name = parameter_name(place);
  }
  if (owner == nullptr) return name;
  const std::string prefix = prefix_of(*owner);
  name.module =
      owner->module.empty() || prefix.empty() ? owner->module : prefix + "." + owner->module;
  if (name.module.empty() && owner->root < roots.size())
    name.module = prefix.empty() ? roots[owner->root].type : prefix;
  return name;
}

ProgramNames::ProgramNames() : table_(std::make_unique<Table>()) {}

ProgramNames& ProgramNames::global() {
  static auto* const names = new ProgramNames;
  return *names;
}

bool ProgramNames::empty() const noexcept {
  return table_->empty.load(std::memory_order_acquire) && ToldNames::global().empty();
}

void ProgramNames::note(const torch::nn::Module& module) noexcept {
  try {
    std::vector<Found> found;
    const auto add = [&found](const std::string& path, Role role, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      found.push_back(
          {tensor, {0, path, owner_of(path), role, ""}, Registry::global().storage_id(tensor)});
    };
    for (const auto& parameter : module.named_parameters())
      add(parameter.key(), Role::kParameter, parameter.value());
    for (const auto& buffer : module.named_buffers())
      add(buffer.key(), Role::kBuffer, buffer.value());
    know_parameters(found);
    table_->note(found, type_name_now(module));
    table_->prune_kept();
  } catch (...) {
    // Without memory, names are missing.
  }
}

void ProgramNames::note_registered(const torch::nn::Module& module, const std::string& name,
                                   Role role, const at::Tensor& tensor) noexcept {
  try {
    if (!tensor.defined()) return;
    const Found found{tensor, {0, name, "", role, ""}, Registry::global().storage_id(tensor)};
    if (role == Role::kParameter) know_parameter_on(tensor);
    table_->note_registered(&module, type_name_now(module), found);
    table_->prune_kept();
  } catch (...) {
  }
}

void ProgramNames::note(const torch::jit::Module& module) noexcept {
  try {
    std::vector<Found> found;
    const ScriptModuleRef reference(module);
    const auto held = reference.for_each_tensor([&found](const std::string& path,
                                                         const std::string& owner, Role role,
                                                         const at::Tensor& tensor) {
      found.push_back({tensor, {0, path, owner, role, ""}, Registry::global().storage_id(tensor)});
    });
    know_parameters(found);
    table_->note(found, reference.type_name());
    table_->prune_kept();
  } catch (...) {
  }
}

void ProgramNames::note(const torch::inductor::AOTIModelContainerRunner& compiled) noexcept {
  try {
    std::vector<Found> found;
    for (const auto& [path, tensor] : compiled.extract_constants_map(/*use_inactive=*/false)) {
      if (!tensor.defined()) continue;
      found.push_back({tensor,
                       {0, path, owner_of(path), Role::kParameter, ""},
                       Registry::global().storage_id(tensor)});
    }
    know_parameters(found);
    table_->note(found, kCompiledModel);
    table_->prune_kept();
  } catch (...) {
  }
}

void ProgramNames::note_input(const std::string& name, const at::Tensor& input) noexcept {
  try {
    if (!input.defined()) return;
    table_->note_unrooted(
        {{input, {0, name, "", Role::kInput, ""}, Registry::global().storage_id(input)}});
    table_->prune_kept();
  } catch (...) {
  }
}

void ProgramNames::note_inputs(const std::vector<at::Tensor>& inputs) noexcept {
  try {
    std::vector<Found> found;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      found.push_back({inputs[i],
                       {0, "input" + std::to_string(i), "", Role::kInput, ""},
                       Registry::global().storage_id(inputs[i])});
    }
    table_->note_unrooted(found);
    table_->prune_kept();
  } catch (...) {
  }
}

void ProgramNames::note_step(const torch::optim::Optimizer& optimizer) noexcept {
  try {
    table_->note_states(optimizer);
    table_->prune_kept();
  } catch (...) {
  }
}

std::vector<ProgramNames::Living> ProgramNames::living() const {
  struct Candidate {
    uint64_t sequence;
    WeakTensor tensor;
    Living living;
  };
  // Declared before the lock, and made strong after it: Python takes a lock of its own when its
  // tensors get or lose references.
  std::vector<Living> told = ToldNames::global().living();
  auto only_told = told.end();
  std::vector<Candidate> candidates;
  {
    const Hold hold(table_->lock);
    candidates.reserve(table_->known.size());
    for (const auto& [key, known] : table_->known) {
      Living living;
      static_cast<ProgramName&>(living) = table_->name_of(known.place, [&]() -> const Place* {
        const auto parameter = table_->known.find(known.parameter);
        return parameter == table_->known.end() ? nullptr : &parameter->second.place;
      });
      candidates.push_back({known.sequence, known.tensor, std::move(living)});
    }
    only_told = std::stable_partition(told.begin(), told.end(), [&](const Living& living) {
      return table_->known.count(living.tensor.unsafeGetTensorImpl()) == 0;
    });
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.sequence < b.sequence; });
  std::vector<Living> result;
  result.reserve(candidates.size() + told.size());
  for (Candidate& one : candidates) {
    auto held = one.tensor.lock();
    if (!held) continue;
    one.living.tensor = at::Tensor(std::move(held));
    result.push_back(std::move(one.living));
  }
  std::move(told.begin(), only_told, std::back_inserter(result));
  return result;
}

std::vector<ProgramNames::Kept> ProgramNames::kept() const {
  std::vector<Kept> result = ToldNames::global().kept();
  const Hold hold(table_->lock);
  result.reserve(result.size() + table_->kept.size());
  for (const auto& [id, place] : table_->kept) {
    Kept kept;
    const auto find_parameter = [this, wanted = place.parameter]() -> const Place* {
      const auto parameter = table_->kept.find(wanted);
      return parameter == table_->kept.end() ? nullptr : &parameter->second.place;
    };
    static_cast<ProgramName&>(kept) = table_->name_of(place.place, find_parameter);
    kept.storage_id = id;
    result.push_back(std::move(kept));
  }
  std::sort(result.begin(), result.end(),
            [](const Kept& a, const Kept& b) { return a.storage_id < b.storage_id; });
  return result;
}

}  // namespace memledger
