#include "reporter/mem_reporter.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "graph/graph_path.h"
#include "graph/saved_tensors.h"
#include "registry/core/fork_safe_mutex.h"
#include "registry/device_statistics.h"
#include "registry/libtorch/pinned_memory.h"
#include "registry/libtorch/tensor_storages.h"
#include "registry/live_storages.h"
#include "registry/registry.h"
#include "registry/training_paused.h"
#include "reporter/assembly/cuda_reconciliation.h"
#include "reporter/assembly/named_tensor_facts.h"
#include "reporter/assembly/report_builder.h"
#include "reporter/names/name_book.h"
#include "reporter/names/program_names.h"
#include "reporter/process_memory.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// cpu and cpu:0 are one device.
c10::Device without_needless_index(c10::Device device) {
  return device.is_cpu() || device.is_meta() ? c10::Device(device.type()) : device;
}

std::optional<std::vector<int64_t>> shape_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_nested() || impl->has_symbolic_sizes_strides()) return std::nullopt;
  try {
    return tensor.sizes().vec();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

std::optional<int64_t> offset_bytes_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.layout() != c10::kStrided || impl->is_nested() || impl->has_symbolic_sizes_strides())
    return std::nullopt;
  try {
    return tensor.storage_offset() * static_cast<int64_t>(impl->itemsize());
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

bool is_pinned(const at::Tensor& tensor) {
  try {
    return is_freed_as_pinned(tensor.storage().data_ptr()) || tensor.is_pinned();
  } catch (const c10::Error&) {
    return false;
  }
}

NamedTensorFacts facts_of(std::string name, Role role, const at::Tensor& tensor,
                          bool may_be_pinned) {
  NamedTensorFacts facts;
  facts.name = std::move(name);
  facts.role = role;
  facts.device = without_needless_index(tensor_device(tensor));
  facts.identity = reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl());
  facts.shape = shape_of(tensor);
  facts.dtype = c10::typeMetaToScalarType(tensor.dtype());
  facts.offset_bytes = offset_bytes_of(tensor);
  facts.extent_bytes = extent_bytes_of(tensor);
  if (const auto storage = storage_of(tensor)) {
    facts.has_storage = true;
    facts.address = storage->key.address;
    facts.storage_bytes = storage->bytes;
    facts.lent = storage->lent;
    facts.references =
        static_cast<int64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().use_count());
    // Adopts a storage from before tracking.
    facts.storage_id = Registry::global().storage_id(tensor);
    if (may_be_pinned && facts.storage_id == 0 && facts.device.is_cpu())
      facts.pinned = is_pinned(tensor);
  }
  return facts;
}

NamedTensorFacts facts_of(const SavedTensorRow& row, size_t graph) {
  NamedTensorFacts facts;
  facts.name = row.node + "." + row.slot;
  facts.role = Role::kSaved;
  facts.device = without_needless_index(row.device.value_or(c10::kCPU));
  facts.identity = row.tensor;
  facts.has_storage = row.storage_address != 0;
  facts.storage_id = row.storage_id;
  facts.address = row.storage_address;
  facts.storage_bytes = row.storage_bytes;
  facts.lent = row.lent;
  if (row.shape.has_value()) facts.shape.emplace(row.shape->begin(), row.shape->end());
  facts.dtype = row.dtype;
  facts.offset_bytes = row.storage_offset_bytes;
  facts.extent_bytes = row.extent_bytes;
  facts.node_sequence = row.sequence_number;
  facts.node_thread = row.forward_thread;
  facts.graph = graph;
  return facts;
}

// Adds the names that the program gave to storages whose tensors have ended.
void add_names_of_the_ended(std::vector<NamedTensorFacts>& facts) {
  if (ProgramNames::global().empty()) return;
  std::unordered_set<uint64_t> named;
  for (const NamedTensorFacts& fact : facts) {
    if (fact.role != Role::kSaved) named.insert(fact.storage_id);
  }
  for (ProgramNames::Kept& kept : ProgramNames::global().kept()) {
    if (named.count(kept.storage_id) > 0) continue;
    NamedTensorFacts fact;
    fact.name = std::move(kept.name);
    fact.role = kept.role;
    fact.module = std::move(kept.module);
    fact.tied = std::move(kept.tied);
    fact.requires_grad = kept.requires_grad;
    fact.storage_id = kept.storage_id;
    fact.has_storage = true;
    fact.has_ended = true;
    facts.push_back(std::move(fact));
  }
}

