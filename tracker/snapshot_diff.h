#pragma once

// What became alive and what went away between two calls of MemTracker::track(), as a value.
//
//   memledger::SnapshotDiff step = tracker.track("after warm-up");
//   for (const memledger::DiffRow& row : step.rows) { ... row.sign, row.count, row.bytes, row.names
//   ... } std::cout << step;                 // as in the log file << step.to_json();
//
// By identity: a storage freed and replaced by an equal one is one `-` and one `+`; a view, or a
// second tensor on a storage, is nothing; what was born and freed in between is nothing. So the
// signed sum of the rows is the change of `tensor_bytes`, to the byte.
//
// Units: bytes as requested. Ownership: holds no tensor; copies are independent. Thread-safety: a
// plain value. Cost: making one is by the number of changes; grouping makes rows few.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "registry/changes.h"
#include "registry/counters.h"
#include "reporter/role.h"
#include "tracker/source_location.h"

namespace memledger {

// Storages with the same sign, role, dtype and shape. Named ones are together whoever made them,
// anonymous ones only if their producer and label are the same.
struct DiffRow {
  char sign = '+';                            // '-': gone
  int64_t count = 0;                          // storages
  int64_t bytes = 0;                          // of all of them, never negative
  std::optional<std::vector<int64_t>> shape;  // of one; nothing if unknown
  std::optional<c10::ScalarType> dtype;
  Role role = Role::kTensor;
  // Other than kTensor and kScratch: no tensor's memory, and in no sum of tensors.
  StorageKind kind = StorageKind::kTensor;
  // One for each storage, in order of birth; tied ones as `a+b`. Empty: anonymous. Of what has
  // gone: its last known name.
  std::vector<std::string> names;
  std::string producer;  // operator, e.g. aten::conv2d; empty if unknown, or if the named storages
                         // of this row have several
  std::string label;     // ScopedLabels around it; empty likewise
  // Born before tracking, or while it was off, and found now: the bytes are new in the table, not
  // new in memory.
  bool adopted = false;
};

struct SnapshotDiff {
  std::vector<DiffRow> rows;  // first + then -, each by bytes, then by shape
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // In live storages, at the later instant: library workspaces and raw blocks are not in it. None
  // on a device that nobody follows.
  std::optional<int64_t> tensor_bytes = 0;
  int64_t allocated_bytes = 0;  // as the allocator counts them
  SourceLocation where;
  std::string label;
  std::chrono::system_clock::time_point time;
  // There was no earlier instant to compare with (the process was forked): the + rows are
  // everything alive.
  bool from_snapshot = false;
  // See Snapshot: storages that nothing led to may be missing from rows and tensor_bytes.
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  HookHealth health;  // since the process began
  // Names of registered tensors whose memory is not LibTorch's, or cannot be seen (from_blob,
  // opaque layouts).
  std::vector<std::string> unread;

  // Sums over tensors: what tensor_bytes changes by.
  int64_t born_bytes() const;
  int64_t died_bytes() const;

  // Without a line end: `At main.cpp line 10: main [label]    Total Tensor Used Memory:…`
  std::string at_line() const;
  // One object with "schema" and "version"; fixed keys, bytes as integers, null for unknown.
  std::string to_json() const;
};

// One line of the log, without its end.
std::string to_string(const DiffRow& row);
std::ostream& operator<<(std::ostream& out, const DiffRow& row);
// The block of the log: rows, an empty line, the At line and its end.
std::ostream& operator<<(std::ostream& out, const SnapshotDiff& diff);

// What is known of a storage besides what the registry noted.
struct StorageName {
  Role role = Role::kTensor;
  std::string name;
  // Of the tensor that has the name. They stand in where the registry has none, and go before its
  // own when `whole`.
  std::optional<c10::ScalarType> dtype;
  std::optional<std::vector<int64_t>> shape;
  bool whole = false;  // that tensor covers the storage
};
using StorageNames = std::unordered_map<uint64_t, StorageName>;  // by storage id

struct TensorLooks {
  std::optional<c10::ScalarType> dtype;
  std::optional<std::vector<int64_t>> shape;
};
// Of the tensor that a storage was made for, or that is known by name; `name` may be null.
TensorLooks looks_of(const StorageInfo& storage, const StorageName* name);

// Rows and totals of one device. `where`, `label`, `health` and `unread` are left to the caller.
// Touches nothing but its arguments.
SnapshotDiff make_snapshot_diff(const Changes& changes, c10::Device device,
                                const StorageNames& names);

// Whether both mean one device: the CPU has no index, other devices have.
bool is_same_device(c10::Device a, c10::Device b);

}  // namespace memledger
