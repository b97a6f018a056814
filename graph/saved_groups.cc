#include "graph/saved_groups.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "graph/saved_tensors_data.h"
#include "text/bytes.h"
#include "text/csv.h"
#include "text/json.h"
#include "text/names.h"

namespace memledger {
namespace {

using graph_internal::CompactEdge;
using graph_internal::CompactNode;
using graph_internal::CompactRow;
using graph_internal::SavedTensorsData;

bool is_activation(const CompactRow& row) {
  return row.role == SavedRole::kActivation && row.storage_bytes >= 0;
}

// Groups the rows by what `name_of(row)` returns.
template <typename NameOf>
SavedGroups grouped(const SavedTensorsData& data, std::string by, NameOf name_of) {
  std::unordered_map<std::string, SavedGroup> groups;
  for (const CompactRow& row : data.rows) {
    if (!is_activation(row)) continue;
    std::string name = name_of(row);
    SavedGroup& group = groups[name];
    if (group.name.empty()) group.name = std::move(name);
    ++group.tensors;
    if (!row.counted) continue;
    ++group.storages;
    group.bytes += data.rounded(row.storage_bytes);
  }
  SavedGroups result;
  result.by = std::move(by);
  for (auto& [name, group] : groups) result.groups.push_back(std::move(group));
  std::sort(result.groups.begin(), result.groups.end(),
            [](const SavedGroup& a, const SavedGroup& b) {
              return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
            });
  return result;
}

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

// Returns the path that both lie under: `layer1.0` for `layer1.0.conv1` and `layer1.0.bn1`.
std::string common_path(const std::string& a, const std::string& b) {
  size_t end = 0;
  for (size_t i = 0;; ++i) {
    const bool a_ends = i == a.size(), b_ends = i == b.size();
    if ((a_ends || a[i] == '.') && (b_ends || b[i] == '.')) end = i;
    if (a_ends || b_ends || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

bool lies_under(std::string_view path, std::string_view layer) {
  return path.substr(0, layer.size()) == layer &&
         (path.size() == layer.size() || path[layer.size()] == '.' || layer.empty());
}

std::string first_parts(const std::string& path, size_t depth) {
  if (depth == 0) return path;
  size_t end = 0;
  for (size_t i = 0; i < depth; ++i) {
    end = path.find('.', end == 0 ? 0 : end + 1);
    if (end == std::string::npos) return path;
  }
  return path.substr(0, end);
}

// True for operators that only pass a parameter on in another shape or type.
bool passes_on(std::string_view node) {
  static const std::set<std::string_view> kNames = {"TBackward0",
                                                    "TransposeBackward0",
                                                    "PermuteBackward0",
                                                    "ViewBackward0",
                                                    "ReshapeAliasBackward0",
                                                    "ExpandBackward0",
                                                    "ToCopyBackward0",
                                                    "AliasBackward0",
                                                    "UnsqueezeBackward0",
                                                    "SqueezeBackward0",
                                                    "SqueezeBackward1",
                                                    "SliceBackward0",
                                                    "SelectBackward0",
                                                    "SplitBackward0",
                                                    "SplitWithSizesBackward0",
                                                    "UnbindBackward0",
                                                    "UnsafeViewBackward0",
                                                    "AsStridedBackward0",
                                                    "UnsafeSplitBackward0",
                                                    "CloneBackward0",
                                                    "NarrowBackward0",
                                                    "CudnnRnnFlattenWeightBackward0"};
  return kNames.count(node) > 0;
}

// Calls back with each edge's producer and consumer.
template <typename Visit>
void for_each_edge(const SavedTensorsData& data, const Visit& visit) {
  for (uint32_t consumer = 0; consumer < data.nodes.size(); ++consumer) {
    const CompactNode& compact = data.nodes[consumer];
    for (uint32_t e = 0; e < compact.edge_count; ++e) {
      const uint32_t producer = data.edges[compact.edges_begin + e].node;
      if (producer != CompactEdge::kNone) visit(producer, consumer);
    }
  }
}

// Returns the nodes, each after those whose results it takes. Sorting by sequence number would not
// do, as every thread counts its own.
std::vector<uint32_t> producers_first(const SavedTensorsData& data) {
  const size_t count = data.nodes.size();
  std::vector<uint32_t> awaited(count), consumers_begin(count + 1);
  for_each_edge(data, [&](uint32_t producer, uint32_t consumer) {
    ++consumers_begin[producer + 1];
    ++awaited[consumer];
  });
  for (size_t i = 0; i < count; ++i) consumers_begin[i + 1] += consumers_begin[i];
  std::vector<uint32_t> consumers(consumers_begin[count]);
  std::vector<uint32_t> next(consumers_begin.begin(), consumers_begin.end() - 1);
  for_each_edge(
      data, [&](uint32_t producer, uint32_t consumer) { consumers[next[producer]++] = consumer; });

  std::vector<uint32_t> order;
  order.reserve(count);
  for (uint32_t node = 0; node < count; ++node) {
    if (awaited[node] == 0) order.push_back(node);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t node = order[i];
    for (uint32_t c = consumers_begin[node]; c < consumers_begin[node + 1]; ++c) {
      if (--awaited[consumers[c]] == 0) order.push_back(consumers[c]);
    }
  }
  return order;
}

// The layer of each node.
class Layers {
 public:
  explicit Layers(const SavedTensorsData& data)
      : data_(data), layers_(data.nodes.size(), kUnknown), is_parameter_(data.nodes.size()) {
    for (const uint32_t node : producers_first(data)) {
      if (data.nodes[node].is_leaf()) {
        settle_leaf(node);
      } else {
        settle(node);
      }
    }
  }

  // "" where it is not known.
  const std::string& of(uint32_t node) const {
    return layers_[node] == kUnknown ? nothing_ : paths_[layers_[node]];
  }
  // A parameter, or a view or cast of one.
  bool is_parameter(uint32_t node) const { return is_parameter_[node]; }

 private:
  static constexpr uint32_t kUnknown = ~uint32_t{0};

  uint32_t index_of(const std::string& path) {
    const auto [entry, is_new] = indices_.try_emplace(path, static_cast<uint32_t>(paths_.size()));
    if (is_new) paths_.push_back(path);
    return entry->second;
  }

  void settle_leaf(uint32_t node) {
    const int32_t parameter = data_.nodes[node].parameter;
    if (parameter < 0) return;
    layers_[node] = index_of(module_of(data_.parameters[static_cast<size_t>(parameter)]));
    is_parameter_[node] = true;
  }

  void settle(uint32_t node) {
    const CompactNode& compact = data_.nodes[node];
    uint32_t own = kUnknown, inherited = kUnknown;
    uint64_t latest = 0;
    size_t inputs = 0;
    for (uint32_t e = 0; e < compact.edge_count; ++e) {
      const uint32_t producer = data_.edges[compact.edges_begin + e].node;
      if (producer == CompactEdge::kNone) continue;
      ++inputs;
      const uint32_t layer = layers_[producer];
      if (layer == kUnknown) continue;
      if (is_parameter_[producer]) {
        own = own == kUnknown || own == layer ? layer
                                              : index_of(common_path(paths_[own], paths_[layer]));
      } else if (inherited == kUnknown || data_.nodes[producer].sequence_number >= latest) {
        inherited = layer;
        latest = data_.nodes[producer].sequence_number;
      }
    }
    layers_[node] = own != kUnknown ? own : inherited;
    is_parameter_[node] = own != kUnknown && inputs == 1 && compact.edge_count == 1 &&
                          passes_on(data_.names[compact.name]);
  }

  const SavedTensorsData& data_;
  const std::string nothing_;
  std::vector<std::string> paths_;
  std::unordered_map<std::string, uint32_t> indices_;  // in paths_
  std::vector<uint32_t> layers_;                       // by node, in paths_
  std::vector<char> is_parameter_;                     // by node
};

// Returns which of the operator's results a slot holds; -1 for what is no result.
int result_number(const CompactRow& row) {
  const std::string_view slot = row.slot;
  if (row.slot_index >= 0) return -1;
  if (slot == "result" || slot == "output") return 0;
  if (slot.size() == 7 && slot.substr(0, 6) == "result" && slot[6] >= '0' && slot[6] <= '9')
    return slot[6] - '0';
  return -1;
}

// The nodes of a layer and those below it.
class Block {
 public:
  Block(const SavedTensorsData& data, const Layers& layers, const std::string& layer)
      : data_(data), layers_(layers), inside_(data.nodes.size()), holders_(data.rows.size()) {
    result_.layer = layer;
    for (uint32_t i = 0; i < data.nodes.size(); ++i) {
      if (data.nodes[i].is_leaf() || layers.of(i).empty() || !lies_under(layers.of(i), layer))
        continue;
      inside_[i] = true;
      ++result_.operators_again;
    }
    for (const CompactRow& row : data.rows) {
      holders_[row.first_holder] |= inside_[row.node] ? kInside : kOutside;
      if (row.made_with_node && inside_[row.node]) made_inside_.insert(row.first_holder);
    }
  }

  CheckpointEstimate estimate() {
    for (uint32_t first = 0; first < data_.rows.size(); ++first) {
      if (gives_back(first)) result_.bytes_back += bytes_of(first);
    }
    find_inputs();
    for (const auto& [edge, input] : inputs_) {
      if (input.storage >= 0) {
        keep(static_cast<uint32_t>(input.storage));
      } else if (!data_.nodes[edge.first].is_leaf()) {
        // Nothing holds it today.
        if (input.bytes < 0) result_.exact = false;
        result_.kept_bytes += data_.rounded(std::max<int64_t>(input.bytes, 0));
      }
    }
    keep_what_came_without_gradient();
    result_.bytes_back -= result_.kept_bytes;
    return result_;
  }

 private:
  static constexpr char kInside = 1, kOutside = 2;
  struct Input {
    int64_t bytes = -1;
    int64_t storage = -1;  // its first holder
  };

  bool gives_back(uint32_t first) const {
    const CompactRow& row = data_.rows[first];
    return row.counted && is_activation(row) && holders_[first] == kInside;
  }
  int64_t bytes_of(uint32_t first) const { return data_.rounded(data_.rows[first].storage_bytes); }

  void keep(uint32_t first) {
    if (!gives_back(first) || !kept_.insert(first).second) return;
    result_.kept_bytes += bytes_of(first);
  }

  const CompactEdge* edge_of(const CompactRow& row) const {
    return row.edge < 0
               ? nullptr
               : &data_.edges[data_.nodes[row.node].edges_begin + static_cast<uint32_t>(row.edge)];
  }

  // Finds what comes into the block from operators before it, and who holds it.
  void find_inputs() {
    for (uint32_t i = 0; i < data_.nodes.size(); ++i) {
      if (!inside_[i]) continue;
      for (uint32_t e = 0; e < data_.nodes[i].edge_count; ++e) {
        const CompactEdge& edge = data_.edges[data_.nodes[i].edges_begin + e];
        if (edge.node == CompactEdge::kNone || inside_[edge.node] ||
            layers_.is_parameter(edge.node))
          continue;
        inputs_[{edge.node, edge.output_number}].bytes = edge.bytes;
      }
    }
    for (const CompactRow& row : data_.rows) {
      std::pair<uint32_t, uint32_t> key;
      if (const CompactEdge* edge = edge_of(row)) {
        key = {edge->node, edge->output_number};
      } else if (const int number = result_number(row); number >= 0) {
        key = {row.node, static_cast<uint32_t>(number)};
      } else {
        continue;
      }
      const auto input = inputs_.find(key);
      if (input != inputs_.end()) input->second.storage = row.first_holder;
    }
  }

  // Returns the node whose operator made what lies in the row's storage; kNone: not known.
  uint32_t producer_of(const CompactRow& row) const {
    if (const CompactEdge* edge = edge_of(row)) return edge->node;
    return result_number(row) >= 0 ? row.node : CompactEdge::kNone;
  }

  // What one thread has made. Its storages are in order of their ids; those of two are not.
  struct OfThread {
    uint64_t last_before = 0;              // made before the block's first operator
    uint64_t first_inside = ~uint64_t{0};  // made by the block
  };

  std::map<uint32_t, OfThread> made_by_threads() const {
    std::map<uint64_t, uint64_t> first_operators;  // by autograd's numbers of threads
    for (uint32_t i = 0; i < data_.nodes.size(); ++i) {
      if (!inside_[i]) continue;
      const CompactNode& node = data_.nodes[i];
      const auto [first, is_new] =
          first_operators.try_emplace(node.forward_thread, node.sequence_number);
      if (!is_new) first->second = std::min(first->second, node.sequence_number);
    }
    std::map<uint32_t, OfThread> threads;
    for (const CompactRow& row : data_.rows) {
      const uint32_t producer = producer_of(row);
      if (row.thread == 0 || producer == CompactEdge::kNone || data_.nodes[producer].is_leaf())
        continue;
      OfThread& thread = threads[row.thread];
      const CompactNode& node = data_.nodes[producer];
      const auto first = first_operators.find(node.forward_thread);
      if (inside_[producer]) {
        thread.first_inside = std::min(thread.first_inside, row.storage_id);
      } else if (first != first_operators.end() && node.sequence_number < first->second) {
        thread.last_before = std::max(thread.last_before, row.storage_id);
      }
    }
    return threads;
  }

  // Masks, indices, a batch: the block's own if an operator of the block made them, its input if
  // they are older than something from before the block. Among the rest, everything that may be
  // older than all that the block made counts as an input.
  void keep_what_came_without_gradient() {
    const std::map<uint32_t, OfThread> threads = made_by_threads();
    for (const CompactRow& row : data_.rows) {
      if (!inside_[row.node] || edge_of(row) != nullptr || result_number(row) >= 0) continue;
      if (!gives_back(row.first_holder) || made_inside_.count(row.first_holder) > 0) continue;
      if (kept_.count(row.first_holder) > 0) continue;
      const auto known = threads.find(row.thread);
      const OfThread thread = known == threads.end() ? OfThread() : known->second;
      result_.exact = result_.exact && row.thread != 0 && row.storage_id < thread.last_before;
      if (row.thread != 0 && row.storage_id < thread.first_inside) keep(row.first_holder);
    }
  }

  const SavedTensorsData& data_;
  const Layers& layers_;
  std::vector<char> inside_;                               // by node
  std::vector<char> holders_;                              // by first holder
  std::map<std::pair<uint32_t, uint32_t>, Input> inputs_;  // by node and number of its result
  std::set<uint32_t> made_inside_;                         // first holders of what operators made
  std::set<uint32_t> kept_;
  CheckpointEstimate result_;
};

std::set<std::string> layers_of(const SavedTensorsData& data, const Layers& layers, size_t depth) {
  std::set<std::string> names;
  for (uint32_t i = 0; i < data.nodes.size(); ++i) {
    if (!data.nodes[i].is_leaf() && !layers.of(i).empty())
      names.insert(first_parts(layers.of(i), depth));
  }
  return names;
}

std::string shown_name(const SavedGroup& group, std::string_view by) {
  if (!group.name.empty()) return table_name(group.name);
  return by == "layer" ? "(no layer)" : "?";
}

}  // namespace

int64_t SavedGroups::total_bytes() const {
  int64_t total = 0;
  for (const SavedGroup& group : groups) total += group.bytes;
  return total;
}

std::string SavedGroups::to_json() const {
  Json rows = Json::array();
  for (const SavedGroup& group : groups) {
    rows.push_back({{"name", group.name.empty() ? Json(nullptr) : Json(group.name)},
                    {"bytes", group.bytes},
                    {"storages", group.storages},
                    {"tensors", group.tensors}});
  }
  return to_text(Json{{"schema", "memledger.saved_groups/2"},
                      {"by", by},
                      {"total_bytes", total_bytes()},
                      {"groups", std::move(rows)}});
}

std::string SavedGroups::to_csv() const {
  std::string text = "by,name,bytes,storages,tensors\n";
  for (const SavedGroup& group : groups) {
    text += CsvLine()
                .text(by)
                .text(group.name)
                .number(group.bytes)
                .number(group.storages)
                .number(group.tensors)
                .end();
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const SavedGroup& group) {
  return out << (group.name.empty() ? "?" : printable(group.name)) << ": " << group.bytes
             << " bytes in " << group.storages
             << (group.storages == 1 ? " storage, " : " storages, ") << group.tensors
             << (group.tensors == 1 ? " tensor" : " tensors");
}

std::ostream& operator<<(std::ostream& out, const SavedGroups& groups) {
  std::string by = table_name(groups.by);
  std::replace(by.begin(), by.end(), '_', ' ');
  out << "Saved for backward by " << by << ": " << readable_size(groups.total_bytes()) << '\n';
  for (const SavedGroup& group : groups.groups) {
    out << fmt::format("{:>10} {:>7} in {} {}  {}\n", readable_size(group.bytes), group.tensors,
                       group.storages, group.storages == 1 ? "storage" : "storages",
                       shown_name(group, groups.by));
  }
  return out;
}

SavedGroups by_node_kind(const SavedTensors& saved) {
  const SavedTensorsData& data = SavedTensorsData::of(saved);
  return grouped(data, "node_kind", [&data](const CompactRow& row) { return data.node_name(row); });
}

SavedGroups by_layer(const SavedTensors& saved, size_t depth) {
  const SavedTensorsData& data = SavedTensorsData::of(saved);
  const Layers layers(data);
  return grouped(data, "layer",
                 [&](const CompactRow& row) { return first_parts(layers.of(row.node), depth); });
}

SavedGroups by_birthplace(const SavedTensors& saved, const Snapshot& snapshot) {
  const SavedTensorsData& data = SavedTensorsData::of(saved);
  return grouped(data, "birthplace", [&](const CompactRow& row) {
    const StorageInfo* storage = row.storage_id == 0 ? nullptr : snapshot.find(row.storage_id);
    if (storage == nullptr || storage->op.empty()) return std::string();
    std::string name(storage->op);
    name += " [";
    if (!storage->label.empty()) name.append(storage->label).append(", ");
    return name.append(to_string(storage->phase)) + "]";
  });
}

CheckpointEstimate if_checkpointed(const SavedTensors& saved, const std::string& layer) {
  const SavedTensorsData& data = SavedTensorsData::of(saved);
  TORCH_CHECK(!data.parameters.empty(),
              "if_checkpointed: no layer is known; pass the module to saved_for_backward(net, "
              "loss), and one with parameters");
  const Layers layers(data);
  CheckpointEstimate estimate = Block(data, layers, layer).estimate();
  if (estimate.operators_again == 0) {
    std::string known;
    for (const std::string& name : layers_of(data, layers, 0))
      known += (known.empty() ? "" : ", ") + name;
    TORCH_CHECK(false, "if_checkpointed: the graph has no layer '", layer, "'; it has ", known);
  }
  return estimate;
}

std::vector<CheckpointEstimate> checkpoint_candidates(const SavedTensors& saved, size_t depth) {
  const SavedTensorsData& data = SavedTensorsData::of(saved);
  const Layers layers(data);
  std::vector<CheckpointEstimate> estimates;
  for (const std::string& layer : layers_of(data, layers, depth))
    estimates.push_back(Block(data, layers, layer).estimate());
  std::stable_sort(estimates.begin(), estimates.end(),
                   [](const CheckpointEstimate& a, const CheckpointEstimate& b) {
                     return a.bytes_back > b.bytes_back;
                   });
  return estimates;
}

std::ostream& operator<<(std::ostream& out, const CheckpointEstimate& estimate) {
  out << table_name(estimate.layer) << " checkpointed: " << readable_size(estimate.bytes_back)
      << " back (" << readable_size(estimate.kept_bytes) << " of its inputs kept), "
      << estimate.operators_again << " operators run again";
  if (!estimate.exact)
    out << "; not exact: whether the block made all saved tensors that need no gradient is not "
           "known";
  return out << '\n';
}

}  // namespace memledger
