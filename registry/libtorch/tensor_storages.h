#pragma once

// The storages behind a tensor, whatever its layout, read without touching them: a copy-on-write
// storage stays shared, a symbolic size stays unknown.
//
// Thread-safe, as long as no other thread resizes or frees the tensor meanwhile.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace memledger {

// Names one allocation. Lazy copies of a storage share its data and so its key; a storage without
// data (meta, zero bytes) is known by the address of its StorageImpl.
struct StorageKey {
  uintptr_t address = 0;
  c10::Device device = c10::Device(c10::kCPU);
};

struct StorageFacts {
  StorageKey key;
  std::optional<int64_t> bytes;  // nothing: symbolic
  bool lent = false;             // Courtesy has taken the data away for a while
};

// Returns nothing where the tensor has no storage that can be seen (mkldnn, XLA, …).
std::optional<StorageFacts> storage_of(const at::Tensor& tensor);

// Returns where the tensor says it is; the CPU for one that does not say.
c10::Device tensor_device(const at::Tensor& tensor);

// Returns the bytes between the first and the last element that the tensor can reach; nothing where
// it is not strided or its sizes are symbolic.
std::optional<int64_t> extent_bytes_of(const at::Tensor& tensor);

// Calls back with each dense part of a tensor and its name. A dense tensor has one part, "". Sparse
// COO has "indices" and "values"; the CSR family has "compressed_indices", "plain_indices" and
// "values". A nested tensor has "", "sizes", "strides" and "offsets". An undefined one has none.
template <typename Callback>
void for_each_part(const at::Tensor& tensor, Callback callback);

using PartCallback = std::function<void(const char*, const at::Tensor&)>;
void for_each_part_of_odd_tensor(const at::Tensor& tensor, const PartCallback& callback);

template <typename Callback>
void for_each_part(const at::Tensor& tensor, Callback callback) {
  if (!tensor.defined()) return;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->layout() == c10::kStrided && !impl->is_nested()) {
    callback("", tensor);
  } else {
    for_each_part_of_odd_tensor(tensor, callback);
  }
}

}  // namespace memledger
