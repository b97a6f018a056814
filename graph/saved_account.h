#pragma once

// The account of saved tensors: a row for each, each storage counted once, by role.
//
// What the walk does for every tensor is inline.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/registry_queries.h"
#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "registry/core/growing_map.h"
#include "registry/libtorch/tensor_storages.h"
#include "registry/snapshot.h"

namespace memledger::graph_internal {

// A slot of a node, as it holds a tensor.
struct SavedSlot {
  uint32_t node = 0;      // in SavedTensorsData::nodes
  int16_t edge = -1;      // among the node's, that the tensor came in by; -1: by none
  const char* name = "";  // lives as long as the SavedTensorsData
  int32_t index = -1;     // in a list; -1: no list
  bool in_place_modified = false;
};

// Fills rows, shapes, parameters, bytes and the counts of SavedTensorsData.
class SavedAccount {
 public:
  SavedAccount(const SavedTensorOptions& options, SavedTensorsData& data)
      : options_(options), data_(data) {}

  // Before the first row: the first role that a storage is given is its own.
  void add_parameter(const std::string& name, const at::Tensor& parameter);
  void add_owner(const at::Tensor& tensor, SavedRole role);

  // Adds a row for each part of a tensor, if it lies on the device that the options name.
  void add(const SavedSlot& slot, const at::Tensor& tensor) {
    for_each_part(tensor,
                  [&](const char* part, const at::Tensor& dense) { add_row(slot, part, dense); });
  }
  // Asks for what add() will look up.
  void prefetch(const at::Tensor& tensor) {
    if (const auto storage = storage_of(tensor))
      storages_on(storage->key.device).prefetch(storage->key.address);
  }

  // Notes the leaf whose gradient a node adds up.
  void add_leaf(uint32_t node, const at::Tensor& leaf, const at::Tensor& gradient);
  // Gives the role of a gradient to the storages of the leaves' gradients, which are known only
  // when all of the graph has been read.
  void set_gradients_apart();

  bool wants(c10::Device device) const {
    if (!options_.device.has_value()) return true;
    return options_.device->type() == device.type() &&
           (!options_.device->has_index() || !device.has_index() ||
            options_.device->index() == device.index());
  }
  // True for the storages of rows and of owners.
  bool knows(const StorageKey& storage) {
    return storages_on(storage.device).contains(storage.address);
  }
  // Adds a row for a storage that the node probably holds, as the `index`-th of them.
  void add_inferred(uint32_t node, size_t index, const StorageInfo& birth);
  // Adds a row for whatever the node holds, of which nothing is known.
  void add_unknown(uint32_t node);

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr size_t kUsualStorages = 800;  // for which the tables need not grow

  // A storage that some row holds, or somebody else owns.
  struct Counted {
    uint32_t first_holder = kNone;
    SavedRole role = SavedRole::kActivation;
  };
  using Storages = core::GrowingMap<uintptr_t, Counted>;

  void add_row(const SavedSlot& slot, const char* part, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const c10::Device device = tensor_device(tensor);
    if (!wants(device)) return;

    make_room(data_.rows);
    const auto index = static_cast<uint32_t>(data_.rows.size());
    // gcc 12 clears a new row by `rep stos`, which takes longer than to copy this one.
    static const CompactRow kEmpty;
    CompactRow& row = data_.rows.emplace_back(kEmpty);
    __builtin_prefetch(&row + 8, 1);
    row.slot = slot.name;
    row.slot_index = slot.index;
    row.part = part;
    row.node = slot.node;
    row.edge = slot.edge;
    row.device = device;
    row.dtype = c10::typeMetaToScalarType(impl->dtype());
    row.in_place_modified = slot.in_place_modified;
    add_shape(tensor, row);
    row.first_holder = index;
    row.counted = true;
    if (const std::optional<StorageFacts> storage = storage_of(tensor)) {
      row.extent_bytes = extent_bytes_of(tensor).value_or(-1);
      if (row.extent_bytes >= 0)
        row.offset_bytes = impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
      row.storage_bytes = storage->bytes.value_or(-1);
      row.address = storage->key.address;
      row.lent = storage->lent;
      row.tensor = reinterpret_cast<uintptr_t>(impl);
      row.view = row.extent_bytes >= 0 && row.extent_bytes < row.storage_bytes;
      count(storage->key, tensor, row);
    }
    if (row.storage_bytes < 0) {
      ++data_.unknown_rows;
      row.counted = false;
    }
  }

