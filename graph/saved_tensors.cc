#include "graph/saved_tensors.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "graph/libtorch_autograd.h"
#include "graph/saved_tensors_data.h"
#include "graph/storage_ids.h"
#include "registry/tensor_storages.h"

namespace memledger {
namespace graph_internal {
namespace {

using torch::autograd::Node;

constexpr int64_t kCudaBlockBytes = 512;

size_t place_of(SavedRole role) { return static_cast<size_t>(role); }

class Walk final : public NodeContents {
 public:
  explicit Walk(const SavedTensorOptions& options) : options_(options) { data_->rounding = options.rounding; }

  void add_owner(const at::Tensor& tensor, SavedRole role) {
    for_each_part(tensor, [&](const char*, const at::Tensor& part) {
      if (auto storage = storage_of(part)) owners_.emplace(storage->key, role);
    });
  }

  void run(const std::vector<NodePtr>& roots) {
    for (auto root = roots.rbegin(); root != roots.rend(); ++root) push(*root);
    while (!stack_.empty()) {
      node_ = stack_.back();
      stack_.pop_back();
      ++data_->node_count;
      node_has_rows_ = false;
      packed_slots_.clear();
      reader_.read(*node_, *this);
      if (!packed_slots_.empty()) {
        note(UnreadReason::kPacked, packed_slots_);
      }
      const auto& edges = (*node_)->next_edges();
      for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) {
        push(edge->function);
      }
    }
    find_released();
  }

  bool found_something() const { return found_something_; }
  bool found_released() const { return found_released_; }
  std::shared_ptr<const SavedTensorsData> take_data() { return std::move(data_); }

  // NodeContents:
  void tensor(const char* slot, int index, const at::Tensor& tensor, bool in_place_modified) override {
    found_something_ = true;
    for_each_part(tensor,
                  [&](const char* part, const at::Tensor& dense) { add_row(slot, index, part, dense, in_place_modified); });
    for_each_node_held_by(tensor, [this](const NodePtr& node) { held_node(node); });
  }

  void held_node(const NodePtr& node) override {
    if (visited_.contains(node.get())) return;
    for (const auto& edge : (*node_)->next_edges()) {
      if (edge.function == node) return;
    }
    kept_.push_back(node);
    push(kept_.back());
  }

  void packed(const char* slot, int index) override {
    found_something_ = true;
    if (!packed_slots_.empty()) packed_slots_ += ", ";
    packed_slots_ += slot;
    if (index >= 0) packed_slots_ += "#" + std::to_string(index);
  }

  void empty() override { empty_.push_back(node_); }

  void unknown_type(const char* why) override {
    found_something_ = true;
    note(UnreadReason::kUnknownType, why);
  }

  void failed(const std::string& why) override {
    found_something_ = true;
    note(UnreadReason::kFailed, why);
  }

 private:
  struct SeenStorage {
    uint32_t first_row;
    int64_t bytes;  // -1: unknown
    SavedRole role;
  };

  void push(const NodePtr& node) {
    if (node && visited_.insert(node.get()).second) stack_.push_back(&node);
  }

  // Asked at the end, for where nothing at all is left one answer will do.
  void find_released() {
    for (const NodePtr* node : empty_) {
      if (!reader_.is_released(*node)) continue;
      found_released_ = true;
      if (!found_something_) return;
      node_ = node;
      note(UnreadReason::kReleased, "backward has freed what it had saved");
    }
  }

  void note(UnreadReason reason, std::string detail) {
    const Node& node = **node_;
    data_->unread.push_back({node.name(), node.sequence_nr(), node.thread_id(), reason, std::move(detail)});
  }

  // The place in data_->nodes of the node being read. Nodes that have rows are
  // of types whose nodes all have one name.
  uint32_t place_of_node() {
    if (!node_has_rows_) {
      node_has_rows_ = true;
      const Node& node = **node_;
      const auto next_name = static_cast<uint32_t>(data_->names.size());
      const auto [name, is_new] = names_of_types_.try_emplace(&typeid(node), next_name);
      if (is_new) data_->names.push_back(node.name());
      data_->nodes.push_back({node.sequence_nr(), node.thread_id(), name->second});
    }
    return static_cast<uint32_t>(data_->nodes.size() - 1);
  }

