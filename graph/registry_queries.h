#pragma once

// What graph/ asks of the live registry.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "registry/operator_runs.h"
#include "registry/snapshot.h"

namespace memledger::graph_internal {

// Returns the registry's number of a tensor's storage, 0 if it is unknown. Adopts a storage that
// was made before tracking.
uint64_t storage_id_of(const at::Tensor& tensor);

// Returns the run of an operator that made a tensor's storage.
OperatorRun run_that_made_storage_of(const at::Tensor& tensor);

// Returns the live storages that were made in the forward pass of a TorchScript method.
std::vector<StorageInfo> alive_births_in_torchscript();

}  // namespace memledger::graph_internal