  void add_shape(const at::Tensor& tensor, CompactRow& row) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    row.shape_begin = static_cast<uint32_t>(data_.shapes.size());
    if (impl->is_nested()) return;
    try {
      if (impl->has_symbolic_sizes_strides()) {
        const auto sizes = tensor.sym_sizes();
        for (const c10::SymInt& size : sizes) {
          data_.shapes.push_back(size.maybe_as_int().value_or(-1));
        }
        row.rank = static_cast<int16_t>(sizes.size());
      } else {
        const c10::IntArrayRef sizes = impl->sizes();
        make_room(data_.shapes, sizes.size());
        for (const int64_t size : sizes) data_.shapes.push_back(size);
        row.rank = static_cast<int16_t>(sizes.size());
      }
    } catch (const c10::Error&) {
      data_.shapes.resize(row.shape_begin);
    }
  }

  // Counts the row's storage, unless an earlier row holds it.
  void count(const StorageKey& key, const at::Tensor& tensor, CompactRow& row) {
    Counted& counted = storages_on(key.device).try_emplace(key.address).first->second;
    if (counted.first_holder == kNone) {
      counted.first_holder = row.first_holder;
      row.role = counted.role;
      row.storage_id = storage_id_of(tensor);
      add_bytes(row.role, 0, row.storage_bytes);
      note_maker(tensor, row);
      return;
    }
    CompactRow& first = data_.rows[counted.first_holder];
    row.counted = false;
    row.first_holder = counted.first_holder;
    row.role = first.role;
    row.storage_id = first.storage_id;
    row.thread = first.thread;
    if (row.edge < 0) note_maker(tensor, row);
    if (row.storage_bytes > first.storage_bytes) {
      // Two storages over one address, as from_blob() makes them.
      add_bytes(first.role, first.storage_bytes, row.storage_bytes);
      first.storage_bytes = row.storage_bytes;
    }
  }

  void note_maker(const at::Tensor& tensor, CompactRow& row) {
    if (row.role != SavedRole::kActivation || row.storage_id == 0) return;
    const OperatorRun made = run_that_made_storage_of(tensor);
    row.thread = made.thread;
    // The node of a custom Function is made by no operator.
    if (row.edge >= 0 || made.run == 0 || std::string_view(row.slot).substr(0, 5) == "saved")
      return;
    const CompactNode& node = data_.nodes[row.node];
    const OperatorRun node_made = run_before_node(node.forward_thread, node.sequence_number);
    row.made_with_node = node_made.thread == made.thread && node_made.run == made.run;
  }

  void add_bytes(SavedRole role, int64_t before, int64_t now) {
    int64_t& total = data_.bytes[index_of(role)];
    if (before > 0) total -= data_.rounded(before);
    if (now > 0) total += data_.rounded(now);
  }

  Storages& storages_on(c10::Device device) {
    for (auto& [known, storages] : storages_) {
      if (known == device) return storages;
    }
    Storages& storages =
        storages_
            .emplace_back(std::piecewise_construct, std::forward_as_tuple(device), std::tuple<>())
            .second;
    storages.reserve(kUsualStorages);
    return storages;
  }

  uint32_t first_holder_of(const StorageKey& key);

  const SavedTensorOptions& options_;
  SavedTensorsData& data_;
  std::deque<std::pair<c10::Device, Storages>> storages_;  // by address
  core::GrowingMap<const c10::TensorImpl*, int32_t> parameters_;
  std::vector<StorageKey> gradients_;
};

}  // namespace memledger::graph_internal
