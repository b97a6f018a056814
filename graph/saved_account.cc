#include "graph/saved_account.h"

namespace memledger::graph_internal {

void SavedAccount::add_parameter(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.defined()) return;
  parameters_.emplace(parameter.unsafeGetTensorImpl(),
                      static_cast<int32_t>(data_.parameters.size()));
  data_.parameters.push_back(name);
  add_owner(parameter, SavedRole::kParameter);
}

void SavedAccount::add_owner(const at::Tensor& tensor, SavedRole role) {
  for_each_part(tensor, [&](const char*, const at::Tensor& part) {
    if (const auto storage = storage_of(part))
      storages_on(storage->key.device).try_emplace(storage->key.address, Counted{kNone, role});
  });
}

void SavedAccount::add_leaf(uint32_t node, const at::Tensor& leaf, const at::Tensor& gradient) {
  const auto parameter = parameters_.find(leaf.unsafeGetTensorImpl());
  data_.nodes[node].parameter =
      parameter == parameters_.end() ? CompactNode::kOtherLeaf : parameter->second;
  for_each_part(gradient, [&](const char*, const at::Tensor& part) {
    if (const auto storage = storage_of(part)) gradients_.push_back(storage->key);
  });
}

void SavedAccount::set_gradients_apart() {
  for (const StorageKey& key : gradients_) {
    const uint32_t first = first_holder_of(key);
    if (first == kNone || data_.rows[first].role != SavedRole::kActivation) continue;
    add_bytes(SavedRole::kActivation, data_.rows[first].storage_bytes, 0);
    add_bytes(SavedRole::kGradient, 0, data_.rows[first].storage_bytes);
    for (CompactRow& row : data_.rows) {
      if (row.first_holder == first) row.role = SavedRole::kGradient;
    }
  }
}

void SavedAccount::add_inferred(uint32_t node, size_t index, const StorageInfo& birth) {
  CompactRow row;
  row.slot = "inferred";
  row.slot_index = static_cast<int32_t>(index);
  row.node = node;
  row.device = birth.device;
  row.address = birth.address;
  row.storage_id = birth.id;
  row.storage_bytes = birth.nbytes;
  row.inferred = row.counted = true;
  row.first_holder = static_cast<uint32_t>(data_.rows.size());
  row.shape_begin = static_cast<uint32_t>(data_.shapes.size());
  if (birth.dtype) {
    row.dtype = *birth.dtype;
    data_.shapes.insert(data_.shapes.end(), birth.shape.begin(), birth.shape.end());
    row.rank = static_cast<int16_t>(birth.shape.size());
  }
  storages_on(birth.device).try_emplace(birth.address, Counted{row.first_holder, row.role});
  add_bytes(SavedRole::kActivation, 0, row.storage_bytes);
  data_.inferred_bytes += data_.rounded(row.storage_bytes);
  data_.rows.push_back(row);
}

void SavedAccount::add_unknown(uint32_t node) {
  CompactRow row;
  row.slot = "captures";
  row.node = node;
  row.device_known = false;
  row.first_holder = static_cast<uint32_t>(data_.rows.size());
  ++data_.unknown_rows;
  data_.rows.push_back(row);
}

uint32_t SavedAccount::first_holder_of(const StorageKey& key) {
  const Storages& storages = storages_on(key.device);
  const auto counted = storages.find(key.address);
  return counted == storages.end() ? kNone : counted->second.first_holder;
}

}  // namespace memledger::graph_internal