bool is_same_storage(const NamedTensorFacts& a, const NamedTensorFacts& b) {
  if (a.storage_id != 0 || b.storage_id != 0) return a.storage_id == b.storage_id;
  if (a.has_storage || b.has_storage)
    return a.has_storage == b.has_storage && a.address == b.address && a.device == b.device;
  return a.identity == b.identity;
}

bool is_same(const std::optional<DeviceStatistics>& a, const std::optional<DeviceStatistics>& b) {
  const auto moved = [](const Statistic& s) { return std::make_tuple(s.allocated, s.freed); };
  return a.has_value() == b.has_value() &&
         (!a.has_value() || (moved(a->allocated_bytes) == moved(b->allocated_bytes) &&
                             moved(a->requested_bytes) == moved(b->requested_bytes) &&
                             moved(a->active_bytes) == moved(b->active_bytes)));
}

Instant instant_of(const Registry& registry) {
  Instant instant;
  instant.active = registry.active();
  instant.follows = [&registry](c10::Device device) { return registry.follows(device); };
  return instant;
}

bool is_same(const Counters& a, const Counters& b) {
  return a.allocated_count == b.allocated_count && a.freed_count == b.freed_count &&
         a.current_bytes == b.current_bytes;
}

// Reads the registry and the allocators at one instant. Where threads allocate on a device during
// each attempt, only the registry is read for it: figures of two instants would not add up. A
// thread may be interrupted between the allocator and the registry, so an unknown block is believed
// only if it is there a second time, and, where nothing can have gone unseen, every time.
Instant look_at_registry_and_allocators(const Registry& registry) {
  constexpr int kAttempts = 4;
  Instant looked = instant_of(registry);
  std::map<c10::DeviceIndex, std::vector<uintptr_t>> unclaimed;
  std::map<c10::DeviceIndex, int> times_same;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    looked.views.clear();
    looked.moved.clear();
    for (c10::DeviceIndex index = 0;; ++index) {
      AllocatorView view;
      view.statistics = device_statistics(c10::Device(c10::kCUDA, index));
      if (!view.statistics.has_value()) break;
      looked.views.emplace(index, std::move(view));
    }
    looked.externals = external_storages();
    looked.snapshot = registry.snapshot();
    const bool may_be_unseen = looked.snapshot.unseen_before_tracking(c10::kCUDA) ||
                               looked.snapshot.tracking_was_off(c10::kCUDA);
    std::chrono::milliseconds pause(1);
    for (auto& [index, view] : looked.views) {
      const c10::Device device(c10::kCUDA, index);
      view.blocks = device_blocks(device);
      // On an unused device, asking would create a CUDA context of hundreds of megabytes.
      if (view.statistics->reserved_bytes.allocated > 0) view.memory = device_memory(device);
      view.workspaces = library_workspaces();
      std::vector<uintptr_t> blocks = unclaimed_blocks(device, looked.snapshot, view);
      int& same = times_same[index];
      same = blocks.empty() || blocks != unclaimed[index] ? 0 : same + 1;
      if (same > 0) pause = std::chrono::milliseconds(1 << 2 * attempt);
      const bool believed = blocks.empty() || same >= (may_be_unseen ? 1 : kAttempts - 1);
      if (!believed || !is_same(view.statistics, device_statistics(device)) ||
          !is_same(looked.snapshot.counters(device), registry.counters(device))) {
        looked.moved.insert(index);
      }
      unclaimed[index] = std::move(blocks);
    }
    if (looked.moved.empty() || attempt == kAttempts - 1) break;
    // Lets a thread that waits for the allocator's lock have it.
    std::this_thread::sleep_for(pause);
  }
  for (const c10::DeviceIndex index : looked.moved) looked.views.erase(index);
  return looked;
}

