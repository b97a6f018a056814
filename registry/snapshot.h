#pragma once

// What the registry knew at one instant.
//
//   memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
//   int64_t bytes = snapshot.total_bytes(at::kCPU);
//   for (const memledger::StorageInfo& storage : snapshot.storages(at::kCPU)) { ... }
//
// Units: bytes as requested of the allocator. Thread-safety: immutable; copies share their rows.
// Ownership: holds no tensor and no storage, only what was noted about them. Cost: copying is a
// reference count; making one is by the number of live storages.

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
  uint64_t id = 0;        // by order of birth, from 1; never reused
  uintptr_t address = 0;  // of the data; reused by later storages
  int64_t nbytes = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  float stack_weight = 0;  // how many such storages it stands for, see StackOptions::sampled
  bool temporary = false;  // the operator that made it is still running
  // Made by a raw allocation of the device's allocator (raw_alloc: Thrust, NCCL,
  // caching_allocator_alloc), not for a storage.
  bool raw_block = false;
  // An operator consumed it as a leaf that requires grad: a parameter, whether anybody has
  // registered it or not.
  bool used_as_parameter = false;
  StorageKind kind = StorageKind::kTensor;
  // Of the tensor it was made for; nothing if no operator has shown one (raw blocks, scratch
  // memory).
  std::optional<c10::ScalarType> dtype;
  c10::DimVector shape;
};

// One device at that instant.
struct DeviceInfo {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  Counters counters;          // the allocator wrapper's own count, kept apart from the table
  int64_t table_bytes = 0;    // sum over the table's rows
  int64_t adopted_bytes = 0;  // of these, in storages born before tracking or while it was off
  // Parts of table_bytes, too.
  int64_t raw_block_bytes = 0;
  int64_t library_workspace_bytes = 0;

  // What is left: memory of tensors.
  int64_t tensor_bytes() const { return table_bytes - raw_block_bytes - library_workspace_bytes; }
};

class Snapshot {
 public:
  Snapshot() = default;

  // Sum of the rows of one device; 0 for a device that was never used.
  int64_t total_bytes(c10::Device device) const;
  // Devices that ever had a storage, in LibTorch's order of device types.
  c10::ArrayRef<DeviceInfo> devices() const;
  // The counters of one device; zeros if it was never used.
  Counters counters(c10::Device device) const;
  // Rows in order of birth, valid as long as a copy of this snapshot lives.
  c10::ArrayRef<StorageInfo> storages(c10::Device device) const;
  // Null if no such storage was alive. Valid as long as a copy of this snapshot lives.
  const StorageInfo* find(uint64_t id) const;
  const StorageInfo* find_address(c10::Device device, const void* data) const;

  // False only for a peak (Registry::peak_snapshot) some of whose storages were freed while peaks
  // were not kept.
  bool complete() const;
  std::chrono::system_clock::time_point time() const;
  // True if storages may have been made on devices of that type (CPU or CUDA) before the first
  // activation, or in a gap after it: those that no module, tensor, graph or operator input has led
  // to are not among the rows. On CUDA the allocator's own statistics tell how much that is
  // (registry/device_statistics.h).
  bool unseen_before_tracking(c10::DeviceType type = c10::DeviceType::CPU) const;
  bool tracking_was_off(c10::DeviceType type = c10::DeviceType::CPU) const;

  struct Data;
  explicit Snapshot(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

 private:
  std::shared_ptr<const Data> data_;
};

}  // namespace memledger
