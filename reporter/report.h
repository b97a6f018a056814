#pragma once

// A report as a value: who holds how many bytes on each device, next to the allocator's own figure.
//
//   const memledger::Report report = memledger::MemReporter(model).collect();
//   if (report.unexplained_bytes() != 0) std::cout << report;
//   const std::string page = report.to_html();
//
// Bytes are as requested; a std::optional without a value is unknown, never zero. Holds no tensor.

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

// The order of rows. kBytes and kSize (number of elements) put the largest first; kName and kBirth
// ascend.
enum class SortBy : uint8_t { kBytes, kSize, kName, kBirth };

// What the table puts into one line.
enum class GroupBy : uint8_t {
  kAlike,  // anonymous rows of equal role, producer, shape, dtype and label; named rows never
  kNothing,
  kRole,
  kModule,    // parameters, buffers, gradients, optimizer state and outputs of one module
  kOperator,  // that made the storages
};

// Whether the table is coloured. kAuto: only on a terminal behind std::cout, std::cerr or
// std::clog, and not if the environment has NO_COLOR.
enum class Colour : uint8_t { kAuto, kNever, kAlways };

struct ReportOptions {
  bool verbose =
      false;  // all rows, further tensors of each storage with offset and extent, threads
  std::optional<c10::Device> device;  // only this one; without an index, all of its type
  size_t max_rows = 50;               // of the table, per device; ignored if verbose
  SortBy sort = SortBy::kBytes;
  GroupBy group = GroupBy::kAlike;
  Colour colour = Colour::kAuto;
  // Adds a line on the process's resident memory, which varies between reports though no tensor
  // does.
  bool process_memory = false;
  // Promises what a ScopedTrainingPaused does (registry/training_paused.h), during the call: reads
  // gradients and optimizer states as they are, while other threads run, too.
  bool training_paused = false;
};

// How the memory of a row came to be known.
enum class RowKind : uint8_t {
  kStorage,      // a live storage: its bytes are counted
  kShared,       // a further tensor on a storage that is counted: 0 bytes
  kExternal,     // memory that is not LibTorch's (from_blob, a mapped file): not counted. Anonymous
                 // ones are External7, from when an operator first made or read them
  kUnknown,      // a named tensor that cannot be looked into (opaque): bytes unknown
  kNotFollowed,  // a named tensor on a device that is not followed, or met while nothing is active:
                 // bytes unknown
  kMeta,         // a named meta tensor, without memory: 0 bytes
  kLent,         // a named tensor whose memory was lent back for a while (Courtesy): 0 bytes
  kUnread,       // a gradient that was not read, as another thread may be setting it
                 // (training_paused): its bytes are in an anonymous row
};

// Returns the kind as JSON and CSV spell it: storage, shared, external, unknown, not_followed,
// meta, lent, unread.
std::string_view to_string(RowKind kind);

// The owner of the memory of a kExternal row.
enum class ExternalMemory : uint8_t {
  kProgram,       // the program's own: from_blob
  kMappedFile,    // pages of a file
  kSharedMemory,  // shared with other processes
  kPinned,        // taken through the CUDA driver for copies; part of the pinned host memory
};

