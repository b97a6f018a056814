#include "reporter/mem_reporter.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "registry/tensor_storages.h"
#include "reporter/name_book.h"

namespace memledger {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A tensor that somebody can name, as seen at one report.
struct Claim {
  std::string name;
  Role role;
  c10::Device device = c10::Device(c10::kCPU);
  uintptr_t tensor = 0;          // identity of the tensor object
  uintptr_t address = 0;         // of its storage's data; 0: none to be seen
  bool has_storage = false;
  std::optional<int64_t> storage_bytes;
  std::optional<int64_t> references;  // to the storage, ours not counted
  std::optional<std::vector<int64_t>> shape;
  std::optional<c10::ScalarType> dtype;
  int64_t offset_bytes = 0;
  int64_t extent_bytes = 0;
};

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
  claim.device = tensor_device(tensor);
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
    Registry::global().storage_id(tensor);  // adopts what was born before tracking
  }
  return claim;
}

Claim claim_of(const SavedTensorRow& row) {
  Claim claim;
  claim.name = row.node + "." + row.slot;
  claim.role = Role::kSaved;
  claim.device = row.device;
  claim.tensor = row.tensor;
  claim.has_storage = row.storage_address != 0;
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

}  // namespace

struct MemReporter::Impl {
  NameBook names;
  std::vector<WeakTensor> graphs;
  // Anonymous storages keep the number they were first shown under. Guarded, as collect() is const.
  std::mutex numbers_lock;
  std::map<uint64_t, size_t> numbers;
  size_t next_number = 0;

  Impl() { Registry::global().activate().IgnoreError(); }
  ~Impl() { Registry::global().deactivate(); }

  std::vector<Claim> claims() const;
  void number(const std::vector<uint64_t>& anonymous_by_birth, const Snapshot& snapshot);
};

std::vector<Claim> MemReporter::Impl::claims() const {
  std::vector<Claim> claims;
  for (const NamedTensor& named : names.read()) {
    for_each_part(named.tensor, [&](const char* part, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      claims.push_back(claim_of(part[0] == '\0' ? named.name : named.name + "." + part, named.role, tensor));
    });
  }
  for (const WeakTensor& weak : graphs) {
    auto held = weak.lock();
    if (!held) continue;
    try {
      for (const SavedTensorRow& row : saved_for_backward(at::Tensor(std::move(held))).rows()) claims.push_back(claim_of(row));
    } catch (const c10::Error&) {
      // No graph any more: backward has freed it.
    }
  }
  return claims;
}

