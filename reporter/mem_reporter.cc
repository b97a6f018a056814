#include "reporter/mem_reporter.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "absl/status/status.h"
#include "graph/saved_tensors.h"
#include "registry/device_statistics.h"
#include "registry/registry.h"
#include "registry/stacks.h"
#include "registry/tensor_storages.h"
#include "reporter/device_account.h"
#include "reporter/name_book.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A tensor that somebody can name, as seen at one report.
struct Claim {
  std::string name;
  Role role;
  c10::Device device = c10::Device(c10::kCPU);
  uintptr_t tensor = 0;     // identity of the tensor object; 0: not known
  uint64_t storage_id = 0;  // 0: not in the registry
  uintptr_t address = 0;    // of its storage's data; 0: none to be seen
  bool has_storage = false;
  std::optional<int64_t> storage_bytes;
  std::optional<int64_t> references;  // to the storage, ours not counted
  std::optional<std::vector<int64_t>> shape;
  std::optional<c10::ScalarType> dtype;
  int64_t offset_bytes = 0;
  int64_t extent_bytes = 0;
};

// `cpu` and `cpu:0` are one device.
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

int64_t offset_bytes_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.layout() != c10::kStrided || impl->is_nested() || impl->has_symbolic_sizes_strides()) return 0;
  try {
    return tensor.storage_offset() * static_cast<int64_t>(impl->itemsize());
  } catch (const c10::Error&) {
    return 0;
  }
}

Claim claim_of(std::string name, Role role, const at::Tensor& tensor) {
  Claim claim;
  claim.name = std::move(name);
  claim.role = role;
  claim.device = without_needless_index(tensor_device(tensor));
  claim.tensor = reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl());
  claim.shape = shape_of(tensor);
  claim.dtype = c10::typeMetaToScalarType(tensor.dtype());
  claim.offset_bytes = offset_bytes_of(tensor);
  claim.extent_bytes = extent_bytes_of(tensor).value_or(0);
  if (const auto storage = storage_of(tensor)) {
    claim.has_storage = true;
    claim.address = storage->key.address;
    claim.storage_bytes = storage->bytes;
    claim.references = static_cast<int64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().use_count());
    claim.storage_id = Registry::global().storage_id(tensor);  // adopts what was born before tracking
  }
  return claim;
}

Claim claim_of(const SavedTensorRow& row) {
  Claim claim;
  claim.name = row.node + "." + row.slot;
  claim.role = Role::kSaved;
  claim.device = without_needless_index(row.device);
  claim.tensor = row.tensor;
  claim.has_storage = row.storage_address != 0;
  claim.storage_id = row.storage_id;
  claim.address = row.storage_address;
  claim.storage_bytes = row.storage_bytes;
  claim.shape = row.shape;
  claim.dtype = row.dtype;
  claim.extent_bytes = row.extent_bytes.value_or(0);
  return claim;
}

bool wanted(c10::Device device, const std::optional<c10::Device>& filter) {
  if (!filter.has_value()) return true;
  return filter->type() == device.type() && (!filter->has_index() || !device.has_index() || filter->index() == device.index());
}

ReportRow row_of(const Claim& claim, RowKind kind) {
  ReportRow row;
  row.kind = kind;
  row.name = claim.name;
  row.role = claim.role;
  row.shape = claim.shape;
  row.dtype = claim.dtype;
  row.storage_offset_bytes = claim.offset_bytes;
  row.extent_bytes = claim.extent_bytes;
  return row;
}

void add_birthplace(ReportRow& row, const StorageInfo& storage) {
  row.storage_id = storage.id;
  row.op = storage.op;
  row.autograd_node = storage.autograd_node;
  row.forward_op = storage.forward_op;
  row.forward_label = storage.forward_label;
  if (storage.stack != 0) row.where = to_string(program_frame(storage.stack));
  row.label = storage.label;
  row.phase = storage.phase;
  row.phase_inferred = storage.phase_inferred;
  row.adopted = storage.adopted;
}

