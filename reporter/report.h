#pragma once

// A report as a value: who holds how many bytes on each device, and what the allocator says to that.
//
//   memledger::Report report = reporter.collect();
//   for (const memledger::DeviceReport& device : report.devices) CHECK(device.unexplained_bytes.value_or(0) == 0);
//   std::cout << report;
//
// Units: bytes as requested; a std::optional without a value is "nobody knows", never zero. Holds no tensor. Copyable;
// thread-safe as any value.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/counters.h"
#include "registry/device_statistics.h"
#include "registry/phase.h"
#include "reporter/role.h"

namespace memledger {

enum class SortBy : uint8_t { kBytes, kName, kBirth };

struct ReportOptions {
  bool verbose = false;               // no limit of rows, the sharing arrows, hook health
  std::optional<c10::Device> device;  // only this one; without an index, all of its type
  size_t max_rows = 50;               // per device; ignored when verbose
  SortBy sort = SortBy::kBytes;
};

// How the memory of a row came to be known.
enum class RowKind : uint8_t {
  kStorage,      // counted: the row of a live storage
  kShared,       // a further tensor on a storage already counted: 0 bytes
  kExternal,     // a named tensor whose memory is not LibTorch's (from_blob, a mapped file): not counted
  kUnknown,      // a named tensor that cannot be looked into (opaque): bytes unknown
  kNotFollowed,  // a named tensor on a device that nobody follows, or met while nothing is active: bytes unknown
  kMeta,         // a named meta tensor: no memory lies behind it, 0 bytes
};

struct ReportRow {
  RowKind kind = RowKind::kStorage;
  std::string name;   // weight, a+b, Tensor7; empty in a group
  std::string owner;  // kShared: the name of the row that is counted
  // Of the storage: the first that fits any tensor on it, whatever gave the name. kShared: of this row's own tensor.
  Role role = Role::kTensor;
  bool anonymous = false;                // no registered name reaches it
  uint64_t storage_id = 0;               // 0: not in the registry
  std::optional<int64_t> nbytes;         // counted bytes of all of `count`; nullopt: unknown
  int64_t external_bytes = 0;            // kExternal: what is there, but not counted
  std::optional<int64_t> claimed_bytes;  // kNotFollowed, kMeta: what the storage says of its own size; counted nowhere
  size_t count = 1;                      // anonymous rows alike, shown together
  std::vector<std::string> members;      // names of a group, by birth
  std::optional<std::vector<int64_t>> shape;
  std::optional<c10::ScalarType> dtype;
  int64_t storage_offset_bytes = 0;        // where the tensor begins in its storage
  int64_t extent_bytes = 0;                // first to last element; less than nbytes: a view of a part
  std::optional<int64_t> more_references;  // tensors on this storage beyond those with a row; nullopt: not known
  // Where it was made.
  std::string op, autograd_node, label;
  std::string forward_op, forward_label;  // of what made the autograd node
  std::string where;                      // the program's line, where a stack was taken: train.cc:42 main
  Phase phase = Phase::kOther;
  bool phase_inferred = false;
  bool adopted = false;  // born before tracking
};

// What stands between the rows and the allocator's figure.
enum class ReportItemKind : uint8_t {
  // Part of what was requested:
  kLibraryWorkspace,  // LibTorch keeps it for cuBLAS or cuBLASLt; `name` says which, and of which stream
  kRawBlocks,         // the program's or a library's own allocations, not storages
  kBeforeTracking,    // blocks in use that nobody saw born
  // Beyond what was requested:
  kRounding,          // to 512 bytes
  kUnsplitRemainder,  // what a block is larger still: a rest too small to split off, or rounding that the program asked for
};

struct ReportItem {
  ReportItemKind kind = ReportItemKind::kRawBlocks;
  std::string name;
  int64_t bytes = 0;
  size_t count = 1;  // of blocks; 1 for kRounding and kUnsplitRemainder
};

std::string_view to_string(ReportItemKind kind);

// One device. Where it is followed the parts add up: Σ rows' nbytes + Σ items + unexplained_bytes = allocator_bytes.
struct DeviceReport {
  c10::Device device = c10::Device(c10::kCPU);
  bool followed = false;    // the registry sees its allocations
  int64_t total_bytes = 0;  // of the rows whose bytes are known; see used_bytes()
  // Both nothing where the device is not followed.
  // CPU: the wrapper's own counter. CUDA: allocated_bytes of LibTorch's statistics; where it keeps none, the wrapper's counter.
  std::optional<int64_t> allocator_bytes;
  std::optional<int64_t> unexplained_bytes;
  std::vector<ReportItem> items;  // CUDA
  // LibTorch's requested_bytes, and what rows, items of the first kinds and awaited_bytes leave of it. Nothing where it keeps
  // none.
  std::optional<int64_t> requested_bytes;
  std::optional<int64_t> unexplained_requested_bytes;
  // Beyond the allocated bytes, as LibTorch says: awaited_bytes (requested) were freed, but other streams may still use them;
  // reserved_bytes are all that was taken from the driver; cached_free_bytes lie ready in it.
  int64_t awaited_bytes = 0;
  std::optional<int64_t> reserved_bytes;
  std::optional<int64_t> cached_free_bytes;
  std::optional<int64_t> largest_free_block;
  int64_t adopted_bytes = 0;   // of total_bytes: in storages born before tracking
  int64_t external_bytes = 0;  // named tensors on memory that is not LibTorch's; in neither total
  int64_t would_be_bytes = 0;  // of meta tensors, had they memory; in no total
  int64_t elements = 0;  // of all tensors that have a row, shared ones included; a saved slot counts only if it is all there is
  std::vector<int64_t> bytes_by_role;  // indexed by Role
  Counters counters;
  std::vector<ReportRow> rows;  // all of them, sorted; grouping and max_rows are matters of showing