void MemReporter::Impl::number(const std::vector<uint64_t>& anonymous_by_birth, const Snapshot& snapshot) {
  for (auto it = numbers.begin(); it != numbers.end();) it = snapshot.find(it->first) ? std::next(it) : numbers.erase(it);
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

MemReporter& MemReporter::add_graph(const at::Tensor& loss) {
  TORCH_CHECK(loss.defined(), "memledger: add_graph was given an undefined tensor");
  impl_->graphs.emplace_back(loss.getIntrusivePtr());
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
  const std::lock_guard<std::mutex> hold(impl_->numbers_lock);
  Report report;
  report.options = options;
  const std::vector<Claim> claims = impl_->claims();
  const Snapshot snapshot = Registry::global().snapshot();
  report.time = snapshot.time();
  report.health = Registry::global().health();
  report.unseen_before_tracking = snapshot.unseen_before_tracking();
  report.tracking_was_off = snapshot.tracking_was_off();

  // Storage → the claims on it, in order of role and registration.
  std::unordered_map<uint64_t, std::vector<const Claim*>> claims_by_storage;
  std::vector<const Claim*> elsewhere;  // no row in the registry
  for (const Claim& claim : claims) {
    const StorageInfo* storage = snapshot.find_address(claim.device, reinterpret_cast<const void*>(claim.address));
    if (storage != nullptr) {
      claims_by_storage[storage->id].push_back(&claim);
    } else {
      elsewhere.push_back(&claim);
    }
  }

  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, DeviceReport> devices;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<RowGroup>> groups;
  const auto report_of = [&](c10::Device device) -> DeviceReport& {
    DeviceReport& one = devices[{device.type(), device.index()}];
    one.device = device;
    one.bytes_by_role.resize(static_cast<size_t>(Role::kTensor) + 1);
    return one;
  };
  std::vector<uint64_t> anonymous;
  for (const DeviceInfo& info : snapshot.devices()) {
    if (!wanted(info.device, options.device)) continue;
    DeviceReport& one = report_of(info.device);
    one.counters = info.counters;
    one.allocator_bytes = info.counters.current_bytes;
    one.adopted_bytes = info.adopted_bytes;
    std::vector<RowGroup>& device_groups = groups[{info.device.type(), info.device.index()}];
    for (const StorageInfo& storage : snapshot.storages(info.device)) {
      RowGroup& group = device_groups.emplace_back();
      group.bytes = storage.nbytes;
      const auto found = claims_by_storage.find(storage.id);
      if (found == claims_by_storage.end()) {
        ReportRow row;
        row.anonymous = true;
        row.role = storage.temporary ? Role::kTemporary : Role::kTensor;
        row.dtype = storage.dtype;
        if (storage.dtype.has_value()) row.shape = storage.shape;
        row.extent_bytes = storage.nbytes;
        row.nbytes = storage.nbytes;
        add_birthplace(row, storage);
        group.rows.push_back(std::move(row));
        anonymous.push_back(storage.id);
        continue;
      }
      // One row per tensor object; the same object under two names is a+b.
      std::vector<const Claim*> on_it = found->second;
      std::stable_sort(on_it.begin(), on_it.end(), [](const Claim* a, const Claim* b) { return a->role < b->role; });
      std::unordered_map<uintptr_t, size_t> row_of_tensor;
      std::optional<int64_t> references;
      for (const Claim* claim : on_it) {
        if (claim->references.has_value()) references = claim->references;
        const auto [place, is_new] = row_of_tensor.try_emplace(claim->tensor, group.rows.size());
        if (!is_new && claim->tensor != 0) {
          std::string& name = group.rows[place->second].name;
          if (claim->role != Role::kSaved) name += "+" + claim->name;
          continue;
        }
        ReportRow row = row_of(*claim, group.rows.empty() ? RowKind::kStorage : RowKind::kShared);
        row.nbytes = group.rows.empty() ? storage.nbytes : 0;
        add_birthplace(row, storage);
        group.rows.push_back(std::move(row));
      }
      for (size_t i = 1; i < group.rows.size(); ++i) group.rows[i].owner = group.rows[0].name;
      if (references.has_value()) {
        group.rows[0].more_references = std::max<int64_t>(0, *references - static_cast<int64_t>(row_of_tensor.size()));
      }
    }
  }
  for (const Claim* claim : elsewhere) {
    if (!wanted(claim->device, options.device)) continue;
    DeviceReport& one = report_of(claim->device);
    ReportRow row = row_of(*claim, RowKind::kExternal);
    if (!claim->has_storage || !claim->storage_bytes.has_value()) {
      row.kind = claim->shape.has_value() && elements_of(row) == 0 ? RowKind::kStorage : RowKind::kUnknown;
      if (row.kind == RowKind::kStorage) row.nbytes = 0;
    } else if (*claim->storage_bytes == 0) {
      row.kind = RowKind::kStorage;
      row.nbytes = 0;
    } else {
      row.nbytes = 0;
      row.external_bytes = *claim->storage_bytes;
      one.external_bytes += row.external_bytes;
    }
    RowGroup group;
    group.rows.push_back(std::move(row));
    groups[{claim->device.type(), claim->device.index()}].push_back(std::move(group));
  }

  std::sort(anonymous.begin(), anonymous.end());
  impl_->number(anonymous, snapshot);
  for (auto& [key, one] : devices) {
    std::vector<RowGroup>& device_groups = groups[key];
    for (RowGroup& group : device_groups) {
      for (ReportRow& row : group.rows) {
        if (row.anonymous) row.name = "Tensor" + std::to_string(impl_->numbers.at(row.storage_id));
      }
    }
    sort_groups(device_groups, options.sort);
    for (RowGroup& group : device_groups) {
      for (ReportRow& row : group.rows) {
        one.total_bytes += row.nbytes.value_or(0);
        one.elements += elements_of(row);
        one.bytes_by_role[static_cast<size_t>(row.role)] += row.nbytes.value_or(0);
        one.rows.push_back(std::move(row));
      }
    }
    one.unexplained_bytes = one.allocator_bytes - one.total_bytes;
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

}  // namespace memledger
