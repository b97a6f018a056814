#include "graph/registry_queries.h"

#include <string_view>

#include "registry/libtorch/storage_impl.h"
#include "registry/registry.h"

namespace memledger::graph_internal {
namespace {

// Labels are paths, in which the registry gives a script's method a part of this form.
bool is_in_torchscript(std::string_view label) {
  constexpr std::string_view kScope = "TorchScript ";
  for (size_t at = label.find(kScope); at != std::string_view::npos;
       at = label.find(kScope, at + 1)) {
    if (at == 0 || label[at - 1] == '/') return true;
  }
  return false;
}

}  // namespace

uint64_t storage_id_of(const at::Tensor& tensor) { return Registry::global().storage_id(tensor); }

OperatorRun run_that_made_storage_of(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage = storage_impl_of(tensor);
  return storage == nullptr ? OperatorRun() : run_that_made(*storage);
}

std::vector<StorageInfo> alive_births_in_torchscript() {
  const Snapshot snapshot = Registry::global().snapshot();
  std::vector<StorageInfo> births;
  for (const DeviceInfo& device : snapshot.devices()) {
    for (const StorageInfo& storage : snapshot.storages(device.device)) {
      if (storage.phase == Phase::kForward && is_in_torchscript(storage.label))
        births.push_back(storage);
    }
  }
  return births;
}

}  // namespace memledger::graph_internal