// Adds the figures of the whole process.
void add_process(Report& report, const Registry& registry) {
  report.health = registry.health();
  if (const auto pinned = pinned_statistics()) {
    // Before 2.15 LibTorch's figure can exceed what is there.
    report.pinned_in_use_bytes =
        std::min(pinned->in_use_bytes.current, pinned->reserved_bytes.current);
    report.pinned_reserved_bytes = pinned->reserved_bytes.current;
  }
  report.modelled_workspaces = modelled_workspaces();
  if (!report.of_peak) report.process = process_memory();
}

}  // namespace

struct MemReporter::Impl {
  using Hold = std::lock_guard<ForkSafeMutex>;

  // All that has a name at one moment. While the tensors live, no storage of theirs ends and no
  // other storage takes its address.
  struct NamedTensors {
    std::vector<NamedTensorFacts> facts;
    std::vector<NamedTensor> named;
    std::vector<at::Tensor> roots;
    bool may_be_pinned = false;

    void release() {
      named.clear();
      roots.clear();
    }
    // Lets go of gradients before the rest: a training thread frees them in each step and needs
    // their memory.
    void release_gradients() {
      for (NamedTensor& tensor : named) {
        if (tensor.role == Role::kGradient) tensor.tensor.reset();
      }
    }
  };

  const ScopedTracking tracking;
  NameBook names;
  // Guards what follows. Not held while tensors and graphs are let go of, nor while a graph is
  // walked, which calls the program's CountedHooks.
  ForkSafeMutex lock;
  std::vector<WeakTensor> graphs;
  // The roots of `graphs`, whose weak references keep the addresses from being reused.
  std::unordered_set<const c10::TensorImpl*> graph_roots;
  size_t prune_graphs_at = 64;
  AnonymousNumbers numbers;

  void add_graph(const at::Tensor& loss);
  void prune_graphs(std::vector<WeakTensor>& dropped);
  std::vector<at::Tensor> living_graphs();
  NamedTensors read_named_tensors(bool training_paused = false);
  Report build(const ReportOptions& options, const std::vector<NamedTensorFacts>& facts,
               const Instant& instant) {
    const Hold hold(lock);
    return build_report(options, facts, instant, numbers);
  }
  static SavedReference saved_reference(const NamedTensors& tensors, const NamedTensorFacts& facts);
  WhyAlive why(const NamedTensors& tensors, const NamedTensorFacts& target,
               const at::Tensor* tensor, const Instant& instant);
};

void MemReporter::Impl::add_graph(const at::Tensor& loss) {
  WeakTensor weak(loss.getIntrusivePtr());
  std::vector<WeakTensor> dropped;
  const Hold hold(lock);
  if (graphs.size() >= prune_graphs_at) prune_graphs(dropped);
  if (graphs.size() == graphs.capacity()) graphs.reserve(std::max<size_t>(16, 2 * graphs.size()));
  if (graph_roots.insert(loss.unsafeGetTensorImpl()).second) graphs.push_back(std::move(weak));
}

// Moves what has ended to `dropped`, to be let go of without the lock.
void MemReporter::Impl::prune_graphs(std::vector<WeakTensor>& dropped) {
  const auto ended = std::stable_partition(graphs.begin(), graphs.end(),
                                           [](const WeakTensor& weak) { return !weak.expired(); });
  dropped.reserve(static_cast<size_t>(graphs.end() - ended));
  for (auto weak = ended; weak != graphs.end(); ++weak) {
    graph_roots.erase(weak->_unsafe_get_target());
    dropped.push_back(std::move(*weak));
  }
  graphs.erase(ended, graphs.end());
  // Next when there may be as many dead graphs as live ones, so that adding stays cheap on average.
  prune_graphs_at = std::max<size_t>(64, 2 * graphs.size());
}

std::vector<at::Tensor> MemReporter::Impl::living_graphs() {
  std::vector<at::Tensor> roots;
  std::vector<WeakTensor> dropped;
  const Hold hold(lock);
  prune_graphs(dropped);
  roots.reserve(graphs.size());
  for (const WeakTensor& weak : graphs) {
    if (auto held = weak.lock()) roots.emplace_back(std::move(held));
  }
  return roots;
}