// One storage, or a further tensor on it (kShared). The Birthplace says what made the storage.
struct ReportRow : Birthplace {
  RowKind kind = RowKind::kStorage;
  std::string name;   // weight, a+b, Tensor7
  std::string owner;  // kShared: the name of the row that is counted
  // The first role that fits any tensor on the storage; kShared: that fits this tensor.
  Role role = Role::kTensor;
  bool anonymous = false;          // no registered name or graph slot leads to it
  bool used_as_parameter = false;  // an operator consumed it as a leaf that requires grad
  StorageKind storage_kind = StorageKind::kTensor;
  uint64_t storage_id = 0;        // 0: not in the registry
  std::optional<int64_t> nbytes;  // counted bytes
  int64_t external_bytes = 0;     // kExternal: what is there, but not counted
  ExternalMemory external = ExternalMemory::kProgram;
  std::string mapped_from;  // kMappedFile, kSharedMemory: the path, if there is one
  // kNotFollowed, kMeta, kLent: the size that the storage says it has; counted nowhere.
  std::optional<int64_t> claimed_bytes;
  std::optional<c10::DimVector> shape;
  std::optional<c10::ScalarType> dtype;
  // Where the tensor begins in its storage, and how far it reaches from its first to its last
  // element: less than nbytes if it is a view of a part. Unknown for nested and sparse tensors.
  std::optional<int64_t> storage_offset_bytes;
  std::optional<int64_t> extent_bytes;
  // How many bytes of the storage the tensors with a row can reach together: less than nbytes if
  // views keep alive what they do not show. Only for named rows.
  std::optional<int64_t> visible_bytes;
  std::optional<int64_t> more_references;  // tensors on the storage beyond those with a row
  // The path of a module (encoder.layers.0), or its type if it has no path. For a parameter,
  // buffer, gradient or optimizer state it is the owner; for an output, the module whose parameter
  // was read by the operator that made it. Inferred for what was made of that output, and for what
  // backward made of it (Birthplace::parameter_inferred).
  std::string module;
  bool is_output = false;  // an output of `module`
  // A report of a run, at the end of a Python program: the variable that leads to an anonymous
  // row, or the node of which graph has saved it: losses[3]. Empty: not known.
  std::string held_by;
  // A report of a run, in a Python program: activation checkpointing keeps it until backward, which
  // computes from it again.
  bool checkpointed = false;
  std::string where;  // the program's line: train.cc:42 main; empty if no stack was taken
  // Where that is a library's line, the innermost one of the program's own code; empty: not known.
  std::string called_from;
  // False if this is a frozen parameter. Unknown if its tensor has gone or is inside another one
  // (DTensor) and no operator was seen to read it as a leaf that requires grad; also in a report of
  // a past moment, if it has trained and is frozen now.
  std::optional<bool> requires_grad;
  // CUDA, as LibTorch's allocator says: the handle of the stream it is for (0: the default one),
  // and the private pool (MempoolId_t) it lies in ({0, 0}: none). Unknown where the allocator does
  // not say, and in a report of a peak.
  std::optional<uint64_t> stream;
  std::pair<uint64_t, uint64_t> pool{0, 0};

  // Returns the number of elements, 0 where the shape is unknown.
  int64_t elements() const;
};

// What lies between the rows and the allocator's figure.
enum class ReportItemKind : uint8_t {
  // Part of what was requested:
  kLibraryWorkspace,  // kept by LibTorch for cuBLAS or cuBLASLt; `name` says for which, and stream
  kRawBlocks,         // allocations of the program or a library that are not storages
  kBeforeTracking,    // blocks in use whose birth was not seen
  // Beyond what was requested:
  kRounding,          // to the next multiple of 512 bytes
  kUnsplitRemainder,  // how much larger a block is: too little to split off, or rounding that the
                      // program asked for
};

struct ReportItem {
  ReportItemKind kind = ReportItemKind::kRawBlocks;
  std::string name;
  int64_t bytes = 0;
  size_t count = 1;  // blocks; 1 for kRounding and kUnsplitRemainder
};

// Returns the kind as JSON and CSV spell it: library_workspace, raw_blocks, before_tracking,
// rounding, unsplit_remainder.
std::string_view to_string(ReportItemKind kind);

// One device. If it is followed, the parts add up exactly:
//
//   named_bytes + anonymous_bytes = total_bytes = sum of the rows
//   total_bytes + items up to kBeforeTracking + awaited_bytes
//                                 = requested_bytes - unexplained_requested_bytes        (CUDA)
//   total_bytes + all items       = allocator_bytes - unexplained_bytes
//   allocator_bytes + awaited blocks + cached_free_bytes = reserved_bytes                (CUDA)
//   reserved_bytes + outside_allocator_bytes = device_used_bytes                         (CUDA)
struct DeviceReport {
  c10::Device device = c10::Device(c10::kCPU);
  bool followed = false;    // the registry sees its allocations
  int64_t total_bytes = 0;  // of the rows whose bytes are known; see used_bytes()
  int64_t named_bytes = 0;
  int64_t anonymous_bytes = 0;
  // Unknown if the device is not followed. CPU: the allocator wrapper's own counter. CUDA:
  // allocated_bytes of LibTorch's statistics; the wrapper's counter if it keeps none.
  std::optional<int64_t> allocator_bytes;
  std::optional<int64_t> unexplained_bytes;
  // CUDA: threads allocated each time LibTorch's figures were read, so these belong to another
  // instant than the rows. Then allocator_bytes is the wrapper's counter, and LibTorch's figures
  // are unknown.
  bool allocator_moved = false;
  std::vector<ReportItem> items;  // CUDA
  // LibTorch's requested_bytes, and what rows, items of the first kinds and awaited_bytes leave of
  // it.
  std::optional<int64_t> requested_bytes;
  std::optional<int64_t> unexplained_requested_bytes;
  // LibTorch's figures beyond the allocated bytes: freed, but awaited by other streams (as
  // requested); taken from the driver; of these free in the cache; the largest free block.
  std::optional<int64_t> awaited_bytes;
  std::optional<int64_t> reserved_bytes;
  std::optional<int64_t> cached_free_bytes;
  std::optional<int64_t> largest_free_block;
  // The part of cached_free_bytes in segments that are in use elsewhere: it cannot go back to the
  // driver.
  std::optional<int64_t> fragmented_bytes;
  // The driver's figures of the whole device, and what this allocator does not hold of the used
  // bytes: the CUDA context, libraries' own memory (NCCL, cuDNN's handles), other allocators and
  // processes, which nobody can tell apart.
  std::optional<int64_t> device_total_bytes;
  std::optional<int64_t> device_used_bytes;
  std::optional<int64_t> outside_allocator_bytes;
  int64_t adopted_bytes = 0;   // part of total_bytes: storages from before tracking
  int64_t external_bytes = 0;  // tensors on memory that is not LibTorch's; in no total
  int64_t mapped_bytes = 0;    // part of external_bytes: files
  int64_t shared_bytes = 0;    // part of external_bytes: shared memory
  int64_t would_be_bytes = 0;  // what meta tensors would take; in no total
  // Elements of all tensors with a row, shared ones included; of a saved slot only if nothing else
  // is on its storage.
  int64_t elements = 0;
  std::vector<int64_t> bytes_by_role;  // indexed by Role
  Counters counters;
  // In a report of a peak: the id of the storage whose birth made it. 0: unknown.
  uint64_t peak_maker = 0;
  std::vector<ReportRow> rows;  // all, sorted and ungrouped, whatever max_rows and group say

