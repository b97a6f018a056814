// Who holds the most of what autograd keeps, and what a checkpoint would give back.
//
//   memledger::SavedTensors saved = memledger::saved_for_backward(*net, loss, {{input}});
//   std::cout << memledger::by_node_kind(saved) << memledger::by_layer(saved, 1);
//   std::cout << memledger::if_checkpointed(saved, "layer1.0");       // 87.50M back, 14 operators
//   run again
//
// Units    Bytes, of activations, rounded as saved_for_backward() was told to. In all groups a
// storage is counted once, with its
//          first holder, so that the groups add up to total_bytes().
// Layer    The module path of the parameter that a node consumed, itself or through a cast or a
// view (`encoder.layers.0.linear1`);
//          the common path where there are several. A node without parameters is with the node
//          whose result it took, of several with the one that ran last. Layers are known where a
//          module was given to saved_for_backward().
// Threads  Functions of values: any number of threads.
// Cost     By the number of nodes and rows; by_layer() and if_checkpointed() sort the nodes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "graph/saved_tensors.h"
#include "registry/snapshot.h"

namespace memledger {

struct SavedGroup {
  std::string name;
  int64_t bytes = 0;
  size_t storages = 0;  // counted here
  size_t tensors = 0;   // saved tensors of activations, those on shared storages included
};

std::ostream& operator<<(std::ostream& out, const SavedGroup& group);

struct SavedGroups {
  std::string by;                  // "node kind", "layer", "birthplace"
  std::vector<SavedGroup> groups;  // the biggest first, then by name

  int64_t total_bytes() const;
  // {"schema":"memledger.saved_groups/1","by":"layer","total_bytes":…,"groups":[{"name":…,"bytes":…,"storages":…,"tensors":…}]}
  std::string to_json() const;
  std::string to_csv() const;  // by,name,bytes,storages,tensors
  friend std::ostream& operator<<(std::ostream& out, const SavedGroups& groups);
};

SavedGroups by_node_kind(const SavedTensors& saved);
// `depth`: how many parts of the path are kept, 0 for all.
SavedGroups by_layer(const SavedTensors& saved, size_t depth = 0);
// By the operator, label and phase that made the storage, `?` where the snapshot does not know it
// (tracking was off then, or the storage was freed before the snapshot was taken).
SavedGroups by_birthplace(const SavedTensors& saved, const Snapshot& snapshot);

// What would be, had the block been run under a checkpoint: without a graph in the forward pass,
// its inputs kept, and run again in backward.
struct CheckpointEstimate {
  std::string layer;
  int64_t bytes_back = 0;  // less held at the end of the forward pass; negative: more
  int64_t kept_bytes =
      0;  // the block's inputs that nothing but the block holds today: taken off already
  size_t operators_again =
      0;  // the differentiable operators that backward() would run a second time
  // False: the block saves tensors that need no gradient, and without tracking from the start
  // nobody knows whether they were made in it or came from outside. They are taken for the block's
  // own.
  bool exact = true;
  friend std::ostream& operator<<(std::ostream& out, const CheckpointEstimate& estimate);
};

// The block: all nodes of this layer and those below it. c10::Error if there is no such layer,
// naming those there are.
CheckpointEstimate if_checkpointed(const SavedTensors& saved, const std::string& layer);
// Every layer of `depth` path parts, the one with most to give back first.
std::vector<CheckpointEstimate> checkpoint_candidates(const SavedTensors& saved, size_t depth = 1);

}  // namespace memledger
