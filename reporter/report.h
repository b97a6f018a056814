#pragma once

// A report as a value: who holds how many bytes on each device, and what the allocator says to
// that.
//
//   memledger::Report report = reporter.collect();
//   for (const memledger::DeviceReport& device : report.devices)
//   CHECK(device.unexplained_bytes.value_or(0) == 0); std::cout << report;
//   std::ofstream("memory.html") << report.to_html();
//
// Units: bytes as requested; a std::optional without a value is "nobody knows", never zero. Holds
// no tensor. Copyable; thread-safe as any value. std::string_views are of texts that live as long
// as the process.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "registry/birthplace.h"
#include "registry/counters.h"
#include "registry/device_statistics.h"
#include "registry/storage_kind.h"
#include "reporter/process_memory.h"
#include "reporter/role.h"

namespace memledger {

// The largest first by bytes and by size (number of elements); names and births ascend.
enum class SortBy : uint8_t { kBytes, kSize, kName, kBirth };

// What the table puts into one line.
enum class GroupBy : uint8_t {
  kAlike,  // anonymous rows of equal role, producer, shape, dtype and label; named rows never
  kNothing,
  // Everything of one …
  kRole,
  kModule,    // parameters, buffers, gradients, optimizer state and the outputs of one module
  kOperator,  // that made it
};

// Of the table. kAuto: only for std::cout, std::cerr and std::clog on a terminal, and not where the
// environment has NO_COLOR.
enum class Colour : uint8_t { kAuto, kNever, kAlways };

struct ReportOptions {
  bool verbose = false;  // no limit of rows, the sharing arrows with offset and extent, hook health
  std::optional<c10::Device> device;  // only this one; without an index, all of its type
  size_t max_rows = 50;               // per device; ignored when verbose
  SortBy sort = SortBy::kBytes;
  GroupBy group = GroupBy::kAlike;
  Colour colour = Colour::kAuto;
  // A line on what the process holds besides tensors. It varies from one report to the next though
  // no tensor does.
  bool process_memory = false;
};

// How the memory of a row came to be known.
enum class RowKind : uint8_t {
  kStorage,      // counted: the row of a live storage
  kShared,       // a further tensor on a storage already counted: 0 bytes
  kExternal,     // a named tensor whose memory is not LibTorch's (from_blob, a mapped file): not
                 // counted
  kUnknown,      // a named tensor that cannot be looked into (opaque): bytes unknown
  kNotFollowed,  // a named tensor on a device that nobody follows, or met while nothing is active:
                 // bytes unknown
  kMeta,         // a named meta tensor: no memory lies behind it, 0 bytes
  kLent,         // a named tensor whose memory was lent back for a while (Courtesy): 0 bytes
};

// storage, shared, external, unknown, not_followed, meta, lent.
std::string_view to_string(RowKind kind);

// Whose memory a kExternal row is.
enum class ExternalMemory : uint8_t {
  kProgram,       // the program's own: from_blob
  kMappedFile,    // pages of a file
  kSharedMemory,  // shared with other processes
  kPinned,        // taken through the CUDA driver for copies; part of the pinned host memory
};

struct ReportRow : Birthplace {
  RowKind kind = RowKind::kStorage;
  std::string name;   // weight, a+b, Tensor7
  std::string owner;  // kShared: the name of the row that is counted
  // Of the storage: the first that fits any tensor on it, whatever gave the name. kShared: of this
  // row's own tensor.
  Role role = Role::kTensor;
  bool anonymous = false;  // no registered name reaches it
  // What operators have shown, whatever was registered.
  bool used_as_parameter = false;  // consumed as a leaf that requires grad
  StorageKind storage_kind = StorageKind::kTensor;
  uint64_t storage_id = 0;        // 0: not in the registry
  std::optional<int64_t> nbytes;  // counted bytes; nullopt: unknown
  int64_t external_bytes = 0;     // kExternal: what is there, but not counted
  ExternalMemory external = ExternalMemory::kProgram;
  std::string mapped_from;               // kMappedFile, kSharedMemory: the path, where there is one
  std::optional<int64_t> claimed_bytes;  // kNotFollowed, kMeta, kLent: what the storage says of its
                                         // own size; counted nowhere
  std::optional<c10::DimVector> shape;   // nothing: unknown
  std::optional<c10::ScalarType> dtype;
  int64_t storage_offset_bytes = 0;  // where the tensor begins in its storage
  int64_t extent_bytes = 0;          // first to last element; less than nbytes: a view of a part
  // How much of the storage all the tensors with a row can reach. Less than nbytes: views keep
  // alive what they do not show. Nothing for anonymous rows.
  std::optional<int64_t> visible_bytes;
  std::optional<int64_t>
      more_references;  // tensors on this storage beyond those with a row; nullopt: not known
  // The module that has the parameter, buffer, gradient or optimizer state: its path
  // (encoder.layers.0), or its type where it has no path. Else the one whose output this is: the
  // operator that made it consumed a parameter of it.
  std::string module;
  bool is_output = false;  // of `module`
  std::string where;       // the program's line, where a stack was taken: train.cc:42 main
  // CUDA, as LibTorch's allocator says: the handle of the stream that it is for (0: the default
  // one), and the private pool (MempoolId_t) that it lies in ({0, 0}: none). Nothing where the
  // allocator does not tell, and in a report of a peak.
  std::optional<uint64_t> stream;
  std::pair<uint64_t, uint64_t> pool{0, 0};

