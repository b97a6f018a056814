#include "reporter/names/told_names.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "registry/core/fork_safe_mutex.h"
#include "registry/hooks/training_notes.h"
#include "registry/libtorch/storage_impl.h"
#include "registry/live_storages.h"
#include "registry/recording.h"
#include "registry/registry.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using Hold = std::lock_guard<ForkSafeMutex>;
using Module = ToldNames::Module;

constexpr size_t kLeastPrune = 1024;
constexpr size_t kLeastKept = size_t{1} << 14;
// Modules are not so deep, unless one is part of itself.
constexpr int kMostDepth = 1000;
constexpr uint64_t kStillLives = std::numeric_limits<uint64_t>::max();

// What a wrapper calls what it wraps.
bool is_wrapped(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"_orig_mod", "_fsdp_wrapped_module",
                                                      "_checkpoint_wrapped_module"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// A module's place in another one.
struct Link {
  Module whole = 0;
  std::string name;
  uint64_t order = 0;
  bool replaced = false;  // another module has its name now
};

struct Node {
  std::string type;
  uint64_t born = 0;
  uint64_t ended = kStillLives;
  std::vector<Link> wholes;
  std::map<std::string, Module, std::less<>> parts;
  std::map<std::string, uint64_t, std::less<>> tensors;  // records

  bool lives() const { return ended == kStillLives; }
};

// A tensor's place in a module.
struct Slot {
  Module module = 0;
  std::string name;
  uint64_t order = 0;
  bool replaced = false;
};

// What is known of a tensor, which may have ended.
struct Record {
  Role role = Role::kParameter;
  bool is_part = false;                     // see ProgramName::is_part
  std::optional<bool> requires_grad;        // see ProgramName
  const c10::TensorImpl* tensor = nullptr;  // in `living`, if it lives
  std::vector<Slot> slots;
  std::string place;       // of a parameter that is no module's; the slot of a state
  std::string optimizer;   // of a state
  uint64_t parameter = 0;  // the record of a state's or gradient's
};

struct Living {
  WeakTensor tensor;
  uint64_t record = 0;
};

using Nodes = std::unordered_map<Module, Node>;
using Records = std::unordered_map<uint64_t, Record>;

// Finds names at one moment, as they read best next to each other.
class Namer {
 public:
  Namer(const Nodes& nodes, const Records& records) : nodes_(nodes), records_(records) {}

  // All records have to be added before the first name is asked for.
  void add(uint64_t record) {
    if (const Record* const owner = owner_of(record)) {
      if (const Spot* const spot = spot_of(*owner)) roots_.insert(spot->root);
    }
  }
  void number_roots();
  ProgramName name_of(uint64_t record);

 private:
  struct Spot {
    Module root = 0;
    std::vector<std::string> path;
    // In the order of named_parameters(): a module's own, then its parts as they were added.
    std::vector<uint64_t> order;
  };

  const Record* find(uint64_t record) const {
    const auto found = records_.find(record);
    return found == records_.end() ? nullptr : &found->second;
  }
  // Returns the parameter that a state or gradient belongs to, or the record itself.
  const Record* owner_of(uint64_t record) const {
    const Record* const one = find(record);
    return one == nullptr || one->parameter == 0 ? one : find(one->parameter);
  }
  Module wrapped_by(Module module) const;
  const Spot* spot_of(Module module, int depth);
  const Spot* spot_of(const Record& record);
  // What is known of `parameter`, whose name is that of `spot`.
  TiedEmbedding tied(const Record& parameter, const Spot& spot);
  std::string module_of(const Spot& spot) const;
  static const Link* best(const Node& node, const Nodes& nodes);
  std::string path_of(const Spot& spot, std::string_view last) const;

  const Nodes& nodes_;
  const Records& records_;
  std::unordered_map<Module, Spot> spots_;
  std::unordered_map<const Record*, Spot> of_records_;
  std::unordered_set<Module> roots_;
  std::unordered_map<Module, std::string> prefixes_;
};

// A parameter of a wrapper itself counts as one of what it wraps.
Module Namer::wrapped_by(Module module) const {
  for (int depth = 0; depth < kMostDepth; ++depth) {
    const auto node = nodes_.find(module);
    if (node == nodes_.end() || node->second.parts.size() != 1) return module;
    const auto& [name, part] = *node->second.parts.begin();
    if (!is_wrapped(name) && name != "module") return module;
    module = part;
  }
  return module;
}

const Link* Namer::best(const Node& node, const Nodes& nodes) {
  const Link* best = nullptr;
  bool best_lives = false;
  for (const Link& link : node.wholes) {
    const auto whole = nodes.find(link.whole);
    if (whole == nodes.end()) continue;
    const bool lives = whole->second.lives() && !link.replaced;
    // A module outlives what it was taken out of.
    if (!lives && node.lives()) continue;
    if (best == nullptr || (lives && !best_lives)) {
      best = &link;
      best_lives = lives;
    }
  }
  return best;
}

const Namer::Spot* Namer::spot_of(Module module, int depth) {
  if (const auto known = spots_.find(module); known != spots_.end()) return &known->second;
  const auto node = nodes_.find(module);
  if (node == nodes_.end() || depth > kMostDepth) return nullptr;
  const Link* const link = best(node->second, nodes_);
  const Spot* const whole = link == nullptr ? nullptr : spot_of(link->whole, depth + 1);
  Spot spot;
  if (whole == nullptr) {
    spot.root = wrapped_by(module);
  } else {
    spot = *whole;
    spot.order.push_back(link->order);
    const Node& its = nodes_.find(link->whole)->second;
    if (!is_wrapped(link->name) && (link->name != "module" || its.parts.size() != 1))
      spot.path.push_back(link->name);
  }
  return &spots_.emplace(module, std::move(spot)).first->second;
}

const Namer::Spot* Namer::spot_of(const Record& record) {
  if (const auto known = of_records_.find(&record); known != of_records_.end())
    return known->second.root == 0 ? nullptr : &known->second;
  Spot best_spot;
  bool best_is_replaced = true;
  for (const Slot& slot : record.slots) {
    const Spot* const module = spot_of(slot.module, 0);
    if (module == nullptr) continue;
    Spot spot = *module;
    spot.order.push_back(0);
    spot.order.push_back(slot.order);
    spot.path.push_back(slot.name);
    const bool is_better =
        best_spot.root == 0 ||
        (slot.replaced == best_is_replaced ? spot.order < best_spot.order : best_is_replaced);
    if (!is_better) continue;
    best_spot = std::move(spot);
    best_is_replaced = slot.replaced;
  }
  const Spot& kept = of_records_.emplace(&record, std::move(best_spot)).first->second;
  return kept.root == 0 ? nullptr : &kept;
}

// Roots that lived alongside others need their types.
void Namer::number_roots() {
  std::vector<const Node*> by_birth;
  std::unordered_map<const Node*, Module> number_of;
  for (const Module root : roots_) {
    const auto node = nodes_.find(root);
    if (node == nodes_.end()) continue;
    by_birth.push_back(&node->second);
    number_of.emplace(&node->second, root);
  }
  std::sort(by_birth.begin(), by_birth.end(),
            [](const Node* a, const Node* b) { return a->born < b->born; });
  std::unordered_set<const Node*> beside_others;
  const Node* last_to_end = nullptr;
  for (const Node* const node : by_birth) {
    if (last_to_end != nullptr && last_to_end->ended > node->born) {
      beside_others.insert(last_to_end);
      beside_others.insert(node);
    }
    if (last_to_end == nullptr || node->ended > last_to_end->ended) last_to_end = node;
  }
  std::unordered_map<std::string_view, int> of_type;
  for (const Node* const node : by_birth) {
    if (beside_others.count(node) == 0) continue;
    const int number = ++of_type[node->type];
    prefixes_[number_of[node]] =
        number == 1 ? node->type : node->type + "#" + std::to_string(number);
  }
}

std::string Namer::path_of(const Spot& spot, std::string_view last) const {
  std::string text;
  const auto append = [&text](std::string_view part) {
    if (!text.empty() && !part.empty()) text += '.';
    text += part;
  };
  if (const auto prefix = prefixes_.find(spot.root); prefix != prefixes_.end())
    append(prefix->second);
  for (size_t i = 0; i + 1 < spot.path.size(); ++i) append(spot.path[i]);
  append(last);
  return text;
}

std::string Namer::module_of(const Spot& spot) const {
  std::string module = path_of(spot, "");
  if (const auto root = nodes_.find(spot.root); module.empty() && root != nodes_.end())
    module = root->second.type;
  return module;
}

TiedEmbedding Namer::tied(const Record& parameter, const Spot& spot) {
  TiedEmbedding tied;
  std::string embedding, other;
  const std::string module = module_of(spot);
  for (const Slot& slot : parameter.slots) {
    const auto node = nodes_.find(slot.module);
    const Spot* const whole = spot_of(slot.module, 0);
    if (slot.replaced || node == nodes_.end() || whole == nullptr) continue;
    Spot its = *whole;
    its.path.push_back(slot.name);
    const bool is_embedding = node->second.type.find("Embedding") != std::string::npos;
    std::string& found = is_embedding ? embedding : other;
    if (std::string its_module = module_of(its); found.empty() || its_module == module)
      found = std::move(its_module);
  }
  if (embedding.empty() || other.empty()) return tied;
  tied.is_named_first = module == embedding;
  tied.other_module = tied.is_named_first ? other : embedding;
  return tied;
}

ProgramName Namer::name_of(uint64_t record) {
  ProgramName name;
  const Record* const one = find(record);
  if (one == nullptr) return name;
  name.role = one->role;
  name.is_part = one->is_part;
  name.requires_grad = one->requires_grad;
  const Record* const owner = owner_of(record);
  const Spot* const spot = owner == nullptr ? nullptr : spot_of(*owner);
  if (spot != nullptr) {
    name.name = path_of(*spot, spot->path.back());
    name.module = module_of(*spot);
    if (one->role == Role::kParameter && one->slots.size() > 1) name.tied = tied(*one, *spot);
  } else {
    name.name = owner == nullptr || owner->place.empty() ? "?" : owner->place;
    name.module = name.name;
  }
  if (one->role == Role::kOptimizerState)
    name.name = one->optimizer + "." + name.name + "." + one->place;
  if (one->role == Role::kGradient) name.name += ".grad";
  return name;
}

}  // namespace

