#pragma once

// Reaches into c10::StorageImpl: its public functions can make it throw when its data is asked for
// (release_data_and_set_meta_custom_data_ptr_error_msg_), but not make it stop.

#include <c10/core/StorageImpl.h>

namespace memledger::storage_access {

template <bool c10::StorageImpl::*kMember>
struct Member {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*kMember; }
};
// An explicit instantiation may name private members.
template struct Member<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// Takes effect with the next set_data_ptr_noswap().
bool& throws_on_access(c10::StorageImpl& storage);

}  // namespace memledger::storage_access
