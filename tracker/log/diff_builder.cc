#include "tracker/log/diff_builder.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"

namespace memledger {
namespace {

// Points into Changes and names, which outlive it.
struct GroupKey {
  char sign;
  StorageKind kind;
  Role role;
  int dtype;  // -1: unknown
  bool has_shape;
  c10::IntArrayRef shape;
  bool named;
  bool adopted;
  std::string_view maker;  // the operator, else the backward node
  std::string_view label;

  friend bool operator==(const GroupKey& a, const GroupKey& b) {
    return a.sign == b.sign && a.kind == b.kind && a.role == b.role && a.dtype == b.dtype &&
           a.named == b.named && a.adopted == b.adopted && a.maker == b.maker &&
           a.label == b.label && a.has_shape == b.has_shape && a.shape == b.shape;
  }
  template <typename H>
  friend H AbslHashValue(H state, const GroupKey& key) {
    state = H::combine(std::move(state), key.sign, key.kind, key.role, key.dtype, key.named,
                       key.adopted, key.maker, key.label, key.has_shape);
    return H::combine_contiguous(std::move(state), key.shape.data(), key.shape.size());
  }
};

std::string_view maker_of(std::string_view op, std::string_view autograd_node) {
  return op.empty() ? autograd_node : op;
}

void keep_if_equal(std::string& common, std::string_view other) {
  if (common != other) common.clear();
}

// What operators have shown of a storage that nobody has named.
Role role_without_name(const StorageInfo& storage) {
  if (storage.used_as_parameter) return Role::kParameter;
  if (storage.is_gradient) return Role::kGradient;
  return storage.temporary ? Role::kTemporary : Role::kTensor;
}

// Whether dtype and shape are those of the named tensor, not those that the registry noted.
bool looks_are_of_name(const StorageInfo& storage, const StorageName* name) {
  return name != nullptr && (name->whole || !storage.dtype.has_value());
}

class Grouping {
 public:
  explicit Grouping(const StorageNames& names) : names_(names) {}

  void add(char sign, const StorageInfo& storage) {
    const auto known = names_.find(storage.id);
    const StorageName* const name = known == names_.end() ? nullptr : &known->second;
    const bool by_name = looks_are_of_name(storage, name);
    const std::optional<c10::ScalarType> dtype = by_name ? name->dtype : storage.dtype;

    GroupKey key;
    key.has_shape = by_name ? name->shape.has_value() : dtype.has_value();
    if (key.has_shape)
      key.shape = by_name ? c10::IntArrayRef(*name->shape) : c10::IntArrayRef(storage.shape);
    key.sign = sign;
    // Scratch that is still alive may be a tensor that cannot be looked into: it counts as one.
    key.kind = storage.kind == StorageKind::kScratch ? StorageKind::kTensor : storage.kind;
    key.role = name != nullptr ? name->role : role_without_name(storage);
    key.dtype = dtype.has_value() ? static_cast<int>(*dtype) : -1;
    key.named = name != nullptr;
    key.adopted = storage.adopted && (sign == '+' || name == nullptr);
    if (name == nullptr) {
      key.maker = maker_of(storage.op, storage.autograd_node);
      key.label = storage.label;
    }

    const auto [group, is_new] = groups_.try_emplace(key, rows_.size());
    const size_t index = group->second;
    if (is_new) {
      DiffRow row;
      row.sign = sign;
      if (key.has_shape) row.shape.emplace(key.shape.begin(), key.shape.end());
      row.dtype = dtype;
      row.role = key.role;
      row.kind = key.kind;
      row.op = storage.op;
      row.autograd_node = storage.autograd_node;
      row.label = storage.label;
      row.adopted = key.adopted;
      rows_.push_back(std::move(row));
    }
    DiffRow& row = rows_[index];
    ++row.count;
    row.bytes += storage.nbytes;
    keep_if_equal(row.op, storage.op);
    keep_if_equal(row.autograd_node, storage.autograd_node);
    keep_if_equal(row.label, storage.label);
    if (name != nullptr) row.names.push_back(name->name);
  }

  std::vector<DiffRow> sorted() && {
    std::stable_sort(rows_.begin(), rows_.end(), [](const DiffRow& a, const DiffRow& b) {
      // '+' is before '-' in ASCII.
      if (a.sign != b.sign) return a.sign < b.sign;
      if (a.bytes != b.bytes) return a.bytes > b.bytes;
      const std::string_view a_maker = maker_of(a.op, a.autograd_node);
      const std::string_view b_maker = maker_of(b.op, b.autograd_node);
      return std::tie(a.shape, a.kind, a.role, a.dtype, a.adopted, a.names, a_maker, a.label) <
             std::tie(b.shape, b.kind, b.role, b.dtype, b.adopted, b.names, b_maker, b.label);
    });
    return std::move(rows_);
  }

 private:
  const StorageNames& names_;
  std::vector<DiffRow> rows_;
  std::unordered_map<GroupKey, size_t, absl::Hash<GroupKey>> groups_;
};

std::vector<const StorageInfo*> by_birth(const std::vector<StorageInfo>& storages,
                                         c10::Device device) {
  std::vector<const StorageInfo*> result;
  result.reserve(storages.size());
  for (const StorageInfo& storage : storages) {
    if (is_same_device(storage.device, device)) result.push_back(&storage);
  }
  const auto older = [](const StorageInfo* a, const StorageInfo* b) { return a->id < b->id; };
  if (!std::is_sorted(result.begin(), result.end(), older))
    std::sort(result.begin(), result.end(), older);
  return result;
}

}  // namespace

bool is_same_device(c10::Device a, c10::Device b) {
  return a.type() == b.type() && (a.is_cpu() || a.is_meta() || a.index() == b.index());
}

TensorLooks looks_of(const StorageInfo& storage, const StorageName* name) {
  if (looks_are_of_name(storage, name)) return {name->dtype, name->shape};
  if (!storage.dtype.has_value()) return {};
  return {storage.dtype, storage.shape};
}

SnapshotDiff make_snapshot_diff(const Changes& changes, c10::Device device,
                                const StorageNames& names) {
  SnapshotDiff diff;
  diff.device = device;
  diff.time = changes.time;
  diff.from_snapshot = changes.from_snapshot;
  diff.unseen_before_tracking = changes.unseen_before_tracking;
  diff.tracking_was_off = changes.tracking_was_off;
  for (const DeviceInfo& info : changes.devices) {
    if (!is_same_device(info.device, device)) continue;
    diff.tensor_bytes = info.tensor_bytes();
    diff.allocated_bytes = info.counters.current_bytes;
  }
  Grouping grouping(names);
  for (const StorageInfo* storage : by_birth(changes.born, device)) grouping.add('+', *storage);
  for (const StorageInfo* storage : by_birth(changes.died, device)) grouping.add('-', *storage);
  diff.rows = std::move(grouping).sorted();
  return diff;
}

}  // namespace memledger