  bool wanted(c10::Device device) const {
    if (!options_.device.has_value()) return true;
    return options_.device->type() == device.type() &&
           (!options_.device->has_index() || !device.has_index() || options_.device->index() == device.index());
  }

  void add_shape(const at::Tensor& tensor, CompactRow& row) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    row.shape_begin = static_cast<uint32_t>(data_->shapes.size());
    if (impl->is_nested()) return;
    try {
      if (impl->has_symbolic_sizes_strides()) {
        const auto sizes = tensor.sym_sizes();
        for (const c10::SymInt& size : sizes) {
          data_->shapes.push_back(size.maybe_as_int().value_or(-1));
        }
        row.rank = static_cast<int16_t>(sizes.size());
      } else {
        const c10::IntArrayRef sizes = impl->sizes();
        data_->shapes.insert(data_->shapes.end(), sizes.begin(), sizes.end());
        row.rank = static_cast<int16_t>(sizes.size());
      }
    } catch (const c10::Error&) {
      data_->shapes.resize(row.shape_begin);
    }
  }

  void add_row(const char* slot, int index, const char* part, const at::Tensor& tensor, bool in_place_modified) {
    if (!tensor.defined()) return;
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const std::optional<StorageFacts> storage = storage_of(tensor);
    const c10::Device device = tensor_device(tensor);
    if (!wanted(device)) return;

    CompactRow row;
    row.slot = slot;
    row.slot_index = index;
    row.part = part;
    row.node = place_of_node();
    row.device = device;
    row.dtype = c10::typeMetaToScalarType(impl->dtype());
    row.in_place_modified = in_place_modified;
    add_shape(tensor, row);
    row.first_holder = static_cast<uint32_t>(data_->rows.size());
    row.counted = true;
    if (storage) {
      row.extent_bytes = extent_bytes_of(tensor).value_or(-1);
      if (row.extent_bytes >= 0) row.offset_bytes = impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
      row.storage_bytes = storage->bytes.value_or(-1);
      row.address = storage->key.address;
      row.tensor = reinterpret_cast<uintptr_t>(impl);
      row.storage_id = storage_id_of(tensor);
      row.view = row.extent_bytes >= 0 && row.extent_bytes < row.storage_bytes;
      count(storage->key, row);
    }
    if (row.storage_bytes < 0) {
      ++data_->unknown_rows;
      row.counted = false;
    }
    data_->rows.push_back(row);
  }

  void count(const StorageKey& key, CompactRow& row) {
    auto [found, is_new] = seen_.try_emplace(key, SeenStorage{row.first_holder, row.storage_bytes, SavedRole::kActivation});
    SeenStorage& seen = found->second;
    if (is_new) {
      if (auto owner = owners_.find(key); owner != owners_.end()) {
        seen.role = owner->second;
      }
      add_bytes(seen.role, 0, row.storage_bytes);
    } else {
      row.counted = false;
      row.first_holder = seen.first_row;
      if (row.storage_bytes > seen.bytes) {
        // Two storages over one address, as from_blob() makes them.
        add_bytes(seen.role, seen.bytes, row.storage_bytes);
        seen.bytes = row.storage_bytes;
      }
    }
    row.role = seen.role;
  }

  void add_bytes(SavedRole role, int64_t before, int64_t now) {
    int64_t& total = data_->bytes[place_of(role)];
    if (before > 0) total -= data_->rounded(before);
    if (now > 0) total += data_->rounded(now);
  }

  const SavedTensorOptions& options_;
  std::shared_ptr<SavedTensorsData> data_ = std::make_shared<SavedTensorsData>();
  NodeReader reader_;
  absl::flat_hash_map<StorageKey, SavedRole> owners_;
  absl::flat_hash_map<StorageKey, SeenStorage> seen_;
  absl::flat_hash_set<const Node*> visited_;
  absl::flat_hash_map<const std::type_info*, uint32_t> names_of_types_;
  std::vector<const NodePtr*> stack_;
  std::deque<NodePtr> kept_;
  std::vector<const NodePtr*> empty_;