std::unordered_set<uint64_t> storages_that_matter() {
  const Registry& registry = Registry::global();
  std::unordered_set<uint64_t> ids;
  const auto add = [&ids](const Snapshot& snapshot, c10::Device device) {
    for (const StorageInfo& storage : snapshot.storages(device))
      ids.insert({storage.id, storage.parameter, storage.consumer});
  };
  const Snapshot now = registry.snapshot();
  for (const DeviceInfo& info : now.devices()) {
    add(now, info.device);
    add(registry.peak_snapshot(info.device), info.device);
  }
  return ids;
}

struct ToldNames::Table {
  mutable ForkSafeMutex lock;
  // Guarded by it.
  Nodes nodes;
  Records records;
  std::unordered_map<const c10::TensorImpl*, Living> living;
  std::unordered_map<uint64_t, uint64_t> kept;  // records by storage id
  std::optional<GradientNotes::Wanted> gradients;
  uint64_t next = 1;  // of records, and of what happens
  size_t prune_at = kLeastPrune;
  size_t prune_kept_at = kLeastKept;

  std::atomic<bool> empty{true};

  Node* find(Module module) {
    const auto node = nodes.find(module);
    return node == nodes.end() ? nullptr : &node->second;
  }
  uint64_t record_of(const at::Tensor& tensor, Role role, uint64_t storage_id,
                     std::vector<WeakTensor>& dropped);
  void place(uint64_t record, Module module, Node& node, std::string_view name);
  void read_requires_grad(const Node& node, std::vector<at::Tensor>& read);
  void prune(std::vector<WeakTensor>& dropped);
  void forget_unneeded();
  void prune_kept(bool now);
};

