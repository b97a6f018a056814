#pragma once

// What SavedTensors stands on, and how it is made from a graph.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/saved_tensors.h"
#include "registry/core/huge_pages.h"

namespace memledger::graph_internal {

constexpr size_t kRoleCount = 7;
constexpr size_t index_of(SavedRole role) { return static_cast<size_t>(role); }

// All roles, in the order of the formats.
constexpr std::array<SavedRole, kRoleCount> kRoles = {
    SavedRole::kActivation, SavedRole::kParameter, SavedRole::kBuffer, SavedRole::kInput,
    SavedRole::kGradient,   SavedRole::kExcluded,  SavedRole::kRoot};

struct CompactNode {
  uint64_t sequence_number = 0;
  uint64_t forward_thread = 0;
  uint32_t name = 0;  // in SavedTensorsData::names
  uint32_t edges_begin = 0;
  uint32_t edge_count = 0;
  int32_t parameter = kNoParameter;  // in SavedTensorsData::parameters, for the node of a leaf

  static constexpr int32_t kNoParameter = -1;
  static constexpr int32_t kOtherLeaf = -2;  // a leaf that is no parameter of the module
  bool is_leaf() const { return parameter != kNoParameter; }
};

// An edge as backward() follows it, towards what computed the operator's input.
struct CompactEdge {
  uint32_t node = kNone;       // in SavedTensorsData::nodes
  uint32_t output_number = 0;  // of that node's operator
  int64_t bytes = -1;          // of the tensor that came this way; -1: unknown

  static constexpr int64_t kNotMeasured = -2;
  static constexpr uint32_t kNone = ~uint32_t{0};  // needed no gradient
};

// A SavedTensorRow without what it can share with others: graphs have a million nodes.
struct CompactRow {
  const char* slot = "";  // a literal of the generated visitor, or in own_slots
  const char* part = "";  // "" for a tensor that is its own only part
  uintptr_t address = 0;
  uintptr_t tensor = 0;
  uint64_t storage_id = 0;
  int64_t storage_bytes = -1;  // -1: unknown
  int64_t extent_bytes = -1;   // -1: unknown, and so is offset_bytes
  int64_t offset_bytes = 0;
  uint32_t node = 0;  // in SavedTensorsData::nodes
  uint32_t first_holder = 0;
  uint32_t shape_begin = 0;
  uint32_t thread = 0;  // that made the storage, by the registry's numbers; 0: unknown
  int32_t slot_index = -1;
  int16_t rank = -1;  // -1: unknown
  int16_t edge = -1;  // among its node's, that the tensor came in by; -1: by none
  c10::Device device = c10::Device(c10::kCPU);
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  SavedRole role = SavedRole::kActivation;
  bool device_known = true;
  bool lent = false;
  bool counted = false;
  bool view = false;
  bool in_place_modified = false;
  bool inferred = false;
  // Made by the run of an operator that made the node.
  bool made_with_node = false;
};
static_assert(sizeof(CompactRow) == 104, "a graph may have a million rows");

struct SavedTensorsData {
  static SavedTensors make(std::shared_ptr<const SavedTensorsData> data) {
    return SavedTensors(std::move(data));
  }
  static const SavedTensorsData& of(const SavedTensors& saved) { return *saved.data_; }

  // Returns what a storage of this many bytes counts under these options.
  int64_t rounded(int64_t bytes) const {
    constexpr int64_t kCudaBlockBytes = 512;
    return rounding == Rounding::kRequested
               ? bytes
               : (bytes + kCudaBlockBytes - 1) / kCudaBlockBytes * kCudaBlockBytes;
  }
  SavedTensorRow row(size_t index) const;
  std::string slot(const CompactRow& row) const;
  const std::string& node_name(const CompactRow& row) const;
  int64_t elements(const CompactRow& row) const;

  core::LargeVector<CompactRow> rows;
  core::LargeVector<CompactNode> nodes;  // all
  core::LargeVector<CompactEdge> edges;
  core::LargeVector<int64_t> shapes;
  std::vector<std::string> names;
  std::vector<std::string> parameters;  // names, where a module was given
  // Slots of custom Functions' saved_data. Shared by copies, as rows point into it.
  std::shared_ptr<std::set<std::string>> own_slots = std::make_shared<std::set<std::string>>();
  std::vector<UnreadNode> unread;
  std::array<int64_t, kRoleCount> bytes = {};  // by SavedRole
  int64_t inferred_bytes = 0;
  size_t unknown_rows = 0;
  Rounding rounding = Rounding::kRequested;
};

// Growing copies everything and takes new pages for it, while room that is not used yet takes only
// addresses: what has become large gets room for a large graph at once.
template <typename T>
void make_room(core::LargeVector<T>& values, size_t count = 1) {
  constexpr size_t kLarge = 4096, kLargeGraph = 262144;
  if (values.capacity() - values.size() >= count) return;
  const size_t more = values.capacity() < kLarge ? 4 * values.capacity()
                                                 : std::max(kLargeGraph, 2 * values.capacity());
  values.reserve(std::max(more, values.size() + count + 64));
}

struct Owned {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<at::Tensor> buffers;
};

// Reads the graph under the roots. Messages of errors begin with `caller`.
SavedTensors read_graph(const char* caller, at::ArrayRef<at::Tensor> roots,
                        const SavedTensorOptions& options, const Owned& owned);

// Returns `saved` without the rows of parameters and buffers; with `one_per_storage`, with only the
// row with the most elements of each storage.
SavedTensors select_rows(const SavedTensors& saved, bool one_per_storage);

}  // namespace memledger::graph_internal
