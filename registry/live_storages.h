#pragma once

// The storage objects themselves, for who changes them in place or knows more of them. Any thread
// may call these functions.

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/DimVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "registry/birthplace.h"

namespace memledger {

struct LiveStorage {
  // Strong: let go of it soon. Null: neither shown by an operator as its result nor adopted.
  c10::intrusive_ptr<c10::StorageImpl> storage;
  uint64_t id = 0;  // StorageInfo::id
  uintptr_t address = 0;
  int64_t nbytes = 0;
  bool raw_block = false;
};

// Returns a device's live storages in order of birth. Cost: by their number.
std::vector<LiveStorage> live_storages(c10::Device device);

// A storage on memory that no watched allocator made: a mapped file, shared memory, from_blob. The
// Birthplace has what made it, or, without `op`, where an operator first read it.
struct ExternalStorage : Birthplace {
  uint64_t number = 0;  // by order in which they were seen, from 1
  uintptr_t address = 0;
  int64_t nbytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool pinned = false;  // by LibTorch's allocator of pinned host memory
  // Those of the tensor that was seen on it.
  std::optional<c10::ScalarType> dtype;
  c10::DimVector shape;
};

// Returns those alive that an operator has made or read while the registry was active. They are in
// no Snapshot.
std::vector<ExternalStorage> external_storages();

// Makes a storage known that no operator has shown.
void know_storage(c10::StorageImpl& storage);

// Makes known that a module of the program has a parameter on this storage: operators that read it
// are its layer's, also under no_grad and where it needs no gradient.
void know_parameter(c10::StorageImpl& storage) noexcept;

// Returns what stands before one of LibTorch's CPU allocators, for who would ask that one itself
// and so would not be seen; the same one if nothing does.
c10::Allocator* watched_cpu_allocator(c10::Allocator* allocator) noexcept;

// Returns whether this storage alone owns its memory, and a watched allocator gets it back.
bool owns_watched_block(const c10::StorageImpl& storage) noexcept;

}  // namespace memledger
