#pragma once

// Collects every live storage of the process.
//
//   int main() {
//     memledger::ScopedTracking tracking;   // first line of main: nothing goes unseen
//     ...
//     std::cout << memledger::Registry::global().counters(at::kCPU).peak_bytes << '\n';
//   }
//
// How: a wrapper each stands before LibTorch's CPU allocator and, where there is one, its CUDA
// allocator, and a global at::RecordFunction callback names what the wrappers saw. Bytes are as
// requested. Storages that the program made before activation are adopted when a report, a graph or
// an operator's input leads to them; memory from elsewhere (from_blob, mapped files) is not
// LibTorch's and is not counted.
//
// Thread-safety: every function may be called from any thread at any time, also from destructors of
// static objects. Errors: hooks never throw and never block on anything but a short lock of their
// own; trouble is counted in health(). What returns a Snapshot, Changes or a Cursor throws
// std::bad_alloc when there is no memory for it, and then nothing has changed: the next call tells
// all. Cost: see tests/bench and the README. While inactive: one flag read per allocation.
// Ownership: holds no tensor alive. Lifetime: never destroyed.

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
  // Watch operators: names, shapes, phases. Without it rows have addresses and sizes only.
  bool operators = true;
  // Adopt storages born before tracking when an operator consumes them. Costs a comparison per
  // operator argument.
  bool adopt_inputs = true;
  // Remember who was alive at peaks: one record (some 150 bytes) per storage alive at the peak and
  // freed since, twice as many at most. Without it peak_snapshot() misses those freed since.
  bool peaks = true;
  // Take the C++ call stacks of allocations (registry/stacks.h).
  StackOptions stacks;
};

// Its functions are virtual as another copy of memledger in the process may answer
// (registry/second_copy/copies.h).
class Registry {
 public:
  static Registry& global();

  // Counted: as many deactivate() calls undo it. Peaks are of the time since the first, and so are
  // options; a later activation that asks for more widens them for all until the last has ended,
  // whoever ends first, and one that asks for less changes nothing. An allocator that the program
  // sets afterwards (c10::SetAllocator) is obeyed, and watched from the next snapshot on; it must
  // not be set while another thread activates or takes snapshots (c10::SetAllocator is not
  // thread-safe). Errors: Internal, and nothing is activated, when LibTorch refuses the operator
  // callback; ResourceExhausted, and all is active, when there is no memory for fork handlers (a
  // child of fork could then hang); FailedPrecondition, and this call has activated nothing, when
  // its `stacks` cannot be had beside those that are taken (samples beside those from a size on),
  // and when another version of memledger was in the process first, in which case this copy stays
  // off for good: the message names the option, or both versions.
  virtual absl::Status activate(const RegistryOptions& options = {});
  // Storages already seen are followed to their end; new ones go unseen. A call without an
  // activation is an error in the program and does nothing.
  virtual void deactivate();
  virtual bool active() const;

  // Of one consistent instant: all threads are held for the moment it takes to note it (32 locks),
  // not while rows are copied.
  virtual Snapshot snapshot() const;
  // What happened since the cursor's last use, and moves it. The first use gives everything alive.
  virtual Changes changes_since(Cursor& cursor) const;
  // Moves the cursor without telling what happened: `born` and `died` are empty, the rest is as it
  // is now. Costs the same however much is alive.
  virtual Changes skip_changes(Cursor& cursor) const;
  // Another cursor at the same place: for who may have to ask again, as what he was told could not
  // be passed on.
  virtual Cursor copy(const Cursor& cursor) const;

  // Cheap, and of no one instant: parts may differ by what happened while they were read.
  // snapshot() is exact.
  virtual Counters counters(c10::Device device) const;
  // Whether allocations on that device are seen at all: the CPU's, and a CUDA device's once
  // LibTorch's CUDA library is in the process and an operator, an activation or a snapshot has
  // found it there.
  virtual bool follows(c10::Device device) const;
  // Who was alive when the device's requested bytes were highest, since the activation that is
  // present (or was the last) or reset_peak(): total_bytes() is the peak's height. Exact, and of
  // the instant right after the allocation that made the peak; a later one of the same height does
  // not count. Storages of which nobody knows when they were born (they came unseen through an
  // allocator of the program's while active) count from when they are adopted. Shapes and phases as
  // known now. Allocates by the number of storages; other threads go on meanwhile.
  virtual Snapshot peak_snapshot(c10::Device device) const;
  // The same for what was born under a label (`encoder`, `epoch 3/encoder`: whole parts of a path,
  // wherever they stand in it), since keep_label_peak(). Empty for a label that is not kept.
  virtual Snapshot peak_snapshot(c10::Device device, const std::string& label) const;
  // From now on. At most 16 labels, for the life of the process; ResourceExhausted beyond. Again
  // for the same label: no change.
  virtual absl::Status keep_label_peak(const std::string& label);
  // Peaks count anew from now, those of labels as well.
  virtual void reset_peak(c10::Device device);
  virtual HookHealth health() const;

  // The storage behind a tensor, adopted if it was born before tracking: its id, or 0 if it has
  // none of LibTorch's memory (undefined, zero bytes, from_blob, sparse or opaque). Never throws;
  // materializes nothing.
  virtual uint64_t storage_id(const at::Tensor& tensor) const;

 private:
  Registry() = default;
  ~Registry() = default;
};

// Keeps the registry active while it lives; make it in the first line of main. Reporters and
// trackers hold one, too.
class ScopedTracking {
 public:
  // Activates the registry. Never throws because tracking cannot be had: status() says why, and so
  // does a line on standard error, once per process for each kind of error. Figures that need
  // tracking then read `?`, unless another activation is there.
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
