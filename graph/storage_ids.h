#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace memledger::graph_internal {

// The registry's number of a tensor's storage: the one place where graph/ asks the registry anything. A storage born before
// tracking is adopted on the way. 0 means unknown.
uint64_t storage_id_of(const at::Tensor& tensor);

}  // namespace memledger::graph_internal
