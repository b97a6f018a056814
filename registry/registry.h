#pragma once

// Collects every live storage of the process: bytes as requested, who made it, when it died.
//
//   memledger::ScopedTracking tracking;  // in the first line of main: nothing goes unseen
//   auto doubled = input * 2;
//   memledger::Registry& registry = memledger::Registry::global();
//   std::cout << registry.counters(at::kCPU).peak_bytes << " bytes at the peak\n"
//             << registry.snapshot().total_bytes(at::kCPU) << " bytes alive\n";
//
// Memory that is not LibTorch's (from_blob, mapped files) is not counted. docs/design.md says how
// it works, docs/performance.md what it costs.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "registry/changes.h"
#include "registry/counters.h"
#include "registry/scoped.h"
#include "registry/snapshot.h"
#include "registry/stacks.h"

namespace memledger {

struct RegistryOptions {
  // How much is noted of each storage. kNames is for programs in production: LibTorch then hands
  // out neither inputs nor results of operators, which is most of what watching costs. Operators,
  // labels, threads and bytes are as with kAll; shapes, dtypes, layers, inferred optimizer steps
  // and what was made before tracking are missing, and reports say so.
  enum class Detail : uint8_t { kAll, kNames };

  // Watches operators: names, shapes, phases. Without it rows have addresses and sizes only.
  bool operators = true;
  // Adopts storages born before tracking when an operator reads them. Costs one comparison per
  // operator argument.
  bool adopt_inputs = true;
  // Remembers who was alive at peaks: a record of 147 bytes for each storage that was alive at the
  // peak and has been freed since; between sweeps up to twice as many. Without it peak_snapshot()
  // misses those freed since.
  bool peaks = true;
  // Takes the C++ call stacks of allocations (registry/stacks.h).
  StackOptions stacks;
  // That of the activation with which tracking went from off to on holds for all until it is off
  // again: a reporter made later changes nothing.
  Detail detail = Detail::kAll;
};

// The collector of this process. A wrapper before LibTorch's CPU allocator and, where there is one,
// before its CUDA allocator sees births and deaths; a global at::RecordFunction callback names
// them.
//
// Thread-safety: any function from any thread at any time, destructors of static objects included.
// Errors: hooks never throw; health() counts their trouble. Functions that return a Snapshot,
// Changes or Cursor throw std::bad_alloc if memory runs out, and change nothing: the next call
// returns everything. Cost while inactive: one flag read per allocation. Holds no tensor alive.
//
// Functions are virtual because another copy of memledger in the process may answer
// (registry/second_copy/copies.h).
class Registry {
 public:
  // Returns the registry of the process. Never destroyed.
  static Registry& global();

  // Starts tracking; ScopedTracking does it for a scope. Activations are counted: call deactivate()
  // once for each. Peaks restart whenever tracking goes from off to on. A later activation can add
  // options, for everybody, until the last one is undone; it cannot remove any. An allocator that
  // the program sets later is watched from the next snapshot on; do not call c10::SetAllocator,
  // which is not thread-safe, while another thread activates or takes a snapshot.
  //
  // Errors, each naming the remedy:
  //   Internal            LibTorch refuses the operator callback; nothing was activated
  //   ResourceExhausted   no memory for fork handlers; tracking is on, but a child of fork may hang
  //   FailedPrecondition  `stacks` cannot be had beside those another activation takes, or another
  //                       version of memledger was in the process first; nothing was activated
  virtual absl::Status activate(const RegistryOptions& options = {});
  // Undoes one activate(); does nothing without one. Storages already seen are followed to their
  // end; new ones go unseen.
  virtual void deactivate();
  // Returns whether tracking is on.
  virtual bool active() const;

  // Returns all storages alive at one instant. Blocks allocating threads briefly (32 locks) to fix
  // that instant, not while rows are copied.
  virtual Snapshot snapshot() const;
  // Returns what happened since the cursor's last use, and moves the cursor. The first use returns
  // everything alive.
  virtual Changes changes_since(Cursor& cursor) const;
  // Moves the cursor without copying rows: `born` and `died` are empty. Costs the same however much
  // is alive.
  virtual Changes skip_changes(Cursor& cursor) const;
  // Returns another cursor at the same place, for callers that must retry.
  virtual Cursor copy(const Cursor& cursor) const;

  // Returns a device's counters. Cheap, but not of one instant: its figures may be from slightly
  // different moments. Those of a snapshot() are consistent.
  virtual Counters counters(c10::Device device) const;
  // Returns whether allocations on that device can be seen: the CPU's always, a CUDA device's once
  // LibTorch's CUDA library is loaded and an operator, an activation or a snapshot has found it.
  virtual bool follows(c10::Device device) const;
  // Returns who was alive when the device's requested bytes were highest since tracking last went
  // from off to on, or reset_peak(). Exact, right after the allocation that made the peak; the
  // first of equal peaks counts. Shapes and phases are those known now. Storages whose birth nobody
  // saw (they came through an allocator of the program's) count from their adoption on. Cost grows
  // with the number of storages; other threads go on meanwhile.
  virtual Snapshot peak_snapshot(c10::Device device) const;
  // Returns the same for what was born under a label since keep_label_peak(); empty for a label
  // that is not kept. A label is whole parts of a path, wherever they stand in it: `encoder`,
  // `epoch 3/encoder`.
  virtual Snapshot peak_snapshot(c10::Device device, const std::string& label) const;
  // Keeps the peaks of a label from now on, for the life of the process; again: no change. Errors:
  // InvalidArgument for an empty label, ResourceExhausted beyond 16 labels.
  virtual absl::Status keep_label_peak(const std::string& label);
  // Restarts peaks now, those of labels as well.
  virtual void reset_peak(c10::Device device);
  // Returns the trouble that hooks met.
  virtual HookHealth health() const;

  // Returns the id of the storage behind a tensor, and adopts one born before tracking while
  // tracking is on. 0: memory that is not LibTorch's (undefined, zero bytes, from_blob, sparse,
  // opaque), or not seen while tracking is off. Never throws, and materializes nothing.
  virtual uint64_t storage_id(const at::Tensor& tensor) const;

 private:
  Registry() = default;
  ~Registry() = default;
};

// Keeps the registry active while it lives. Reporters and trackers hold one, too.
class ScopedTracking {
 public:
  // Activates the registry. Never throws where tracking cannot be had: status() says why, and so
  // does a line on standard error, once per process for each kind of error. Figures that need
  // tracking then read `?`, unless another activation provides them.
  explicit ScopedTracking(const RegistryOptions& options = {});
  // Undoes its activation, if there was one.
  ~ScopedTracking();
  ScopedTracking(const ScopedTracking&) = delete;
  ScopedTracking& operator=(const ScopedTracking&) = delete;

  // Returns what Registry::activate() returned.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace memledger
