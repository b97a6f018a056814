#pragma once

// The maker of a storage: operator, thread, label and phase.
//
//   const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
//   for (const memledger::StorageInfo& storage : snapshot.storages(at::kCPU))
//     std::cout << storage.op << " in " << storage.label << '\n';
//
// A plain value: StorageInfo, ReportRow and AllocationFailure are Birthplaces. The views of its
// names stay valid for the life of the process.

#include <cstdint>
#include <string_view>

#include "registry/phase.h"

namespace memledger {

struct Birthplace {
  std::string_view op;             // outermost operator: aten::conv2d; empty: outside operators
  std::string_view autograd_node;  // backward node: ConvolutionBackward0; empty: none
  // ScopedLabels, user scopes and `TorchScript forward`, outermost first, with '/' between.
  std::string_view label;
  // The operator of the forward pass that made the autograd node, and its label. Empty where more
  // than 65 536 nodes were made since, and where operators were not watched then. The label of what
  // eager code makes of a compiled graph's result is that graph's.
  std::string_view forward_op;
  std::string_view forward_label;
  // The id of the storage of the last parameter (a leaf that requires grad) that the operator read;
  // 0: none. Inferred: the operator read none, and this is the parameter of the first storage that
  // it read; or a backward node made the storage, and this is its forward operator's. For a
  // gradient it is the leaf's.
  uint64_t parameter = 0;
  uint32_t stack = 0;   // for stack_frames(); 0: none was taken
  uint32_t thread = 0;  // numbered by first use, from 1; 0: unknown
  Phase phase = Phase::kOther;
  bool phase_inferred = false;  // see Phase::kOptimizer
  bool parameter_inferred = false;
  // An embedding's look-up read it. Tells the modules apart that share an embedding's weight.
  bool parameter_looked_up = false;
  // Computed again within backward (activation checkpointing), so of the forward pass: grad mode
  // was on there, and off in backward itself.
  bool recomputed = false;
  // Made in the forward pass by an operator that read a tensor which requires grad, with no
  // backward pass between that and this value. Autograd keeps it if a node of the graph has use for
  // it.
  bool awaits_backward = false;
  // Numbers the runs of outermost operators on `thread`, from 1; 0: outside operators. Starts again
  // after 2^32.
  uint32_t operator_run = 0;
  bool adopted = false;  // born before tracking, or while it was off: the rest is unknown
};

}  // namespace memledger
