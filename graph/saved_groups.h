#pragma once

// The layers that hold most of what autograd keeps, and what a checkpoint would give back.
//
//   const memledger::SavedTensors saved = memledger::saved_for_backward(*model, loss);
//   std::cout << memledger::by_node_kind(saved) << memledger::by_layer(saved, 1);
//   std::cout << memledger::if_checkpointed(saved, "0");
//
// All bytes are those of activations, rounded as the options of saved_for_backward() say. Functions
// of values, for any number of threads.

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "graph/saved_tensors.h"
#include "registry/snapshot.h"

namespace memledger {

// Counts each storage with its first holder only, so that groups add up.
struct SavedGroup {
  std::string name;  // empty: no layer, or an unknown birthplace
  int64_t bytes = 0;
  size_t storages = 0;  // counted here
  size_t tensors = 0;   // saved tensors, those on shared storages included
};

std::ostream& operator<<(std::ostream& out, const SavedGroup& group);

struct SavedGroups {
  std::string by;                  // "node_kind", "layer", "birthplace"
  std::vector<SavedGroup> groups;  // the biggest first, then by name

  // Returns the sum of the groups, which is SavedTensors::total_bytes().
  int64_t total_bytes() const;
  // Returns one JSON object, schema memledger.saved_groups/2 (docs/formats.md). A name of null: no
  // layer, or an unknown birthplace.
  std::string to_json() const;
  // Returns the header by,name,bytes,storages,tensors and a line per group.
  std::string to_csv() const;
  // Prints a line per group.
  friend std::ostream& operator<<(std::ostream& out, const SavedGroups& groups);
};

// Groups by the type of the node, such as `AddmmBackward0`.
SavedGroups by_node_kind(const SavedTensors& saved);

// Groups by the module path of the parameter that a node consumed, itself or through a view or cast
// of it: `encoder.layers.0.linear1`; of several parameters, by the path that they share. A node
// without parameters belongs to the layer of the node whose result it took; of several, the one
// that ran last. Keeps the first `depth` parts of a path, 0 for all. Without a module given to
// saved_for_backward() no layer is known. Takes time in proportion to nodes and rows.
SavedGroups by_layer(const SavedTensors& saved, size_t depth = 0);

// Groups by the operator, label and phase that made the storage: `aten::exp [encoder, forward]`.
// The birthplace is unknown if the snapshot lacks the storage, because tracking was off when it was
// made or it was freed before the snapshot.
SavedGroups by_birthplace(const SavedTensors& saved, const Snapshot& snapshot);

// What would change if a block ran under a checkpoint: without a graph in the forward pass, its
// inputs kept, and a second time in backward().
struct CheckpointEstimate {
  std::string layer;
  // How many bytes less the graph would hold after the forward pass; negative: more. kept_bytes is
  // already subtracted.
  int64_t bytes_back = 0;
  // The inputs of the block that only the block holds today, and the checkpoint must keep.
  int64_t kept_bytes = 0;
  // Differentiable operators that backward() would run again.
  size_t operators_again = 0;
  // False if it is unknown whether some saved tensors that need no gradient were made in the block
  // or came from outside, or how large an input is that nobody holds. Known is what the operator of
  // the node that saved it has made (a dropout's mask), and what its thread made before a result
  // that came before the block; name a batch and masks in SavedTensorOptions::inputs. The rest is
  // taken for an input where it may be older than all that the block made, else for the block's
  // own.
  bool exact = true;
  friend std::ostream& operator<<(std::ostream& out, const CheckpointEstimate& estimate);
};

// Estimates a checkpoint of the block that is this layer and all below it. Throws c10::Error if
// there is no such layer, and names those there are.
CheckpointEstimate if_checkpointed(const SavedTensors& saved, const std::string& layer);
// Estimates a checkpoint of each layer of `depth` path parts, the one with most to give back first.
std::vector<CheckpointEstimate> checkpoint_candidates(const SavedTensors& saved, size_t depth = 1);

}  // namespace memledger