int64_t elements_of(const ReportRow& row) {
  if (!row.shape.has_value()) return 0;
  int64_t elements = 1;
  for (const int64_t size : *row.shape) elements *= std::max<int64_t>(size, 0);
  return elements;
}

// Sharing rows stay behind the row they point at.
struct RowGroup {
  std::vector<ReportRow> rows;
  int64_t bytes = 0;
};

// The rows of one storage: one per tensor object, the same object under two names is a+b. The first is the one whose bytes the
// caller counts; it has the storage's role, and the user's name rather than a graph's slot. `least` is the role if no claim has a
// better one.
RowGroup group_of(std::vector<const Claim*> claims, Role least) {
  std::stable_sort(claims.begin(), claims.end(), [](const Claim* a, const Claim* b) {
    return std::make_pair(a->role == Role::kSaved, a->role) < std::make_pair(b->role == Role::kSaved, b->role);
  });
  struct Place {
    size_t row;
    std::vector<std::string_view> names;
  };
  std::unordered_map<uintptr_t, Place> place_of_tensor;
  std::optional<int64_t> references;
  Role role = least;
  RowGroup group;
  for (const Claim* claim : claims) {
    role = std::min(role, claim->role);
    if (claim->references.has_value()) references = claim->references;
    const auto [found, is_new] = place_of_tensor.try_emplace(claim->tensor, Place{group.rows.size(), {}});
    Place& place = found->second;
    if (!is_new && claim->tensor != 0) {
      if (claim->role == Role::kSaved || std::find(place.names.begin(), place.names.end(), claim->name) != place.names.end())
        continue;
      group.rows[place.row].name += "+" + claim->name;
      place.names.push_back(claim->name);
      continue;
    }
    place.names.push_back(claim->name);
    group.rows.push_back(row_of(*claim, group.rows.empty() ? RowKind::kStorage : RowKind::kShared));
    group.rows.back().nbytes = 0;
  }
  ReportRow& counted = group.rows.front();
  counted.role = role;
  for (size_t i = 1; i < group.rows.size(); ++i) group.rows[i].owner = counted.name;
  if (references.has_value()) {
    counted.more_references = std::max<int64_t>(0, *references - static_cast<int64_t>(place_of_tensor.size()));
  }
  return group;
}

// What is known of a storage that the registry does not have.
void explain_elsewhere(ReportRow& row, const std::vector<const Claim*>& claims, bool followed) {
  std::optional<int64_t> bytes;
  bool has_storage = false;
  for (const Claim* claim : claims) {
    has_storage = has_storage || claim->has_storage;
    if (claim->storage_bytes.has_value()) bytes = std::max(bytes.value_or(0), *claim->storage_bytes);
  }
  const bool is_empty = has_storage ? bytes == 0 : row.shape.has_value() && elements_of(row) == 0;
  if (is_empty) return;
  if (claims.front()->device.is_meta()) {
    row.kind = RowKind::kMeta;
    row.claimed_bytes = bytes;
  } else if (!followed) {
    row.kind = RowKind::kNotFollowed;
    row.nbytes = std::nullopt;
    row.claimed_bytes = bytes;
  } else if (!bytes.has_value()) {
    row.kind = RowKind::kUnknown;
    row.nbytes = std::nullopt;
  } else {
    row.kind = RowKind::kExternal;
    row.external_bytes = *bytes;
  }
}

// Claims on one storage each, in order of the first claim on it.
std::vector<std::vector<const Claim*>> by_address(const std::vector<const Claim*>& claims) {
  std::vector<std::vector<const Claim*>> groups;
  // Where no storage can be seen (opaque tensors) the tensor object stands for it.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, bool, uintptr_t>, size_t> places;
  for (const Claim* claim : claims) {
    const uintptr_t identity = claim->has_storage ? claim->address : claim->tensor;
    size_t place = groups.size();
    if (identity != 0) {
      place =
          places.try_emplace({claim->device.type(), claim->device.index(), claim->has_storage, identity}, place).first->second;
    }
    if (place == groups.size()) groups.emplace_back();
    groups[place].push_back(claim);
  }
  return groups;
}