  // Of its shape; 0 where that is not known.
  int64_t elements() const;
};

// What stands between the rows and the allocator's figure.
enum class ReportItemKind : uint8_t {
  // Part of what was requested:
  kLibraryWorkspace,  // LibTorch keeps it for cuBLAS or cuBLASLt; `name` says which, and of which
                      // stream
  kRawBlocks,         // the program's or a library's own allocations, not storages
  kBeforeTracking,    // blocks in use that nobody saw born
  // Beyond what was requested:
  kRounding,          // to 512 bytes
  kUnsplitRemainder,  // what a block is larger still: a rest too small to split off, or rounding
                      // that the program asked for
};

struct ReportItem {
  ReportItemKind kind = ReportItemKind::kRawBlocks;
  std::string name;
  int64_t bytes = 0;
  size_t count = 1;  // of blocks; 1 for kRounding and kUnsplitRemainder
};

std::string_view to_string(ReportItemKind kind);

// One device. Where it is followed the parts add up, each line exact:
//   named_bytes + anonymous_bytes            = total_bytes, the sum of the rows
//   + items up to kBeforeTracking + awaited  = requested_bytes − unexplained_requested_bytes (CUDA)
//   total_bytes + all items                  = allocator_bytes − unexplained_bytes
//   allocator_bytes + awaited blocks + cached_free_bytes = reserved_bytes (CUDA) reserved_bytes +
//   outside_allocator_bytes = device_used_bytes                               (CUDA)
struct DeviceReport {
  c10::Device device = c10::Device(c10::kCPU);
  bool followed = false;    // the registry sees its allocations
  int64_t total_bytes = 0;  // of the rows whose bytes are known; see used_bytes()
  int64_t named_bytes = 0;
  int64_t anonymous_bytes = 0;
  // Both nothing where the device is not followed.
  // CPU: the wrapper's own counter. CUDA: allocated_bytes of LibTorch's statistics; where it keeps
  // none, the wrapper's counter.
  std::optional<int64_t> allocator_bytes;
  std::optional<int64_t> unexplained_bytes;
  // CUDA: threads allocated each time LibTorch's figures were read, so that they belong to no
  // instant of the rows. Then allocator_bytes is the wrapper's counter, and what only LibTorch
  // could tell is missing.
  bool allocator_moved = false;
  std::vector<ReportItem> items;  // CUDA
  // LibTorch's requested_bytes, and what rows, items of the first kinds and awaited_bytes leave of
  // it. Nothing where it keeps none.
  std::optional<int64_t> requested_bytes;
  std::optional<int64_t> unexplained_requested_bytes;
  // Beyond the allocated bytes, as LibTorch says: awaited_bytes (requested) were freed, but other
  // streams may still use them; reserved_bytes are all that was taken from the driver;
  // cached_free_bytes lie ready in it.
  int64_t awaited_bytes = 0;
  std::optional<int64_t> reserved_bytes;
  std::optional<int64_t> cached_free_bytes;
  std::optional<int64_t> largest_free_block;
  // Of cached_free_bytes: pieces of segments that are in use elsewhere, so that they cannot go back
  // to the driver.
  std::optional<int64_t> fragmented_bytes;
  // What the driver says of the whole device, and what of it is not this allocator's: the CUDA
  // context, libraries' own memory (NCCL, cuDNN's handles), other allocators and other processes;
  // nobody can tell these apart.
  std::optional<int64_t> device_total_bytes;
  std::optional<int64_t> device_used_bytes;
  std::optional<int64_t> outside_allocator_bytes;
  int64_t adopted_bytes = 0;   // of total_bytes: in storages born before tracking
  int64_t external_bytes = 0;  // named tensors on memory that is not LibTorch's; in neither total
  int64_t mapped_bytes = 0;    // of these: of files
  int64_t shared_bytes = 0;    // of these: shared memory
  int64_t would_be_bytes = 0;  // of meta tensors, had they memory; in no total
  int64_t elements = 0;        // of all tensors that have a row, shared ones included; a saved slot
                               // counts only if it is all there is
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
  // Of who was alive when the device's requested bytes were highest; allocator_bytes then is the
  // peak's height.
  bool of_peak = false;
  bool complete = true;  // of a peak: see Snapshot::complete()
  std::chrono::system_clock::time_point time;
  std::vector<DeviceReport> devices;
  HookHealth health;
  // CPU storages may live that nothing has led to: made before the first activation, or in a gap
  // after it. What of this kind lives on CUDA is an item there.
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  // Pinned host memory: in no device's figures. Nothing where LibTorch's CUDA library is not in the
  // process. In use: at most, see PinnedStatistics.
  std::optional<int64_t> pinned_in_use_bytes;
  std::optional<int64_t> pinned_reserved_bytes;
  // What the CPU's tensors are part of. Nothing where the system does not tell, and in a report of
  // a peak.
  std::optional<ProcessMemory> process;
  // Virtual GPU: what libraries asked for while operators ran, and gave back.
  std::vector<ModelledWorkspace> modelled_workspaces;