MemReporter::Impl::NamedTensors MemReporter::Impl::read_named_tensors(bool training_paused) {
  const ScopedTrainingPaused paused(training_paused);
  NamedTensors result;
  std::vector<UnreadGradient> unread;
  result.named = names.read(&unread);
  const auto pinned = pinned_statistics();
  result.may_be_pinned = pinned.has_value() && pinned->reserved_bytes.current > 0;
  result.facts.reserve(result.named.size());
  for (const NamedTensor& named : result.named) {
    for_each_part(named.tensor, [&](const char* part, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      result.facts.push_back(facts_of(part[0] == '\0' ? named.name : named.name + "." + part,
                                      named.role, tensor, result.may_be_pinned));
      NamedTensorFacts& facts = result.facts.back();
      facts.module = named.module;
      facts.tied = named.tied;
      if (named.role != Role::kParameter) return;
      const bool requires_grad = named.tensor.requires_grad();
      if (requires_grad || !named.is_part) facts.requires_grad = requires_grad;
    });
  }
  for (UnreadGradient& gradient : unread) {
    NamedTensorFacts facts;
    facts.name = std::move(gradient.name);
    facts.role = Role::kGradient;
    facts.module = std::move(gradient.module);
    facts.device = without_needless_index(gradient.device);
    facts.unread = true;
    result.facts.push_back(std::move(facts));
  }
  result.roots = living_graphs();
  for (size_t graph = 0; graph < result.roots.size(); ++graph) {
    try {
      for (const SavedTensorRow& row : memledger::saved_for_backward(result.roots[graph]).rows())
        result.facts.push_back(facts_of(row, graph));
    } catch (const c10::Error&) {
      // Backward has freed the graph.
    }
  }
  return result;
}

// How the graph of one saved tensor leads to it.
SavedReference MemReporter::Impl::saved_reference(const NamedTensors& tensors,
                                                  const NamedTensorFacts& facts) {
  SavedReference saved;
  saved.slot = facts.name;
  saved.root = "graph " + std::to_string(facts.graph + 1);
  const at::Tensor& root = tensors.roots[facts.graph];
  for (const NamedTensorFacts& other : tensors.facts) {
    if (other.role != Role::kSaved &&
        other.identity == reinterpret_cast<uintptr_t>(root.unsafeGetTensorImpl())) {
      saved.root = other.name;
      break;
    }
  }
  saved.path = path_to_node(
      root, {facts.name.substr(0, facts.name.find('.')), facts.node_sequence, facts.node_thread});
  return saved;
}

// `tensor` is null where only the storage is known.
WhyAlive MemReporter::Impl::why(const NamedTensors& tensors, const NamedTensorFacts& target,
                                const at::Tensor* tensor, const Instant& instant) {
  WhyAlive why;
  why.device = target.device;
  std::vector<NamedTensorFacts> on_storage;
  for (const NamedTensorFacts& facts : tensors.facts) {
    if (is_same_storage(facts, target)) on_storage.push_back(facts);
  }

  ReportOptions options;
  options.device = target.device;
  std::vector<NamedTensorFacts> all_facts = tensors.facts;
  if (on_storage.empty() && target.storage_id == 0) all_facts.push_back(target);
  const Report report = build(options, all_facts, instant);
  for (const DeviceReport& device : report.devices) {
    for (const ReportRow& row : device.rows) {
      if (row.kind == RowKind::kShared || row.storage_id != target.storage_id) continue;
      const std::string& name = on_storage.empty() ? target.name : on_storage.front().name;
      if (row.storage_id != 0 || row.name == name || row.name.rfind(name + "+", 0) == 0)
        why.row = row;
    }
  }

  // Tensor objects that names and slots lead to.
  std::unordered_set<uintptr_t> known;
  size_t nameless_slots = 0;
  for (const NamedTensorFacts& facts : on_storage) {
    if (facts.identity == 0) {
      ++nameless_slots;
    } else {
      known.insert(facts.identity);
    }
    if (facts.references.has_value()) why.storage_references = facts.references;
    if (facts.role != Role::kSaved) {
      why.names.push_back({facts.name, facts.role,
                           tensor != nullptr && facts.identity == target.identity,
                           facts.offset_bytes, facts.extent_bytes});
      continue;
    }
    why.saved.push_back(saved_reference(tensors, facts));
  }
  if (tensor != nullptr) {
    why.storage_references = target.references;
    auto references = static_cast<int64_t>(tensor->use_count());
    const auto is_it = [&](const at::Tensor& other) {
      return other.unsafeGetTensorImpl() == tensor->unsafeGetTensorImpl();
    };
    for (const NamedTensor& named : tensors.named) references -= is_it(named.tensor) ? 1 : 0;
    for (const at::Tensor& root : tensors.roots) references -= is_it(root) ? 1 : 0;
    why.tensor_references = references;
  }
  if (why.storage_references.has_value()) {
    const auto found = static_cast<int64_t>(known.size() + nameless_slots);
    why.held_by_you = std::max<int64_t>(0, *why.storage_references - found);
    why.known_tensors = found + (tensor != nullptr && known.count(target.identity) == 0 ? 1 : 0);
  }
  return why;
}

