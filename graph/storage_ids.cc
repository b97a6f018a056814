#include "graph/storage_ids.h"

#include "registry/registry.h"

namespace memledger::graph_internal {

uint64_t storage_id_of(const at::Tensor& tensor) { return Registry::global().storage_id(tensor); }

}  // namespace memledger::graph_internal
