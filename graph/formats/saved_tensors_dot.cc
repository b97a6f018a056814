// SavedTensors as a drawing.

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <vector>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "text/bytes.h"
#include "text/names.h"

namespace memledger {

namespace {

using graph_internal::CompactEdge;
using graph_internal::CompactNode;
using graph_internal::CompactRow;
using graph_internal::SavedTensorsData;

// The activations that each node is the first to hold.
std::vector<int64_t> bytes_by_node(const SavedTensorsData& data) {
  std::vector<int64_t> bytes(data.nodes.size());
  for (const CompactRow& row : data.rows) {
    if (row.counted && row.role == SavedRole::kActivation)
      bytes[row.node] += data.rounded(row.storage_bytes);
  }
  return bytes;
}

// The attributes of a node's box: its label, and its colour.
std::string box(const SavedTensorsData& data, const CompactNode& node, int64_t bytes) {
  if (node.parameter >= 0) {
    return "label=\"" + dot_text(data.parameters[static_cast<size_t>(node.parameter)]) +
           "\", style=filled, fillcolor=lightblue";
  }
  const std::string name = dot_text(node.is_leaf() ? "leaf" : data.names[node.name]);
  if (bytes == 0) return "label=\"" + name + "\"";
  return "label=\"" + name + "\\n" + readable_size(bytes) +
         "\", style=filled, fillcolor=lightyellow";
}

}  // namespace

std::string SavedTensors::to_dot(size_t max_nodes) const {
  const SavedTensorsData& data = *data_;
  TORCH_CHECK(data.nodes.size() <= max_nodes, "to_dot: the graph has ", data.nodes.size(),
              " nodes, more than max_nodes (", max_nodes,
              "); raise max_nodes, or draw a smaller part of the program");
  const std::vector<int64_t> bytes = bytes_by_node(data);
  std::string text =
      "digraph saved_for_backward {\n  rankdir=BT;\n  node [shape=box, fontname=\"sans-serif\"];\n";
  for (size_t i = 0; i < data.nodes.size(); ++i)
    text += "  n" + std::to_string(i) + " [" + box(data, data.nodes[i], bytes[i]) + "];\n";
  for (size_t i = 0; i < data.nodes.size(); ++i) {
    for (uint32_t e = 0; e < data.nodes[i].edge_count; ++e) {
      const CompactEdge& edge = data.edges[data.nodes[i].edges_begin + e];
      if (edge.node == CompactEdge::kNone) continue;
      text += "  n" + std::to_string(edge.node) + " -> n" + std::to_string(i) + " [label=\"" +
              (edge.bytes < 0 ? "?" : readable_size(edge.bytes)) + "\"];\n";
    }
  }
  return text + "}\n";
}

}  // namespace memledger