MemReporter::MemReporter() : impl_(std::make_unique<Impl>()) {}
MemReporter::MemReporter(const torch::nn::Module& module) : MemReporter() {
  add_module("", module);
}
MemReporter::MemReporter(const torch::jit::Module& module) : MemReporter() {
  add_module("", module);
}
MemReporter::~MemReporter() = default;
MemReporter::MemReporter(MemReporter&&) noexcept = default;
MemReporter& MemReporter::operator=(MemReporter&&) noexcept = default;

MemReporter& MemReporter::add_module(std::string prefix, const torch::nn::Module& module) {
  impl_->names.add_module(std::move(prefix), module);
  return *this;
}

MemReporter& MemReporter::add_module(std::string prefix, const torch::jit::Module& module) {
  impl_->names.add_module(std::move(prefix), module);
  return *this;
}

MemReporter& MemReporter::add_optimizer(const torch::optim::Optimizer& optimizer) {
  impl_->names.add_optimizer(optimizer);
  return *this;
}

MemReporter& MemReporter::add_tensor(std::string name, const at::Tensor& tensor) {
  impl_->names.add_tensor(std::move(name), tensor);
  return *this;
}

MemReporter& MemReporter::add_input(std::string name, const at::Tensor& tensor) {
  impl_->names.add_input(std::move(name), tensor);
  return *this;
}

MemReporter& MemReporter::add_state(std::string name, const at::Tensor& tensor) {
  impl_->names.add_state(std::move(name), tensor);
  return *this;
}

SavedTensors MemReporter::saved_for_backward(const at::Tensor& loss,
                                             SavedTensorOptions options) const {
  const ScopedTrainingPaused paused(options.training_paused);
  for (NamedTensor& named : impl_->names.read()) {
    if (named.role == Role::kParameter)
      options.parameters.emplace_back(std::move(named.name), std::move(named.tensor));
    if (named.role == Role::kBuffer) options.buffers.push_back(std::move(named.tensor));
    if (named.role == Role::kInput) options.inputs.push_back(std::move(named.tensor));
  }
  return memledger::saved_for_backward(loss, options);
}

MemReporter& MemReporter::add_graph(const at::Tensor& loss) {
  TORCH_CHECK(loss.defined(), "memledger: add_graph() was given an undefined tensor");
  impl_->add_graph(loss);
  return *this;
}

MemReporter& MemReporter::remove(std::string_view name) {
  impl_->names.remove(name);
  return *this;
}

MemReporter& MemReporter::remove_optimizer(const torch::optim::Optimizer& optimizer) {
  impl_->names.remove_optimizer(optimizer);
  return *this;
}

Report MemReporter::collect(ReportOptions options) const {
  Impl::NamedTensors tensors = impl_->read_named_tensors(options.training_paused);
  tensors.release_gradients();
  const Registry& registry = Registry::global();
  const Instant instant = look_at_registry_and_allocators(registry);
  tensors.release();
  const auto alive = ids_alive(instant.snapshot);
  Report report;
  {
    const Impl::Hold hold(impl_->lock);
    impl_->numbers.forget_all_but(alive);
    report = build_report(options, tensors.facts, instant, impl_->numbers);
  }
  add_process(report, registry);
  return report;
}

