#include "registry/libtorch/tensor_storages.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/Layout.h>
#include <c10/util/Exception.h>

#include "registry/libtorch/lent_memory.h"

namespace memledger {

std::optional<StorageFacts> storage_of(const at::Tensor& tensor) {
  // Filled in place, and the bytes not through another optional: reading back as one word what was
  // just written as two waits until all earlier writes have reached the cache.
  std::optional<StorageFacts> facts;
  if (!tensor.defined()) return facts;
  const c10::StorageImpl* impl =
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (impl == nullptr) return facts;
  facts.emplace();
  const void* data = nullptr;
  try {
    data = impl->data_ptr().get();
    facts->key.device = impl->device();
  } catch (const c10::Error& error) {
    // The storage forbids access to its data, as those of fake tensors do.
    facts->lent = says_lent(error.what_without_backtrace());
    data = nullptr;
    facts->key.device = tensor_device(tensor);
  }
  facts->key.address =
      reinterpret_cast<uintptr_t>(data != nullptr ? data : static_cast<const void*>(impl));
  const c10::SymInt bytes = impl->sym_nbytes();
  if (bytes.is_heap_allocated()) {
    facts->bytes = bytes.maybe_as_int();
  } else {
    facts->bytes.emplace(bytes.as_int_unchecked());
  }
  return facts;
}

c10::Device tensor_device(const at::Tensor& tensor) {
  try {
    return tensor.unsafeGetTensorImpl()->device();
  } catch (const c10::Error&) {
    return c10::Device(c10::kCPU);
  }
}

std::optional<int64_t> extent_bytes_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->layout() != c10::kStrided || impl->is_nested() || impl->has_symbolic_sizes_strides()) {
    return std::nullopt;
  }
  try {
    const c10::IntArrayRef sizes = impl->sizes();
    const c10::IntArrayRef strides = impl->strides();
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) return 0;
      last += (sizes[i] - 1) * strides[i];
    }
    return (last + 1) * static_cast<int64_t>(impl->itemsize());
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void for_each_part_of_odd_tensor(const at::Tensor& tensor, const PartCallback& callback) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (const auto* coo = dynamic_cast<const at::SparseTensorImpl*>(impl)) {
    callback("indices", coo->indices());
    callback("values", coo->values());
  } else if (const auto* csr = dynamic_cast<const at::SparseCsrTensorImpl*>(impl)) {
    callback("compressed_indices", csr->compressed_indices());
    callback("plain_indices", csr->plain_indices());
    callback("values", csr->values());
  } else if (const auto* nested = dynamic_cast<const at::native::NestedTensorImpl*>(impl)) {
    callback("", tensor);
    callback("sizes", nested->get_nested_sizes());
    callback("strides", nested->get_nested_strides());
    callback("offsets", nested->get_storage_offsets());
  } else {
    callback("", tensor);
  }
}

}  // namespace memledger