  // total_bytes, or nothing where a row of a device nobody follows keeps it from being the whole.
  std::optional<int64_t> used_bytes() const;
  // The same as the table shows it: on CUDA each storage rounded to 512 bytes.
  std::optional<int64_t> shown_used_bytes() const;
  // What the table shows for that many requested bytes of one storage.
  int64_t shown_bytes(int64_t requested) const;
};

struct Report {
  ReportOptions options;
  // Of who was alive when the device's requested bytes were highest; allocator_bytes then is the peak's height.
  bool of_peak = false;
  bool complete = true;  // of a peak: see Snapshot::complete()
  std::chrono::system_clock::time_point time;
  std::vector<DeviceReport> devices;
  HookHealth health;
  // CPU storages may live that nothing has led to: made before the first activation, or in a gap after it. What of this kind
  // lives on CUDA is an item there.
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  // Pinned host memory: in no device's figures. Nothing where LibTorch's CUDA library is not in the process.
  // In use: at most, see PinnedStatistics.
  std::optional<int64_t> pinned_in_use_bytes;
  std::optional<int64_t> pinned_reserved_bytes;
  // Virtual GPU: what libraries asked for while operators ran, and gave back.
  std::vector<ModelledWorkspace> modelled_workspaces;

  // Sums over the devices of the report. Nothing as soon as one device has none: a sum of what is known would read as the whole.
  // The meta device takes no part, as no memory lies behind it. total_bytes(): of the rows whose bytes are known.
  int64_t total_bytes() const;
  std::optional<int64_t> allocator_bytes() const;
  std::optional<int64_t> unexplained_bytes() const;

  // {"schema": "memledger.report", "version": 1, …}; every row, ungrouped.
  std::string to_json() const;
  // Fixed columns, a header line, every row, ungrouped. RFC 4180 quoting.
  std::string to_csv() const;
  // The printed table.
  friend std::ostream& operator<<(std::ostream& out, const Report& report);
};

}  // namespace memledger