  // Sums over the devices of the report. Nothing as soon as one device has none: a sum of what is
  // known would read as the whole. The meta device takes no part, as no memory lies behind it.
  // total_bytes(): of the rows whose bytes are known.
  int64_t total_bytes() const;
  std::optional<int64_t> allocator_bytes() const;
  std::optional<int64_t> unexplained_bytes() const;

  // {"schema": "memledger.report", "version": 2, …}; every row, ungrouped.
  std::string to_json() const;
  // Fixed columns, a header line, every row, ungrouped. RFC 4180 quoting.
  std::string to_csv() const;
  // One file that needs no network: a treemap by role and module, and a table to sort and search.
  // Every row, ungrouped.
  std::string to_html() const;
  // The printed table.
  friend std::ostream& operator<<(std::ostream& out, const Report& report);
};

// One line each, as in the table; of a device its totals.
std::ostream& operator<<(std::ostream& out, const DeviceReport& device);
std::ostream& operator<<(std::ostream& out, const ReportRow& row);
std::ostream& operator<<(std::ostream& out, const ReportItem& item);
std::ostream& operator<<(std::ostream& out, Role role);
std::ostream& operator<<(std::ostream& out, RowKind kind);
std::ostream& operator<<(std::ostream& out, ReportItemKind kind);
std::ostream& operator<<(std::ostream& out, const ProcessMemory& memory);

}  // namespace memledger
