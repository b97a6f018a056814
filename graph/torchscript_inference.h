#pragma once

// Infers what TorchScript nodes hold, as they do not show it.

#include <cstdint>
#include <vector>

#include "graph/saved_account.h"
#include "graph/saved_tensors.h"
#include "graph/saved_tensors_data.h"

namespace memledger::graph_internal {

struct TorchScriptNode {
  uint32_t index = 0;  // in SavedTensorsData::nodes
  UnreadNode unread;   // without its detail
};

// Adds a row for each live storage that a TorchScript method made in the forward pass and that has
// no row yet: either a node has captured it, or somebody outside of the graph holds it. A node that
// seems to have captured none gets a row of unknown bytes. Notes all nodes as unread.
void infer_torchscript(std::vector<TorchScriptNode> nodes, SavedTensorsData& data,
                       SavedAccount& account);

}  // namespace memledger::graph_internal
