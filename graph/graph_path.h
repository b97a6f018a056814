#pragma once

// How the autograd graph leads from a root to one of its nodes.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace memledger {

// A node as SavedTensorRow names it.
struct GraphNode {
  std::string name;  // MulBackward0
  uint64_t sequence_number = 0;
  uint64_t forward_thread = 0;
};

// Returns the names of the nodes on a shortest path from the node that computed `root` to `node`,
// both included; none if edges do not lead there, or `root` has no graph. Keeps and changes
// nothing. Takes at most a microsecond per node of the graph.
std::vector<std::string> path_to_node(const at::Tensor& root, const GraphNode& node);

}  // namespace memledger
