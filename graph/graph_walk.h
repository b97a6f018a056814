#pragma once

// The way through an autograd graph: in which order nodes are read, which are locked, and what is
// prefetched.

#include <vector>

#include "graph/libtorch/libtorch_autograd.h"
#include "graph/saved_account.h"
#include "graph/saved_tensors_data.h"
#include "graph/torchscript_inference.h"

namespace memledger::graph_internal {

struct WalkedGraph {
  std::vector<TorchScriptNode> torchscript;
  // Some node holds something, or may do so.
  bool found_something = false;
  // backward() has freed what some node had saved.
  bool found_released = false;
};

// Fills nodes, edges, names and unread of `data`, and gives `account` what the nodes hold.
WalkedGraph walk_graph(const std::vector<NodePtr>& roots, SavedTensorsData& data,
                       SavedAccount& account);

}  // namespace memledger::graph_internal
