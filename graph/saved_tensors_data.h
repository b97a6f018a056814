// What SavedTensors stands on, and the walk that fills it.

#ifndef MEMLEDGER_GRAPH_SAVED_TENSORS_DATA_H_
#define MEMLEDGER_GRAPH_SAVED_TENSORS_DATA_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/saved_tensors.h"

namespace memledger::graph_internal {

struct CompactNode {
  uint64_t sequence_number = 0;
  uint64_t forward_thread = 0;
  uint32_t name = 0;  // in SavedTensorsData::names
};

// A row with what others share kept elsewhere, since graphs have a million
// nodes.
struct CompactRow {
  const char* slot = "";  // string literals of the generated visitor
  const char* part = "";  // "" for a tensor that is its own only part
  uintptr_t address = 0;
  uintptr_t tensor = 0;
  uint64_t storage_id = 0;
  int64_t storage_bytes = -1;  // -1: unknown
  int64_t extent_bytes = -1;   // -1: unknown
  int64_t offset_bytes = 0;
  uint32_t node = 0;           // in SavedTensorsData::nodes
  uint32_t first_holder = 0;
  uint32_t shape_begin = 0;
  int32_t slot_index = -1;
  int16_t rank = -1;  // -1: unknown
  c10::Device device = c10::Device(c10::kCPU);
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  SavedRole role = SavedRole::kActivation;
  bool counted = false;
  bool view = false;
  bool in_place_modified = false;
};

struct SavedTensorsData {
  static SavedTensors make(std::shared_ptr<const SavedTensorsData> data) { return SavedTensors(std::move(data)); }
  static const SavedTensorsData& of(const SavedTensors& saved) { return *saved.data_; }

  // The counted bytes of a storage under these options.
  int64_t rounded(int64_t bytes) const;
  SavedTensorRow row(size_t index) const;
  std::string slot(const CompactRow& row) const;
  const std::string& node_name(const CompactRow& row) const;
  int64_t elements(const CompactRow& row) const;

  std::vector<CompactRow> rows;
  std::vector<CompactNode> nodes;  // those with rows
  std::vector<int64_t> shapes;
  std::vector<std::string> names;
  std::vector<UnreadNode> unread;
  std::array<int64_t, 5> bytes = {};  // by SavedRole
  size_t node_count = 0;
  size_t unknown_rows = 0;
  Rounding rounding = Rounding::kRequested;
};

struct Owned {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
};

// `caller` begins the messages of errors.
SavedTensors walk_graph(const char* caller, at::ArrayRef<at::Tensor> roots, const SavedTensorOptions& options,
                        const Owned& owned);

// Without the rows of parameters and buffers; with `one_per_storage`, only the
// row with the most elements of each storage.
SavedTensors select_rows(const SavedTensors& saved, bool one_per_storage);

}  // namespace memledger::graph_internal

#endif  // MEMLEDGER_GRAPH_SAVED_TENSORS_DATA_H_
