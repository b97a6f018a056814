#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "registry/core/name_table.h"
#include "registry/phase.h"

namespace memledger::core {

// The two numbers of a c10::Device, without its header.
struct DeviceKey {
  int8_t type = 0;
  int8_t index = -1;

  friend bool operator==(DeviceKey a, DeviceKey b) {
    return a.type == b.type && a.index == b.index;
  }
  friend bool operator!=(DeviceKey a, DeviceKey b) { return !(a == b); }
};

// Where a storage was made, and by what. Names are ids in the registry's NameTables.
struct Birthplace {
  uint64_t parameter = 0;    // id of the storage of a parameter; see memledger::Birthplace
  NameId op = 0;             // outermost operator running on the thread
  NameId autograd_node = 0;  // backward node running on the thread
  NameId label = 0;          // path of ScopedLabels and user scopes
  NameId forward_op = 0;     // outermost operator that made autograd_node
  NameId forward_label = 0;  // the label it ran under
  uint32_t thread = 0;       // numbered by first use, from 1
  uint32_t op_sequence = 0;  // which run of an operator on that thread; 0: outside operators
  Phase phase = Phase::kOther;
  bool phase_inferred = false;
  bool parameter_inferred = false;
};

// A bit for each label whose peaks are kept.
constexpr size_t kMaxPeakLabels = 16;
using LabelSet = uint32_t;

constexpr int8_t kUnknownDtype = -1;

// One live storage. `id` is never reused; `address` is, by the next storage put there.
struct StorageRecord {
  uint64_t id = 0;
  uintptr_t address = 0;
  int64_t nbytes = 0;
  void* base_deleter = nullptr;  // how the wrapped allocator frees it; opaque here
  void* owner = nullptr;  // the object that holds the memory; opaque here, only of a live storage
  uint64_t birth_epoch = 0;
  uint64_t birth_order = 0;  // among births and deaths of its device; 0: before counting began
  Birthplace birthplace;
  uint64_t consumer = 0;  // see StorageInfo
  LabelSet peak_labels = 0;
  uint32_t stack = 0;      // StackId; 0: none was taken
  float stack_weight = 0;  // how many such storages it stands for
  DeviceKey device;
  int8_t dtype = kUnknownDtype;    // c10::ScalarType
  bool described = false;          // shape and dtype are known
  bool adopted = false;            // born before tracking, or while it was off
  bool raw_block = false;          // made by a raw allocation, not for a storage
  bool library_workspace = false;  // LibTorch keeps it for a library
  bool parameter_like = false;     // an operator consumed it as a leaf that requires grad
  bool told_parameter = false;     // a module of the program says that it is one
  bool gradient = false;           // of the leaf whose storage is birthplace.parameter
  absl::InlinedVector<int64_t, 4> shape;
};

}  // namespace memledger::core