// Returns the tensor's record, a new one where it has none, and remembers its storage.
uint64_t ToldNames::Table::record_of(const at::Tensor& tensor, Role role, uint64_t storage_id,
                                     std::vector<WeakTensor>& dropped) {
  if (!gradients.has_value()) gradients.emplace();
  const auto known = living.find(tensor.unsafeGetTensorImpl());
  uint64_t record = 0;
  if (known != living.end()) {
    record = known->second.record;
    if (role == Role::kParameter || records[record].role != Role::kParameter)
      records[record].role = role;
  } else {
    if (living.size() >= prune_at) prune(dropped);
    record = next++;
    records[record].role = role;
    records[record].tensor = tensor.unsafeGetTensorImpl();
    living.emplace(tensor.unsafeGetTensorImpl(),
                   Living{WeakTensor(tensor.getIntrusivePtr()), record});
  }
  if (storage_id != 0) kept[storage_id] = record;
  empty.store(false, std::memory_order_release);
  return record;
}

void ToldNames::Table::place(uint64_t record, Module module, Node& node, std::string_view name) {
  const auto same = [&](const Slot& slot) { return slot.module == module && slot.name == name; };
  uint64_t& present = node.tensors[std::string(name)];
  if (present != 0 && present != record) {
    for (Slot& slot : records[present].slots) slot.replaced = slot.replaced || same(slot);
  }
  present = record;
  std::vector<Slot>& slots = records[record].slots;
  const auto known = std::find_if(slots.begin(), slots.end(), same);
  if (known != slots.end()) {
    known->replaced = false;
  } else {
    slots.push_back({module, std::string(name), next++, false});
  }
}

