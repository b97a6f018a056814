#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "registry/changes.h"
#include "registry/snapshot.h"
#include "reporter/role.h"
#include "tracker/snapshot_diff.h"

// Makes a SnapshotDiff of the registry's changes and of what the program registered.
namespace memledger {

// What the registered modules, optimizers and tensors say about a storage.
struct StorageName {
  Role role = Role::kTensor;
  std::string name;
  // Dtype and shape of the tensor with that name. They are used where the registry knows none, and
  // instead of the registry's if `whole`.
  std::optional<c10::ScalarType> dtype;
  std::optional<c10::DimVector> shape;
  bool whole = false;  // that tensor covers the storage
};
using StorageNames = std::unordered_map<uint64_t, StorageName>;  // by storage id

struct TensorLooks {
  std::optional<c10::ScalarType> dtype;
  std::optional<c10::DimVector> shape;
};

// Returns dtype and shape of the tensor that the storage was made for, or that `name` names (null:
// the storage is anonymous).
TensorLooks looks_of(const StorageInfo& storage, const StorageName* name);

// Returns rows and totals of one device. `where`, `label`, `health` and `unread` are left to the
// caller. A pure function.
SnapshotDiff make_snapshot_diff(const Changes& changes, c10::Device device,
                                const StorageNames& names);

// Returns whether both mean one device: the CPU's index does not count.
bool is_same_device(c10::Device a, c10::Device b);

}  // namespace memledger