void sort_groups(std::vector<RowGroup>& groups, SortBy sort) {
  std::stable_sort(groups.begin(), groups.end(), [sort](const RowGroup& a, const RowGroup& b) {
    switch (sort) {
      case SortBy::kName:
        return a.rows[0].name < b.rows[0].name;
      case SortBy::kBirth:
        return a.rows[0].storage_id < b.rows[0].storage_id;
      case SortBy::kBytes:
        break;
    }
    return a.bytes > b.bytes;
  });
}

// Registry and allocators, at one instant where no thread allocated meanwhile. By CUDA device index.
struct Looked {
  Snapshot snapshot;
  std::map<c10::DeviceIndex, AllocatorView> views;
};

bool is_same(const std::optional<DeviceStatistics>& a, const std::optional<DeviceStatistics>& b) {
  const auto moved = [](const Statistic& s) { return std::make_tuple(s.allocated, s.freed); };
  return a.has_value() == b.has_value() && (!a.has_value() || (moved(a->allocated_bytes) == moved(b->allocated_bytes) &&
                                                               moved(a->requested_bytes) == moved(b->requested_bytes) &&
                                                               moved(a->active_bytes) == moved(b->active_bytes)));
}

Looked look_at_registry_and_allocators(const Registry& registry) {
  constexpr int kAttempts = 3;
  Looked looked;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    looked.views.clear();
    for (c10::DeviceIndex index = 0;; ++index) {
      AllocatorView view;
      view.statistics = device_statistics(c10::Device(c10::kCUDA, index));
      if (!view.statistics.has_value()) break;
      looked.views.emplace(index, std::move(view));
    }
    looked.snapshot = registry.snapshot();
    bool still = true;
    for (auto& [index, view] : looked.views) {
      const c10::Device device(c10::kCUDA, index);
      view.blocks = device_blocks(device);
      view.workspaces = library_workspaces();
      still = still && is_same(view.statistics, device_statistics(device));
    }
    if (still) break;
  }
  return looked;
}

// LibTorch's own figures of a CUDA device.
void take_figures(DeviceReport& report, const AllocatorView& view) {
  const DeviceStatistics& statistics = *view.statistics;
  if (!statistics.caching) return;
  report.allocator_bytes = statistics.allocated_bytes.current;
  report.reserved_bytes = statistics.reserved_bytes.current;
  report.cached_free_bytes = statistics.reserved_bytes.current - statistics.active_bytes.current;
  if (!view.blocks.has_value()) return;
  report.requested_bytes = statistics.requested_bytes.current;
  report.awaited_bytes = view.blocks->awaiting_free_requested_bytes;
  report.largest_free_block = view.blocks->largest_free_block;
}

void explain(DeviceReport& report) {
  int64_t requested = report.total_bytes;
  int64_t beyond = 0;
  for (const ReportItem& item : report.items) {
    const bool was_requested = item.kind < ReportItemKind::kRounding;
    (was_requested ? requested : beyond) += item.bytes;
  }
  if (report.allocator_bytes.has_value()) report.unexplained_bytes = *report.allocator_bytes - requested - beyond;
  if (report.requested_bytes.has_value()) {
    report.unexplained_requested_bytes = *report.requested_bytes - requested - report.awaited_bytes;
  }
}

}  // namespace

struct MemReporter::Impl {
  // Claims, and the tensors they were read from: while these live no storage of theirs ends, and no other takes its place.
  struct Claims {
    std::vector<Claim> claims;
    std::vector<NamedTensor> named;
    std::vector<at::Tensor> roots;

    void release() {
      named.clear();
      roots.clear();
    }
  };