  // Returns total_bytes, or nothing if a kNotFollowed row keeps it from being the whole.
  std::optional<int64_t> used_bytes() const;
  // Returns the same as the table shows it: on CUDA each storage rounded up to 512 bytes.
  std::optional<int64_t> shown_used_bytes() const;
  // In a report of a peak, returns the row of the storage whose birth made it; null: not known.
  const ReportRow* row_that_made_peak() const;
  // Returns what the table shows for one storage of so many requested bytes.
  int64_t shown_bytes(int64_t requested) const;
};

struct Report {
  ReportOptions options;
  bool of_peak = false;  // who was alive at the peak of requested bytes, which is allocator_bytes
  bool complete = true;  // false: rows of a peak are missing, see Snapshot::complete()
  bool deaths_known = true;  // see Snapshot, as the next one
  bool labels_known = true;
  std::chrono::system_clock::time_point time;
  std::vector<DeviceReport> devices;
  HookHealth health;
  // CPU storages may live that nothing has led to: made before the first activation, or in a gap
  // between two. On CUDA they are an item.
  bool unseen_before_tracking = false;
  bool tracking_was_off = false;
  // Storages were born under RegistryOptions::Detail::kNames, without shapes, dtypes and layers.
  bool names_only = false;
  // Pinned host memory, which no device's figures include. The first is an upper bound
  // (PinnedStatistics). Unknown without LibTorch's CUDA library.
  std::optional<int64_t> pinned_in_use_bytes;
  std::optional<int64_t> pinned_reserved_bytes;
  // The process's memory, which holds the CPU's tensors. Unknown where Linux does not say, and in a
  // report of a peak.
  std::optional<ProcessMemory> process;
  // Virtual GPU: what libraries asked for while operators ran, and gave back.
  std::vector<ModelledWorkspace> modelled_workspaces;

  // Return sums over all devices but meta, which has no memory; nothing if one device's figure is
  // unknown. total_bytes() takes the rows whose bytes are known.
  int64_t total_bytes() const;
  std::optional<int64_t> allocator_bytes() const;
  std::optional<int64_t> unexplained_bytes() const;

  // Return every row, ungrouped (docs/formats.md). JSON is {"schema":"memledger.report/2", …} on
  // one line. CSV has a header and a line per row. HTML is one file that needs no network, with a
  // treemap by role and module, and a table to sort and search.
  std::string to_json() const;
  std::string to_csv() const;
  std::string to_html() const;
  // Prints the table, and a line on the hooks if one of them met something unexpected (HookHealth).
  friend std::ostream& operator<<(std::ostream& out, const Report& report);
};

// Print one line each, without its end: a device's totals, a row and an item as in the table.
std::ostream& operator<<(std::ostream& out, const DeviceReport& device);
std::ostream& operator<<(std::ostream& out, const ReportRow& row);
std::ostream& operator<<(std::ostream& out, const ReportItem& item);
std::ostream& operator<<(std::ostream& out, Role role);
std::ostream& operator<<(std::ostream& out, RowKind kind);
std::ostream& operator<<(std::ostream& out, ReportItemKind kind);
std::ostream& operator<<(std::ostream& out, const ProcessMemory& memory);

}  // namespace memledger