  const NodePtr* node_ = nullptr;  // the one being read
  bool node_has_rows_ = false;
  std::string packed_slots_;
  bool found_something_ = false;
  bool found_released_ = false;
};

}  // namespace

SavedTensors walk_graph(const char* caller, at::ArrayRef<at::Tensor> roots, const SavedTensorOptions& options,
                        const Owned& owned) {
  TORCH_CHECK(!roots.empty(), caller,
              ": no root was given; pass the loss, or all tensors that "
              "backward() will start from");
  std::vector<NodePtr> nodes;
  for (size_t i = 0; i < roots.size(); ++i) {
    const at::Tensor& root = roots[i];
    TORCH_CHECK(root.defined(), caller, ": root ", i, " is undefined; pass the tensor that backward() starts from");
    nodes.push_back(grad_fn_of(root));
    TORCH_CHECK(nodes.back() || !root.requires_grad(), caller, ": root ", i,
                " is a leaf, which no operation computed, so it has no graph; "
                "pass the loss that was computed from it");
    TORCH_CHECK(nodes.back(), caller, ": root ", i,
                " has no graph: it was computed under NoGradGuard or from "
                "tensors that need no gradient, or was detached; pass a loss "
                "that backward() can be called on");
  }

  Walk walk(options);
  for (const at::Tensor& tensor : owned.parameters) {
    walk.add_owner(tensor, SavedRole::kParameter);
  }
  for (const at::Tensor& tensor : owned.buffers) {
    walk.add_owner(tensor, SavedRole::kBuffer);
  }
  for (const at::Tensor& tensor : options.exclude) {
    walk.add_owner(tensor, SavedRole::kExcluded);
  }
  for (const at::Tensor& root : roots) {
    walk.add_owner(root, SavedRole::kRoot);
  }
  walk.run(nodes);
  TORCH_CHECK(walk.found_something() || !walk.found_released(), caller, ": the graph of root 0 (", nodes[0]->name(),
              ") has already been freed by backward(); call this between "
              "forward and backward(), or keep the graph with "
              "backward({}, /*retain_graph=*/true)");
  return SavedTensorsData::make(walk.take_data());
}

SavedTensors select_rows(const SavedTensors& saved, bool one_per_storage) {
  const SavedTensorsData& from = SavedTensorsData::of(saved);
  std::vector<uint32_t> best(from.rows.size());  // by first holder
  for (uint32_t i = 0; i < from.rows.size(); ++i) best[i] = i;
  if (one_per_storage) {
    for (uint32_t i = 0; i < from.rows.size(); ++i) {
      uint32_t& chosen = best[from.rows[i].first_holder];
      if (from.elements(from.rows[i]) > from.elements(from.rows[chosen])) {
        chosen = i;
      }
    }
  }
  auto data = std::make_shared<SavedTensorsData>(from);
  data->rows.clear();
  data->unknown_rows = 0;
  data->bytes[place_of(SavedRole::kParameter)] = 0;
  data->bytes[place_of(SavedRole::kBuffer)] = 0;
  std::vector<uint32_t> moved_to(from.rows.size());
  for (uint32_t i = 0; i < from.rows.size(); ++i) {
    CompactRow row = from.rows[i];
    if (row.role == SavedRole::kParameter || row.role == SavedRole::kBuffer) {
      continue;
    }
    const bool is_first = row.first_holder == i;
    if (one_per_storage) {
      if (!is_first) continue;
      row = from.rows[best[i]];
      row.counted = from.rows[i].counted;
    }
    moved_to[i] = static_cast<uint32_t>(data->rows.size());
    row.first_holder = is_first ? moved_to[i] : moved_to[row.first_holder];
    if (row.storage_bytes < 0) ++data->unknown_rows;
    data->rows.push_back(row);
  }
  return SavedTensorsData::make(std::move(data));
}

int64_t SavedTensorsData::rounded(int64_t bytes) const {
  if (rounding == Rounding::kRequested) return bytes;
  return (bytes + kCudaBlockBytes - 1) / kCudaBlockBytes * kCudaBlockBytes;
}

