#pragma once

// All storages alive at one instant.
//
//   const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
//   std::cout << snapshot.total_bytes(at::kCPU) << " bytes in all\n";
//   for (const memledger::StorageInfo& storage : snapshot.storages(at::kCPU))
//     std::cout << storage.nbytes << " bytes made by " << storage.op << '\n';
//
// Immutable, so safe on any thread. Copies share their rows. Holds no tensor. Bytes are as
// requested of the allocator.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/DimVector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "registry/birthplace.h"
#include "registry/counters.h"
#include "registry/storage_kind.h"

namespace memledger {

// One storage: one allocation behind one or more tensors, and where it was made.
struct StorageInfo : Birthplace {
  // From 1, never reused. Rises from birth to birth on each thread, and storages born after a
  // snapshot have greater ids than all in it. Otherwise a storage that another thread made earlier
  // may have a greater id, by at most 1 100.
  uint64_t id = 0;
  uintptr_t address = 0;  // of the data; reused by later storages
  int64_t nbytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  float stack_weight = 0;  // how many such storages its stack stands for: StackOptions::sampled()
  bool temporary = false;  // the operator that made it is still running
  // Made by a raw allocation (raw_alloc: Thrust, NCCL, caching_allocator_alloc), not for a storage.
  bool raw_block = false;
  // An operator read it as a leaf that requires grad: a parameter, registered or not.
  bool used_as_parameter = false;
  // Backward made it the gradient of a leaf, whose storage is `parameter`. Known while somebody
  // asks for gradients: a MemReporter, say.
  bool is_gradient = false;
  // The first reader of what no layer has made (an input: `parameter` is 0): the id of the storage
  // of the parameter that the same operator read, or else of what that operator made. 0: not known.
  uint64_t consumer = 0;
  StorageKind kind = StorageKind::kTensor;
  // What the tensor that it was made for looks like. Without dtype the shape is unknown, too: no
  // operator has shown a tensor (raw blocks, scratch memory).
  std::optional<c10::ScalarType> dtype;
  c10::DimVector shape;
};

// One device at that instant.
struct DeviceInfo {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  Counters counters;            // the allocator wrapper's own count, kept apart from the table
  int64_t table_bytes = 0;      // sum over the table's rows
  int64_t adopted_bytes = 0;    // of these, in storages born before tracking or while it was off
  int64_t raw_block_bytes = 0;  // also part of table_bytes
  int64_t library_workspace_bytes = 0;  // also part of table_bytes

  // Returns what is left of table_bytes: memory of tensors.
  int64_t tensor_bytes() const { return table_bytes - raw_block_bytes - library_workspace_bytes; }
};

class Snapshot {
 public:
  Snapshot() = default;

  // Returns the sum of one device's rows: 0 without rows, so also for a device that is not watched
  // (Registry::follows()). A CUDA device without an index is the first.
  int64_t total_bytes(c10::Device device) const;
  // Returns the devices that ever had a storage, in LibTorch's order of device types.
  c10::ArrayRef<DeviceInfo> devices() const;
  // Returns the counters of one device; zeros if it was never used.
  Counters counters(c10::Device device) const;
  // Returns a device's rows by id, valid while a copy of this snapshot lives.
  c10::ArrayRef<StorageInfo> storages(c10::Device device) const;
  // Return the row of a storage, null if it was not alive. Valid while a copy of this snapshot
  // lives. find_address() takes the beginning of the data, and sorts all addresses when first used;
  // of several storages of a peak at one address it returns the last.
  const StorageInfo* find(uint64_t id) const;
  const StorageInfo* find_address(c10::Device device, const void* data) const;

  // Returns the id of the storage whose birth made the peak, the last that was born by then. 0:
  // this is no peak, or the sum was never higher than when counting began.
  uint64_t peak_maker() const;
  // Returns false only for a peak (Registry::peak_snapshot) that lacks storages: they were freed
  // while peaks were not kept, or !labels_known().
  bool complete() const;
  // Returns false only for a peak that lacks storages which were freed while peaks were not kept.
  bool deaths_known() const;
  // Returns false only for a label's peak, which then is a lower bound: something was made under a
  // path of labels for which there was no room (ScopedLabel), so perhaps under this label.
  bool labels_known() const;
  // Returns the instant.
  std::chrono::system_clock::time_point time() const;
  // Return true if storages from before the first activation, or from a gap after it, may be
  // missing on devices of that type (CPU or CUDA). One is added once a module, tensor, graph or
  // operator input leads to it. On CUDA the allocator's own statistics show how much that is
  // (registry/device_statistics.h).
  bool unseen_before_tracking(c10::DeviceType type = c10::DeviceType::CPU) const;
  bool tracking_was_off(c10::DeviceType type = c10::DeviceType::CPU) const;
  // Returns true if storages were born under RegistryOptions::Detail::kNames: their shapes, dtypes
  // and layers are unknown.
  bool names_only() const;

  struct Data;
  explicit Snapshot(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

 private:
  std::shared_ptr<const Data> data_;
};

}  // namespace memledger