// Notes which parameters of a module are frozen, as far as they live. Adds those to `read`.
void ToldNames::Table::read_requires_grad(const Node& node, std::vector<at::Tensor>& read) {
  for (const auto& [name, record] : node.tensors) {
    const auto one = records.find(record);
    if (one == records.end() || one->second.role != Role::kParameter) continue;
    const auto its = living.find(one->second.tensor);
    if (its == living.end() || its->second.record != record) continue;
    auto held = its->second.tensor.lock();
    if (!held) continue;
    read.emplace_back(std::move(held));
    const bool requires_grad = read.back().requires_grad();
    if (requires_grad || !one->second.is_part) one->second.requires_grad = requires_grad;
  }
}

void ToldNames::Table::prune(std::vector<WeakTensor>& dropped) {
  for (auto one = living.begin(); one != living.end();) {
    if (!one->second.tensor.expired()) {
      ++one;
      continue;
    }
    dropped.push_back(std::move(one->second.tensor));
    living.erase(one++);
  }
  forget_unneeded();
  prune_at = std::max(kLeastPrune, 2 * living.size());
}

// Forgets records that are of no storage, and modules that have ended and have no place in a name.
void ToldNames::Table::forget_unneeded() {
  std::unordered_set<uint64_t> needed;
  const auto need = [&](uint64_t record) {
    if (!needed.insert(record).second) return;
    const auto one = records.find(record);
    if (one != records.end() && one->second.parameter != 0) needed.insert(one->second.parameter);
  };
  for (const auto& [tensor, one] : living) need(one.record);
  for (const auto& [id, record] : kept) need(record);
  std::unordered_set<Module> modules;
  std::vector<Module> to_look_at;
  for (auto record = records.begin(); record != records.end();) {
    if (needed.count(record->first) == 0) {
      records.erase(record++);
      continue;
    }
    for (const Slot& slot : record->second.slots) to_look_at.push_back(slot.module);
    ++record;
  }
  while (!to_look_at.empty()) {
    const Module module = to_look_at.back();
    to_look_at.pop_back();
    if (!modules.insert(module).second) continue;
    if (const Node* const node = find(module)) {
      for (const Link& link : node->wholes) to_look_at.push_back(link.whole);
    }
  }
  for (auto node = nodes.begin(); node != nodes.end();) {
    node->second.lives() || modules.count(node->first) > 0 ? void(++node)
                                                           : void(nodes.erase(node++));
  }
}