std::string SavedTensorsData::slot(const CompactRow& row) const {
  std::string text = row.slot;
  if (row.slot_index >= 0) text += "#" + std::to_string(row.slot_index);
  if (row.part[0] != '\0') text.append(".").append(row.part);
  return text;
}

const std::string& SavedTensorsData::node_name(const CompactRow& row) const { return names[nodes[row.node].name]; }

int64_t SavedTensorsData::elements(const CompactRow& row) const {
  int64_t product = row.rank < 0 ? 0 : 1;
  for (int16_t i = 0; i < row.rank; ++i) product *= shapes[row.shape_begin + i];
  return product;
}

SavedTensorRow SavedTensorsData::row(size_t index) const {
  const CompactRow& compact = rows[index];
  SavedTensorRow row;
  row.node = node_name(compact);
  row.sequence_number = nodes[compact.node].sequence_number;
  row.forward_thread = nodes[compact.node].forward_thread;
  row.slot = slot(compact);
  if (compact.rank >= 0) {
    const auto begin = shapes.begin() + static_cast<std::ptrdiff_t>(compact.shape_begin);
    row.shape.emplace(begin, begin + compact.rank);
  }
  row.dtype = compact.dtype;
  row.device = compact.device;
  row.storage_address = compact.address;
  row.storage_id = compact.storage_id;
  row.tensor = compact.tensor;
  if (compact.storage_bytes >= 0) row.storage_bytes = compact.storage_bytes;
  if (compact.extent_bytes >= 0) row.extent_bytes = compact.extent_bytes;
  row.storage_offset_bytes = compact.offset_bytes;
  row.view = compact.view;
  row.counted = compact.counted;
  if (compact.first_holder != index) row.shares_with = compact.first_holder;
  row.in_place_modified = compact.in_place_modified;
  row.role = compact.role;
  return row;
}

}  // namespace graph_internal

const char* to_string(SavedRole role) {
  switch (role) {
    case SavedRole::kParameter:
      return "parameter";
    case SavedRole::kBuffer:
      return "buffer";
    case SavedRole::kExcluded:
      return "excluded";
    case SavedRole::kRoot:
      return "root";
    case SavedRole::kActivation:
      return "activation";
  }
  return "?";
}

const char* to_string(UnreadReason reason) {
  switch (reason) {
    case UnreadReason::kPacked:
      return "packed, not opened";
    case UnreadReason::kReleased:
      return "released";
    case UnreadReason::kUnknownType:
      return "unknown type";
    case UnreadReason::kFailed:
      return "failed";
  }
  return "?";
}

SavedTensors::SavedTensors() : data_(std::make_shared<graph_internal::SavedTensorsData>()) {}

SavedTensors::SavedTensors(std::shared_ptr<const graph_internal::SavedTensorsData> data) : data_(std::move(data)) {}

std::vector<SavedTensorRow> SavedTensors::rows() const {
  std::vector<SavedTensorRow> rows;
  rows.reserve(data_->rows.size());
  for (size_t i = 0; i < data_->rows.size(); ++i) rows.push_back(data_->row(i));
  return rows;
}

size_t SavedTensors::row_count() const { return data_->rows.size(); }
size_t SavedTensors::node_count() const { return data_->node_count; }

int64_t SavedTensors::total_bytes() const { return bytes(SavedRole::kActivation); }

int64_t SavedTensors::bytes(SavedRole role) const { return data_->bytes[graph_internal::place_of(role)]; }

size_t SavedTensors::unknown_rows() const { return data_->unknown_rows; }

std::vector<UnreadNode> SavedTensors::unread_nodes() const { return data_->unread; }

bool SavedTensors::complete() const {
  return data_->unknown_rows == 0 && std::all_of(data_->unread.begin(), data_->unread.end(),
                                                 [](const UnreadNode& node) { return node.reason == UnreadReason::kReleased; });
}

SavedTensors saved_for_backward(at::ArrayRef<at::Tensor> roots, const SavedTensorOptions& options) {
  return graph_internal::walk_graph("saved_for_backward", roots, options, {});
}

}  // namespace memledger
