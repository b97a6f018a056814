#pragma once

// Two copies of memledger in one process: a program or plugin that links it, under a runner that
// brings it.
//
// The copy loaded first watches. A later one of the same version installs nothing: its
// Registry::global() is the first's, as is everything else that a process has once. Only the
// first's code touches the tables, as Abseil seeds its hashes with an address in the copy; values
// cross. A later copy of another version says so on standard error and stays off.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "registry/allocation_failure.h"
#include "registry/core/recording_mark.h"
#include "registry/hooks/block_observer.h"
#include "registry/hooks/step_observer.h"
#include "registry/live_storages.h"
#include "registry/operator_runs.h"
#include "registry/phase.h"
#include "registry/stacks.h"

// They find each other through the wrapper before LibTorch's CPU allocator, which says whose it is,
// because symbols of executables cannot be looked up. If the program's own allocator is in front of
// it, they use the C symbol memledger_copy of libraries.
namespace memledger {

class Registry;
struct Recording;

// What a copy does for another one, besides Registry's functions.
class CopyServices {
 public:
  struct PhaseBefore {
    bool was_set = false;
    Phase phase = Phase::kOther;
  };

  // Set the calling thread's label or phase; return what leave_…() restores.
  virtual uint32_t enter_label(const std::string& label) = 0;
  virtual void leave_label(uint32_t before) = 0;
  virtual PhaseBefore enter_phase(Phase phase) = 0;
  virtual void leave_phase(PhaseBefore before) = 0;

  virtual void close_cursor(uint64_t number) = 0;
  virtual AllocationFailureObserver set_failure_observer(
      AllocationFailureObserver observer) noexcept = 0;
  virtual std::vector<StackFrame> stack_frames(uint32_t stack) = 0;
  virtual void start_recording(size_t max_events, core::RecordingMark& mark) = 0;
  virtual void stop_recording() noexcept = 0;
  // Moves the mark to the end, unless `with_alive`.
  virtual Recording read_recording(core::RecordingMark& since, bool with_alive) = 0;
  virtual uint32_t this_thread_number() noexcept = 0;
  virtual BlockObserver set_block_observer(BlockObserver observer) noexcept = 0;
  virtual std::vector<LiveStorage> live_storages(c10::Device device) = 0;
  virtual std::vector<ExternalStorage> external_storages() = 0;
  virtual void know_storage(c10::StorageImpl& storage) = 0;
  virtual void know_parameter(c10::StorageImpl& storage) noexcept = 0;
  virtual c10::Allocator* watched_cpu_allocator(c10::Allocator* allocator) noexcept = 0;
  virtual bool owns_watched_block(const c10::StorageImpl& storage) noexcept = 0;
  virtual uint32_t take_stack() noexcept = 0;
  virtual uint32_t take_program_stack() noexcept = 0;
  virtual std::vector<void*> stack_addresses(uint32_t stack) = 0;
  virtual OperatorRun run_that_made(const c10::StorageImpl& storage) noexcept = 0;
  virtual OperatorRun run_before_node(uint64_t forward_thread,
                                      uint64_t sequence_number) noexcept = 0;
  // For registry/hooks/training_notes.h and registry/hooks/step_observer.h: only the hooks of the
  // copy that watches see gradients made.
  virtual void want_gradients(bool wanted) noexcept = 0;
  virtual void note_gradient(const at::Tensor& leaf) = 0;
  virtual at::Tensor noted_gradient(const at::Tensor& leaf) = 0;
  virtual void add_step_observer(StepObserver observer) noexcept = 0;
  virtual void remove_step_observer(StepObserver observer) noexcept = 0;
  // For registry/device_statistics.h.
  virtual bool allocator_is_usable(c10::DeviceType type) noexcept = 0;
  // Returns true to the first caller: a process has one report at its end.
  virtual bool take_exit_report() noexcept = 0;

 protected:
  ~CopyServices() = default;
};

// What a copy says about itself. The layout of this struct, and the names that lead to it, are the
// same in all versions.
struct CopyOffer {
  const char*
      version;  // and all that decides how values are laid out: if equal, the rest is usable
  Registry* registry;
  CopyServices* services;
};

// A base of the wrapper before LibTorch's CPU allocator. dynamic_cast finds it by name at run time,
// hence the visibility.
class __attribute__((visibility("default"))) CopyInFront {
 public:
  virtual const CopyOffer* memledger_copy() const noexcept = 0;

 protected:
  ~CopyInFront() = default;
};

struct CopyDecision {
  enum class Role : uint8_t { kWatches, kHandsOver, kRefused };
  Role role = Role::kWatches;
  const CopyOffer* watching = nullptr;  // ours, or the one that was here before
  std::string refusal;                  // a sentence with both versions; empty: none
};

// Returns the decision, made at the first call (by the registry at load, which offers itself in
// case it watches); prints a refusal on standard error then. Takes the loader's lock.
const CopyDecision& decide_who_watches(Registry& registry, CopyServices& services);

// Returns the services of the copy that watches: this one's own, or the first's.
CopyServices& copy_services();

// Returns the decision; null until it is made.
const CopyDecision* copy_decision() noexcept;

// Returns whether another version was here first, so that this copy stays off for good.
bool this_copy_is_refused() noexcept;

// Returns the copy that this one hands over to; null if there is none.
const CopyOffer* first_copy() noexcept;

// Asks the copy that watches: CopyServices::take_exit_report().
bool take_exit_report() noexcept;

}  // namespace memledger

// Returns the copy that watches, as far as this one knows; null while it decides.
extern "C" __attribute__((visibility("default"))) const memledger::CopyOffer* memledger_copy();
