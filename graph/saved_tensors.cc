#include "graph/saved_tensors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "graph/graph_walk.h"
#include "graph/libtorch/libtorch_autograd.h"
#include "graph/saved_account.h"
#include "graph/saved_tensors_data.h"
#include "graph/torchscript_inference.h"
#include "registry/hooks/training_notes.h"
#include "registry/training_paused.h"

namespace memledger {
namespace graph_internal {
namespace {

std::vector<NodePtr> nodes_of(const char* caller, at::ArrayRef<at::Tensor> roots) {
  TORCH_CHECK(!roots.empty(), caller,
              ": no root was given; pass the loss, or all tensors that "
              "backward() will start from");
  std::vector<NodePtr> nodes;
  for (size_t i = 0; i < roots.size(); ++i) {
    const at::Tensor& root = roots[i];
    TORCH_CHECK(root.defined(), caller, ": root ", i,
                " is undefined; pass the tensor that backward() starts from");
    nodes.push_back(grad_fn_of(root));
    TORCH_CHECK(nodes.back() || !root.requires_grad(), caller, ": root ", i,
                " is a leaf, which no operation computed, so it has no graph; "
                "pass the loss that was computed from it");
    TORCH_CHECK(nodes.back(), caller, ": root ", i,
                " has no graph: it was computed under NoGradGuard or from "
                "tensors that need no gradient, or was detached; pass a loss "
                "that backward() can be called on");
  }
  return nodes;
}

// In the order of SavedRole: the first role that a storage gets stays.
void add_owners(at::ArrayRef<at::Tensor> roots, const SavedTensorOptions& options,
                const Owned& owned, SavedAccount& account) {
  for (const auto& [name, tensor] : owned.parameters) account.add_parameter(name, tensor);
  for (const auto& [name, tensor] : options.parameters) account.add_parameter(name, tensor);
  for (const at::Tensor& tensor : owned.buffers) account.add_owner(tensor, SavedRole::kBuffer);
  for (const at::Tensor& tensor : options.buffers) account.add_owner(tensor, SavedRole::kBuffer);
  for (const at::Tensor& tensor : options.inputs) account.add_owner(tensor, SavedRole::kInput);
  for (const auto* parameters : {&owned.parameters, &options.parameters}) {
    for (const auto& [name, tensor] : *parameters) {
      with_gradient_of(tensor, [&](const at::Tensor& gradient) {
        account.add_owner(gradient, SavedRole::kGradient);
      });
    }
  }
  for (const at::Tensor& tensor : options.exclude) account.add_owner(tensor, SavedRole::kExcluded);
  for (const at::Tensor& root : roots) account.add_owner(root, SavedRole::kRoot);
}

}  // namespace

SavedTensors read_graph(const char* caller, at::ArrayRef<at::Tensor> roots,
                        const SavedTensorOptions& options, const Owned& owned) {
  const std::vector<NodePtr> nodes = nodes_of(caller, roots);
  const ScopedTrainingPaused paused(options.training_paused);
  const LiveRead live;  // its answer is that of all leaves
  const auto data = std::make_shared<SavedTensorsData>();
  data->rounding = options.rounding;
  SavedAccount account(options, *data);
  add_owners(roots, options, owned, account);
  WalkedGraph graph = walk_graph(nodes, *data, account);
  account.set_gradients_apart();
  infer_torchscript(std::move(graph.torchscript), *data, account);
  TORCH_CHECK(graph.found_something || !graph.found_released, caller, ": the graph of root 0 (",
              nodes[0]->name(),
              ") has already been freed by backward(); call this between "
              "forward and backward(), or keep the graph with "
              "backward({}, /*retain_graph=*/true)");
  return SavedTensorsData::make(data);
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
  data->bytes[index_of(SavedRole::kParameter)] = 0;
  data->bytes[index_of(SavedRole::kBuffer)] = 0;
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

std::string SavedTensorsData::slot(const CompactRow& row) const {
  std::string text = row.slot;
  if (row.slot_index >= 0) text += "#" + std::to_string(row.slot_index);
  if (row.part[0] != '\0') text.append(".").append(row.part);
  return text;
}

const std::string& SavedTensorsData::node_name(const CompactRow& row) const {
  return names[nodes[row.node].name];
}

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
  if (compact.dtype != c10::ScalarType::Undefined) row.dtype = compact.dtype;
  if (compact.device_known) row.device = compact.device;
  row.storage_address = compact.address;
  row.storage_id = compact.storage_id;
  row.tensor = compact.tensor;
  if (compact.storage_bytes >= 0) row.storage_bytes = compact.storage_bytes;
  if (compact.extent_bytes >= 0) {
    row.extent_bytes = compact.extent_bytes;
    row.storage_offset_bytes = compact.offset_bytes;
  }
  row.view = compact.view;
  row.counted = compact.counted;
  if (compact.first_holder != index) row.shares_with = compact.first_holder;
  row.in_place_modified = compact.in_place_modified;
  row.lent = compact.lent;
  row.inferred = compact.inferred;
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
    case SavedRole::kInput:
      return "input";
    case SavedRole::kGradient:
      return "gradient";
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
    case UnreadReason::kTorchScript:
      return "TorchScript";
    case UnreadReason::kBusy:
      return "in use";
    case UnreadReason::kFailed:
      return "failed";
    case UnreadReason::kHooks:
      return "hooks";
  }
  return "?";
}

std::string_view machine_name(UnreadReason reason) {
  switch (reason) {
    case UnreadReason::kPacked:
      return "packed";
    case UnreadReason::kReleased:
      return "released";
    case UnreadReason::kUnknownType:
      return "unknown_type";
    case UnreadReason::kTorchScript:
      return "torchscript";
    case UnreadReason::kBusy:
      return "in_use";
    case UnreadReason::kFailed:
      return "failed";
    case UnreadReason::kHooks:
      return "hooks";
  }
  return "?";
}

SavedTensors::SavedTensors() : data_(std::make_shared<graph_internal::SavedTensorsData>()) {}

SavedTensors::SavedTensors(std::shared_ptr<const graph_internal::SavedTensorsData> data)
    : data_(std::move(data)) {}

std::vector<SavedTensorRow> SavedTensors::rows() const {
  std::vector<SavedTensorRow> rows;
  rows.reserve(data_->rows.size());
  for (size_t i = 0; i < data_->rows.size(); ++i) rows.push_back(data_->row(i));
  return rows;
}

size_t SavedTensors::row_count() const { return data_->rows.size(); }
size_t SavedTensors::node_count() const { return data_->nodes.size(); }

int64_t SavedTensors::total_bytes() const { return bytes(SavedRole::kActivation); }

int64_t SavedTensors::bytes(SavedRole role) const {
  return data_->bytes[graph_internal::index_of(role)];
}

int64_t SavedTensors::inferred_bytes() const { return data_->inferred_bytes; }

size_t SavedTensors::unknown_rows() const { return data_->unknown_rows; }

std::vector<UnreadNode> SavedTensors::unread_nodes() const { return data_->unread; }

bool SavedTensors::complete() const {
  return data_->unknown_rows == 0 &&
         std::all_of(data_->unread.begin(), data_->unread.end(),
                     [](const UnreadNode& node) { return node.reason == UnreadReason::kReleased; });
}

SavedTensors saved_for_backward(at::ArrayRef<at::Tensor> roots, const SavedTensorOptions& options) {
  return graph_internal::read_graph("saved_for_backward", roots, options, {});
}

}  // namespace memledger
