// SavedTensors as a drawing.

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"
#include "text/bytes.h"
#include "text/names.h"

namespace memledger {

std::string SavedTensors::to_dot(size_t max_nodes) const {
  using graph_internal::CompactEdge;
  using graph_internal::CompactNode;
  const graph_internal::SavedTensorsData& data = *data_;
  TORCH_CHECK(data.nodes.size() <= max_nodes, "to_dot: the graph has ", data.nodes.size(),
              " nodes, more than the ", max_nodes,
              " that were asked for; raise max_nodes, or draw a smaller part of the program");
  std::vector<int64_t> held(data.nodes.size());
  for (const graph_internal::CompactRow& row : data.rows) {
    if (row.counted && row.role == SavedRole::kActivation)
      held[row.node] += data.rounded(row.storage_bytes);
  }

  std::string out =
      "digraph saved_for_backward {\n  rankdir=BT;\n  node [shape=box, fontname=\"sans-serif\"];\n";
  for (size_t i = 0; i < data.nodes.size(); ++i) {
    const CompactNode& node = data.nodes[i];
    out += "  n" + std::to_string(i) + " [label=\"";
    if (node.parameter >= 0) {
      out += dot_text(data.parameters[static_cast<size_t>(node.parameter)]) +
             "\", style=filled, fillcolor=lightblue];\n";
    } else {
      out += dot_text(node.is_leaf() ? "leaf" : data.names[node.name]);
      if (held[i] > 0)
        out += "\\n" + readable_size(held[i]) + "\", style=filled, fillcolor=lightyellow];\n";
      else
        out += "\"];\n";
    }
  }
  for (size_t i = 0; i < data.nodes.size(); ++i) {
    for (uint32_t e = 0; e < data.nodes[i].edge_count; ++e) {
      const CompactEdge& edge = data.edges[data.nodes[i].edges_begin + e];
      if (edge.node == CompactEdge::kNone) continue;
      out += "  n" + std::to_string(edge.node) + " -> n" + std::to_string(i) + " [label=\"" +
             (edge.bytes < 0 ? "?" : readable_size(edge.bytes)) + "\"];\n";
    }
  }
  return out + "}\n";
}

}  // namespace memledger
