#pragma once

// The storage objects themselves, for what has to change them in place (Courtesy).
//
// Known are those that an operator has shown as its result, or that were adopted. Ownership: the
// references are strong: let go of them soon. Thread-safety: any thread. Cost: by the number of
// live storages of the device.

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace memledger {

struct LiveStorage {
  c10::intrusive_ptr<c10::StorageImpl> storage;  // null: not known
  uint64_t id = 0;                               // StorageInfo::id
  uintptr_t address = 0;
  int64_t nbytes = 0;
  bool raw_block = false;
};

// In order of birth.
std::vector<LiveStorage> live_storages(c10::Device device);

// Makes a storage known whose data did not come from an operator.
void know_storage(c10::StorageImpl& storage);

// Whether this storage's memory comes from a watched allocator, and goes back to it with this
// storage alone.
bool owns_watched_block(const c10::StorageImpl& storage) noexcept;

}  // namespace memledger