void ToldNames::Table::prune_kept(bool now) {
  {
    const Hold hold(lock);
    if (kept.empty() || (!now && kept.size() < prune_kept_at)) return;
  }
  const std::unordered_set<uint64_t> matter = storages_that_matter();
  const uint64_t last = matter.empty() ? 0 : *std::max_element(matter.begin(), matter.end());
  const Hold hold(lock);
  for (auto one = kept.begin(); one != kept.end();) {
    // What was made since is not among them.
    one->first > last || matter.count(one->first) > 0 ? void(++one) : void(kept.erase(one++));
  }
  forget_unneeded();
  prune_kept_at = std::max(kLeastKept, 2 * kept.size());
}

ToldNames::ToldNames() : table_(std::make_unique<Table>()) {}

ToldNames& ToldNames::global() {
  static auto* const names = new ToldNames;
  return *names;
}

bool ToldNames::empty() const noexcept { return table_->empty.load(std::memory_order_acquire); }

void ToldNames::add_module(Module module, std::string_view type) noexcept {
  try {
    const Hold hold(table_->lock);
    Node& node = table_->nodes[module];
    node.type = type;
    if (node.born == 0) node.born = table_->next++;
  } catch (...) {
    // Without memory, names are missing.
  }
}

void ToldNames::add_part(Module whole, std::string_view name, Module part) noexcept {
  try {
    const Hold hold(table_->lock);
    Node* const node = table_->find(whole);
    Node* const its_part = table_->find(part);
    if (node == nullptr || its_part == nullptr) return;
    const auto same = [&](const Link& link) { return link.whole == whole && link.name == name; };
    Module& present = node->parts[std::string(name)];
    if (present != 0 && present != part) {
      if (Node* const former = table_->find(present)) {
        for (Link& link : former->wholes) link.replaced = link.replaced || same(link);
      }
    }
    present = part;
    std::vector<Link>& wholes = its_part->wholes;
    const auto known = std::find_if(wholes.begin(), wholes.end(), same);
    if (known != wholes.end()) {
      known->replaced = false;
    } else {
      wholes.push_back({whole, std::string(name), table_->next++, false});
    }
  } catch (...) {
  }
}

void ToldNames::add_tensor(Module module, std::string_view name, Role role,
                           const at::Tensor& tensor, bool is_part) noexcept {
  try {
    if (!tensor.defined()) return;
    const uint64_t storage_id = Registry::global().storage_id(tensor);
    if (role == Role::kParameter) {
      if (c10::StorageImpl* const storage = storage_impl_of(tensor)) know_parameter(*storage);
    }
    {
      std::vector<WeakTensor> dropped;  // let go of without the lock
      const Hold hold(table_->lock);
      Node* const node = table_->find(module);
      if (node == nullptr) return;
      const uint64_t record = table_->record_of(tensor, role, storage_id, dropped);
      table_->records[record].is_part = is_part;
      table_->place(record, module, *node, name);
    }
    table_->prune_kept(/*now=*/false);
  } catch (...) {
  }
}

void ToldNames::end_module(Module module) noexcept {
  try {
    std::vector<at::Tensor> read;  // ended with no lock held
    const Hold hold(table_->lock);
    Node* const node = table_->find(module);
    if (node == nullptr) return;
    node->ended = table_->next++;
    table_->read_requires_grad(*node, read);
  } catch (...) {
  }
}

