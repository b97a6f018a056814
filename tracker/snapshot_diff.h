#pragma once

// What was born and what died between two calls of MemTracker::track(). A storage that is freed and
// replaced by an equal one is a `-` and a `+`; views and what is born and freed in between are not
// in it. So the signed sum of the rows is the change of `tensor_bytes`, to the byte.
//
//   memledger::MemTracker tracker;
//   const memledger::SnapshotDiff diff = tracker.track("after warm-up");
//   for (const memledger::DiffRow& row : diff.rows)
//     if (row.sign == '+') std::cout << row.count << " storages, " << row.bytes << " bytes\n";
//   std::cout << diff << diff.to_json() << '\n';

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "registry/counters.h"
#include "registry/storage_kind.h"
#include "reporter/role.h"
#include "tracker/source_location.h"

namespace memledger {

// Storages with the same sign, role, dtype and shape. Named storages share a row whoever made them,
// anonymous ones only if operator and label are the same, too.
struct DiffRow {
  char sign = '+';                      // '+': born; '-': died
  int64_t count = 0;                    // number of storages
  int64_t bytes = 0;                    // requested bytes of all of them, never negative
  std::optional<c10::DimVector> shape;  // of each; nothing: unknown
  std::optional<c10::ScalarType> dtype;
  Role role = Role::kTensor;
  // Library workspaces and raw blocks have rows of their own, which no sum of tensors includes.
  StorageKind kind = StorageKind::kTensor;
  // One name per storage, by id, `a+b` for tied ones; the last known names of storages
  // that died. Empty: anonymous.
  std::vector<std::string> names;
  // Each empty if unknown, and if the storages of this row differ in it.
  std::string op;             // outermost operator that made them: aten::conv2d
  std::string autograd_node;  // backward node that made them: ConvolutionBackward0
  std::string label;          // ScopedLabels around it, outermost first, with '/' between
  // Born before tracking, or while it was off, and found now: the memory is not new.
  bool adopted = false;
};

// A plain value that holds no tensor; copies are independent. Making one takes time by the number
// of changes, not of live storages.
struct SnapshotDiff {
  std::vector<DiffRow> rows;  // first + then -, each by bytes, then by shape
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // Requested bytes of live storages at the later instant, library workspaces and raw blocks
  // excluded. Nothing: memledger does not follow this device.
  std::optional<int64_t> tensor_bytes = 0;
  // Bytes as the device's allocator counts them. Nothing: unknown.
  std::optional<int64_t> allocated_bytes = 0;
  SourceLocation where;  // of the call of track()
  std::string label;     // given to track()
  std::chrono::system_clock::time_point time;
  // There was no earlier instant to compare with, as memory ran out while changes were noted: the +
  // rows are everything alive.
  bool from_snapshot = false;
  // See Snapshot: storages that nothing led to may be missing from rows and tensor_bytes.
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  HookHealth health;  // since the process began
  // Names of registered tensors whose memory is not LibTorch's, or cannot be seen (from_blob,
  // opaque layouts).
  std::vector<std::string> unread;
  // Names of gradients that were not read, as another thread may be setting them (training_paused):
  // the rows of their storages have no names.
  std::vector<std::string> unread_gradients;

  // Return the requested bytes of tensors that were born, and that died.
  int64_t born_bytes() const;
  int64_t died_bytes() const;

  // Returns the log's line without its end: `At main.cpp line 10: main [label]    Total Tensor …`
  std::string at_line() const;
  // Returns one object, schema memledger.snapshot_diff/2 (docs/formats.md), without a line end.
  std::string to_json() const;
};

// Returns the log's line for the row, without its end.
std::string to_string(const DiffRow& row);
std::ostream& operator<<(std::ostream& out, const DiffRow& row);
// Prints the log's block: the rows, an empty line, the At line and its end.
std::ostream& operator<<(std::ostream& out, const SnapshotDiff& diff);

}  // namespace memledger