Report MemReporter::collect_peak(c10::Device device, ReportOptions options,
                                 const std::string& label) const {
  Impl::NamedTensors tensors = impl_->read_named_tensors(options.training_paused);
  add_names_of_the_ended(tensors.facts);
  const Registry& registry = Registry::global();
  Instant instant = instant_of(registry);
  instant.of_peak = true;
  instant.snapshot =
      label.empty() ? registry.peak_snapshot(device) : registry.peak_snapshot(device, label);
  tensors.release();
  options.device = std::nullopt;
  Report report = impl_->build(options, tensors.facts, instant);
  add_process(report, registry);
  return report;
}

Report MemReporter::collect_at(const Snapshot& snapshot, ReportOptions options) const {
  Impl::NamedTensors tensors = impl_->read_named_tensors(options.training_paused);
  add_names_of_the_ended(tensors.facts);
  const Registry& registry = Registry::global();
  Instant instant = instant_of(registry);
  instant.of_past = true;
  instant.snapshot = snapshot;
  tensors.release();
  options.device = std::nullopt;
  Report report = impl_->build(options, tensors.facts, instant);
  report.health = registry.health();
  return report;
}

WhyAlive MemReporter::why(const at::Tensor& tensor) const {
  TORCH_CHECK(tensor.defined(), "memledger: why() was given an undefined tensor");
  const Impl::NamedTensors tensors = impl_->read_named_tensors();
  // The largest part of a sparse tensor stands for it.
  std::optional<NamedTensorFacts> target;
  for_each_part(tensor, [&](const char* part, const at::Tensor& dense) {
    if (!dense.defined()) return;
    NamedTensorFacts facts = facts_of(part[0] == '\0' ? "the tensor" : part, Role::kTensor, dense,
                                      tensors.may_be_pinned);
    if (!target.has_value() || facts.storage_bytes > target->storage_bytes)
      target = std::move(facts);
  });
  const bool is_its_own_part =
      target.has_value() &&
      target->identity == reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl());
  if (!target.has_value()) target = facts_of("the tensor", Role::kTensor, tensor, false);
  WhyAlive why = impl_->why(tensors, *target, is_its_own_part ? &tensor : nullptr,
                            look_at_registry_and_allocators(Registry::global()));
  return why;
}

WhyAlive MemReporter::why(std::string_view name) const {
  const Impl::NamedTensors tensors = impl_->read_named_tensors();
  const Instant instant = look_at_registry_and_allocators(Registry::global());
  // a+b: either name leads there.
  const std::string_view first = name.substr(0, name.find('+'));
  for (const NamedTensorFacts& facts : tensors.facts) {
    if (facts.name != name && facts.name != first) continue;
    const at::Tensor* tensor = nullptr;
    for (const NamedTensor& named : tensors.named) {
      if (reinterpret_cast<uintptr_t>(named.tensor.unsafeGetTensorImpl()) == facts.identity)
        tensor = &named.tensor;
    }
    return impl_->why(tensors, facts, tensor, instant);
  }
  constexpr std::string_view kAnonymous = "Tensor";
  if (name.substr(0, kAnonymous.size()) == kAnonymous) {
    const std::string digits(name.substr(kAnonymous.size()));
    if (!digits.empty() && digits.size() < 19 &&
        digits.find_first_not_of("0123456789") == std::string::npos) {
      std::optional<uint64_t> id;
      {
        const Impl::Hold hold(impl_->lock);
        id = impl_->numbers.find(std::stoull(digits));
      }
      const StorageInfo* const storage = id.has_value() ? instant.snapshot.find(*id) : nullptr;
      if (storage != nullptr) {
        NamedTensorFacts target;
        target.storage_id = storage->id;
        target.device = storage->device;
        return impl_->why(tensors, target, nullptr, instant);
      }
    }
  }
  TORCH_CHECK(false, "memledger: no living tensor is called \"", name,
              "\"; use a name from this reporter's last report");
}

void MemReporter::report(bool verbose, std::optional<c10::Device> device) const {
  report(std::cout, verbose, device);
}

void MemReporter::report(std::ostream& out, bool verbose, std::optional<c10::Device> device) const {
  ReportOptions options;
  options.verbose = verbose;
  options.device = device;
  report(out, options);
}

void MemReporter::report(std::ostream& out, const ReportOptions& options) const {
  out << collect(options);
}

void MemReporter::report_peak(std::ostream& out, c10::Device device) const {
  out << collect_peak(device);
}

}  // namespace memledger