void ToldNames::add_gradient(const at::Tensor& parameter, const at::Tensor& gradient) noexcept {
  try {
    if (!parameter.defined() || !gradient.defined()) return;
    const uint64_t storage_id = Registry::global().storage_id(gradient);
    std::vector<WeakTensor> dropped;
    const Hold hold(table_->lock);
    const auto its = table_->living.find(parameter.unsafeGetTensorImpl());
    if (its == table_->living.end()) return;
    const uint64_t owner = its->second.record;
    const uint64_t record = table_->record_of(gradient, Role::kGradient, storage_id, dropped);
    table_->records[record].parameter = owner;
  } catch (...) {
  }
}

void ToldNames::add_trained(std::string_view place, const at::Tensor& parameter,
                            bool is_part) noexcept {
  try {
    if (!parameter.defined()) return;
    const uint64_t storage_id = Registry::global().storage_id(parameter);
    std::vector<WeakTensor> dropped;
    const Hold hold(table_->lock);
    Record& one =
        table_->records[table_->record_of(parameter, Role::kParameter, storage_id, dropped)];
    one.place = place;
    one.is_part = is_part;
  } catch (...) {
  }
}

void ToldNames::add_state(std::string_view optimizer, const at::Tensor& parameter,
                          std::string_view slot, const at::Tensor& state) noexcept {
  try {
    if (!parameter.defined() || !state.defined()) return;
    const uint64_t storage_id = Registry::global().storage_id(state);
    {
      std::vector<WeakTensor> dropped;
      const Hold hold(table_->lock);
      const auto its = table_->living.find(parameter.unsafeGetTensorImpl());
      if (its == table_->living.end()) return;
      const uint64_t owner = its->second.record;
      const uint64_t record = table_->record_of(state, Role::kOptimizerState, storage_id, dropped);
      Record& one = table_->records[record];
      one.parameter = owner;
      one.optimizer = optimizer;
      one.place = slot;
    }
    table_->prune_kept(/*now=*/false);
  } catch (...) {
  }
}

std::vector<LivingName> ToldNames::living() const {
  struct Alive {
    WeakTensor tensor;
    uint64_t record;
    ProgramName name;
  };
  std::vector<Alive> alive;
  {
    const Hold hold(table_->lock);
    Namer namer(table_->nodes, table_->records);
    alive.reserve(table_->living.size());
    for (const auto& [key, one] : table_->living) {
      if (one.tensor.expired()) continue;
      alive.push_back({one.tensor, one.record, {}});
      namer.add(one.record);
    }
    namer.number_roots();
    for (Alive& one : alive) one.name = namer.name_of(one.record);
  }
  std::sort(alive.begin(), alive.end(),
            [](const Alive& a, const Alive& b) { return a.record < b.record; });
  std::vector<LivingName> result;
  result.reserve(alive.size());
  // Not under the lock: a tensor that Python knows is held by Python's means, with its lock.
  for (Alive& one : alive) {
    auto held = one.tensor.lock();
    if (!held) continue;
    LivingName living;
    static_cast<ProgramName&>(living) = std::move(one.name);
    living.tensor = at::Tensor(std::move(held));
    result.push_back(std::move(living));
  }
  return result;
}

std::vector<KeptName> ToldNames::kept() const {
  // So that a root counts as alongside those only that are in the same report.
  table_->prune_kept(/*now=*/true);
  std::vector<KeptName> result;
  const Hold hold(table_->lock);
  Namer namer(table_->nodes, table_->records);
  for (const auto& [id, record] : table_->kept) namer.add(record);
  namer.number_roots();
  result.reserve(table_->kept.size());
  for (const auto& [id, record] : table_->kept) {
    KeptName kept;
    static_cast<ProgramName&>(kept) = namer.name_of(record);
    kept.storage_id = id;
    result.push_back(std::move(kept));
  }
  std::sort(result.begin(), result.end(),
            [](const KeptName& a, const KeptName& b) { return a.storage_id < b.storage_id; });
  return result;
}

}  // namespace memledger