  NameBook names;
  std::vector<WeakTensor> graphs;
  std::unordered_set<const c10::TensorImpl*>
      graph_roots;  // of `graphs`, whose weak references keep the addresses from being reused
  size_t prune_graphs_at = 64;
  // Anonymous storages keep the number they were first shown under. Guarded, as collect() is const.
  std::mutex collect_lock;
  std::map<uint64_t, size_t> numbers;
  size_t next_number = 0;
  bool activated = false;  // and so has to be deactivated

  Impl() {
    const absl::Status status = Registry::global().activate();
    activated = status.ok() || status.code() == absl::StatusCode::kResourceExhausted;
  }
  ~Impl() {
    if (activated) Registry::global().deactivate();
  }

  void add_graph(const at::Tensor& loss);
  void prune_graphs();
  Claims read_claims();
  void number(const std::vector<uint64_t>& anonymous_by_birth);
  void forget_numbers(const Snapshot& alive);
  Report make_report(ReportOptions options, const std::vector<Claim>& claims, const Looked& looked, bool of_peak);
};

void MemReporter::Impl::add_graph(const at::Tensor& loss) {
  if (graphs.size() >= prune_graphs_at) prune_graphs();
  if (graph_roots.insert(loss.unsafeGetTensorImpl()).second) graphs.emplace_back(loss.getIntrusivePtr());
}

void MemReporter::Impl::prune_graphs() {
  const auto is_dead = [this](const WeakTensor& weak) {
    if (!weak.expired()) return false;
    graph_roots.erase(weak._unsafe_get_target());
    return true;
  };
  graphs.erase(std::remove_if(graphs.begin(), graphs.end(), is_dead), graphs.end());
  // As often as there may be as many dead ones as live ones, so that adding stays cheap on average.
  prune_graphs_at = std::max<size_t>(64, 2 * graphs.size());
}

MemReporter::Impl::Claims MemReporter::Impl::read_claims() {
  Claims result;
  result.named = names.read();
  for (const NamedTensor& named : result.named) {
    for_each_part(named.tensor, [&](const char* part, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      result.claims.push_back(claim_of(part[0] == '\0' ? named.name : named.name + "." + part, named.role, tensor));
    });
  }
  prune_graphs();
  for (const WeakTensor& weak : graphs) {
    auto held = weak.lock();
    if (!held) continue;
    result.roots.emplace_back(std::move(held));
    try {
      for (const SavedTensorRow& row : memledger::saved_for_backward(result.roots.back()).rows()) result.claims.push_back(claim_of(row));
    } catch (const c10::Error&) {
      // No graph any more: backward has freed it.
    }
  }
  return result;
}

void MemReporter::Impl::forget_numbers(const Snapshot& alive) {
  for (auto it = numbers.begin(); it != numbers.end();) it = alive.find(it->first) ? std::next(it) : numbers.erase(it);
}

void MemReporter::Impl::number(const std::vector<uint64_t>& anonymous_by_birth) {
  for (const uint64_t id : anonymous_by_birth) {
    if (numbers.try_emplace(id, next_number).second) ++next_number;
  }
}

MemReporter::MemReporter() : impl_(std::make_unique<Impl>()) {}
MemReporter::MemReporter(const torch::nn::Module& module) : MemReporter() { add_module("", module); }
MemReporter::~MemReporter() = default;
MemReporter::MemReporter(MemReporter&&) noexcept = default;
MemReporter& MemReporter::operator=(MemReporter&&) noexcept = default;

