#pragma once

// The registry's only accesses to c10::DataPtr and c10::StorageImpl beyond their public functions.
//
// Adoption changes the deleter of a storage that other threads may use at the same moment, though
// not resize or free. LibTorch's functions need several writes for that, with a moment in which
// there is no context; here it is one atomic write.

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <memory>

namespace memledger::libtorch_storages {

using Context = std::unique_ptr<void, c10::DeleterFnPtr>;

template <c10::detail::UniqueVoidPtr c10::DataPtr::*kPointer,
          Context c10::detail::UniqueVoidPtr::*kContext,
          c10::Allocator* c10::StorageImpl::*kAllocator>
struct Members {
  friend c10::DeleterFnPtr& deleter_place(c10::DataPtr& data) {
    return (data.*kPointer.*kContext).get_deleter();
  }
  friend c10::Allocator*& allocator_place(c10::StorageImpl& storage) { return storage.*kAllocator; }
};
// An explicit instantiation may name private members.
template struct Members<&c10::DataPtr::ptr_, &c10::detail::UniqueVoidPtr::ctx_,
                        &c10::StorageImpl::allocator_>;

c10::DeleterFnPtr& deleter_place(c10::DataPtr& data);
c10::Allocator*& allocator_place(c10::StorageImpl& storage);

inline c10::DeleterFnPtr deleter_of(const c10::DataPtr& data) noexcept {
  return __atomic_load_n(&deleter_place(const_cast<c10::DataPtr&>(data)), __ATOMIC_ACQUIRE);
}
inline void set_deleter(c10::DataPtr& data, c10::DeleterFnPtr deleter) noexcept {
  __atomic_store_n(&deleter_place(data), deleter, __ATOMIC_RELEASE);
}
inline void set_allocator(c10::StorageImpl& storage, c10::Allocator* allocator) noexcept {
  __atomic_store_n(&allocator_place(storage), allocator, __ATOMIC_RELEASE);
}

}  // namespace memledger::libtorch_storages
