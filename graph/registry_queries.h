#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "registry/snapshot.h"

namespace memledger::graph_internal {

// The two things that graph/ asks of the live registry.

// The registry's number of a tensor's storage. A storage born before
// tracking is adopted on the way. 0 means unknown.
uint64_t storage_id_of(const at::Tensor& tensor);

// Storages alive now that were made in the forward pass of a TorchScript method, in order of birth.
std::vector<StorageInfo> alive_births_in_torchscript();

}  // namespace memledger::graph_internal