MemReporter& MemReporter::add_module(std::string prefix, const torch::nn::Module& module) {
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

SavedTensors MemReporter::saved_for_backward(const at::Tensor& loss, SavedTensorOptions options) const {
  {
    const std::lock_guard<std::mutex> hold(impl_->collect_lock);
    for (NamedTensor& named : impl_->names.read()) {
      if (named.role == Role::kParameter) options.parameters.emplace_back(std::move(named.name), std::move(named.tensor));
      if (named.role == Role::kBuffer) options.buffers.push_back(std::move(named.tensor));
      if (named.role == Role::kInput) options.inputs.push_back(std::move(named.tensor));
    }
  }
  return memledger::saved_for_backward(loss, options);
}

MemReporter& MemReporter::add_graph(const at::Tensor& loss) {
  TORCH_CHECK(loss.defined(), "memledger: add_graph was given an undefined tensor");
  impl_->add_graph(loss);
  return *this;
}

MemReporter& MemReporter::remove(std::string_view name) {
  impl_->names.remove(name);
  return *this;
}

MemReporter& MemReporter::remove(const torch::optim::Optimizer& optimizer) {
  impl_->names.remove_optimizer(optimizer);
  return *this;
}

Report MemReporter::collect(ReportOptions options) const {
  const std::lock_guard<std::mutex> hold(impl_->collect_lock);
  Impl::Claims claimed = impl_->read_claims();
  const Looked looked = look_at_registry_and_allocators(Registry::global());
  claimed.release();
  impl_->forget_numbers(looked.snapshot);
  return impl_->make_report(options, claimed.claims, looked, /*of_peak=*/false);
}

Report MemReporter::collect_peak(c10::Device device, ReportOptions options, const std::string& label) const {
  const std::lock_guard<std::mutex> hold(impl_->collect_lock);
  Impl::Claims claimed = impl_->read_claims();
  const Registry& registry = Registry::global();
  Looked looked;
  looked.snapshot = label.empty() ? registry.peak_snapshot(device) : registry.peak_snapshot(device, label);
  claimed.release();
  options.device = std::nullopt;
  return impl_->make_report(options, claimed.claims, looked, /*of_peak=*/true);
}

Report MemReporter::Impl::make_report(ReportOptions options, const std::vector<Claim>& claims, const Looked& looked,
                                      bool of_peak) {
  Report report;
  report.options = options;
  report.of_peak = of_peak;
  const Registry& registry = Registry::global();
  const bool active = registry.active();
  const Snapshot& snapshot = looked.snapshot;
  const std::map<c10::DeviceIndex, AllocatorView>& views = looked.views;
  report.complete = snapshot.complete();
  report.time = snapshot.time();
  report.health = registry.health();
  report.unseen_before_tracking = snapshot.unseen_before_tracking();
  report.tracking_was_off = snapshot.tracking_was_off();
  if (const auto pinned = pinned_statistics()) {
    // Before 2.15 LibTorch's figure can exceed what is there.
    report.pinned_in_use_bytes = std::min(pinned->in_use_bytes.current, pinned->reserved_bytes.current);
    report.pinned_reserved_bytes = pinned->reserved_bytes.current;
  }
  report.modelled_workspaces = modelled_workspaces();

  // Storage → the claims on it, in order of registration. By id, as an address may belong to another storage by now.
  std::unordered_map<uint64_t, std::vector<const Claim*>> claims_by_storage;
  std::vector<const Claim*> elsewhere;  // no row in the registry
  for (const Claim& claim : claims) {
    if (claim.storage_id == 0) {
      if (!of_peak) elsewhere.push_back(&claim);
    } else if (snapshot.find(claim.storage_id) != nullptr) {
      claims_by_storage[claim.storage_id].push_back(&claim);
    }
    // Else it was freed before the instant of the snapshot, by a thread that runs backward, say.
  }

  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, DeviceReport> devices;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<RowGroup>> groups;
  const auto report_of = [&](c10::Device device) -> DeviceReport& {
    const auto [place, is_new] = devices.try_emplace({device.type(), device.index()});
    DeviceReport& one = place->second;
    if (!is_new) return one;
    one.device = device;
    one.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
    one.followed = active && registry.follows(device);
    for (const DeviceInfo& info : snapshot.devices()) {
      if (info.device != device) continue;
      one.followed = registry.follows(device);
      one.counters = info.counters;
      one.adopted_bytes = info.adopted_bytes;
    }
    if (one.followed) one.allocator_bytes = one.counters.current_bytes;
    if (const auto view = views.find(device.index()); device.is_cuda() && view != views.end()) take_figures(one, view->second);
    return one;
  };
  std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> seen;
  for (const DeviceInfo& info : snapshot.devices()) seen.insert({info.device.type(), info.device.index()});
  for (const auto& [index, view] : views) {
    if (view.statistics->reserved_bytes.current > 0) seen.insert({c10::kCUDA, index});
  }
  std::vector<uint64_t> anonymous;
  for (const auto& [type, index] : seen) {
    const c10::Device device(type, index);
    if (!wanted(device, options.device)) continue;
    DeviceReport& one = report_of(device);
    std::vector<RowGroup>& device_groups = groups[{type, index}];
    DeviceAccount account;
    if (const auto view = views.find(index); device.is_cuda() && view != views.end()) {
      account = account_of(device, snapshot, view->second);
      one.items = std::move(account.items);
    }
    for (const StorageInfo& storage : snapshot.storages(device)) {
      if (account.not_rows.count(storage.id) > 0) continue;
      const Role least = storage.temporary ? Role::kTemporary : Role::kTensor;
      const auto found = claims_by_storage.find(storage.id);
      if (found == claims_by_storage.end()) {
        ReportRow row;
        row.anonymous = true;
        row.role = least;
        row.dtype = storage.dtype;
        if (storage.dtype.has_value()) row.shape = storage.shape;
        row.extent_bytes = storage.nbytes;
        row.nbytes = storage.nbytes;
        add_birthplace(row, storage);
        device_groups.push_back({{std::move(row)}, storage.nbytes});
        anonymous.push_back(storage.id);
        continue;
      }
      RowGroup& group = device_groups.emplace_back(group_of(found->second, least));
      group.bytes = storage.nbytes;
      group.rows.front().nbytes = storage.nbytes;
      for (ReportRow& row : group.rows) add_birthplace(row, storage);
    }
  }
  for (const std::vector<const Claim*>& on_it : by_address(elsewhere)) {
    const c10::Device device = on_it.front()->device;
    if (!wanted(device, options.device)) continue;
    DeviceReport& one = report_of(device);
    RowGroup group = group_of(on_it, Role::kTensor);
    ReportRow& row = group.rows.front();
    explain_elsewhere(row, on_it, active && one.followed);
    one.external_bytes += row.external_bytes;
    if (row.kind == RowKind::kMeta) one.would_be_bytes += row.claimed_bytes.value_or(0);
    groups[{device.type(), device.index()}].push_back(std::move(group));
  }

  std::sort(anonymous.begin(), anonymous.end());
  number(anonymous);
  for (auto& [key, one] : devices) {
    std::vector<RowGroup>& device_groups = groups[key];
    for (RowGroup& group : device_groups) {
      for (ReportRow& row : group.rows) {
        if (row.anonymous) row.name = "Tensor" + std::to_string(numbers.at(row.storage_id));
      }
    }
    sort_groups(device_groups, options.sort);
    for (RowGroup& group : device_groups) {
      for (ReportRow& row : group.rows) {
        one.total_bytes += row.nbytes.value_or(0);
        // A slot of a graph is no tensor of the program's.
        if (row.kind != RowKind::kShared || row.role != Role::kSaved) one.elements += elements_of(row);
        one.bytes_by_role[static_cast<size_t>(row.role)] += row.nbytes.value_or(0);
        one.rows.push_back(std::move(row));
      }
    }
    explain(one);
    report.devices.push_back(std::move(one));
  }
  return report;
}

void MemReporter::report(bool verbose, std::optional<c10::Device> device) const { report(std::cout, verbose, device); }

void MemReporter::report(std::ostream& out, bool verbose, std::optional<c10::Device> device) const {
  ReportOptions options;
  options.verbose = verbose;
  options.device = device;
  report(out, options);
}

void MemReporter::report(std::ostream& out, const ReportOptions& options) const { out << collect(options); }

void MemReporter::report_peak(std::ostream& out, c10::Device device) const { out << collect_peak(device); }

}  // namespace memledger
