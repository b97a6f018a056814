#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace memledger {

// Returns the storage object behind a tensor, null if it has none (undefined, sparse, opaque).
// Reads two pointers: nothing is materialized. tensor_storages.h finds what lies in a storage.
inline c10::StorageImpl* storage_impl_of(const at::Tensor& tensor) {
  // Not has_storage(), which is virtual, and for tensors without any asserts that this is null.
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace memledger
