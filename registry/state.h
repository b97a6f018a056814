#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "registry/core/event_ring.h"
#include "registry/core/ledger.h"
#include "registry/core/name_table.h"
#include "registry/core/peak_labels.h"
#include "registry/core/step_marks.h"
#include "registry/core/thread_context.h"
#include "registry/hooks/block_observer.h"
#include "registry/hooks/step_observer.h"

namespace memledger {

// Device types whose allocators have wrappers.
enum class WatchedType : uint8_t { kCpu, kCuda };
constexpr size_t kWatchedTypes = core::ThreadContext::kWatchedTypes;

// Whether an allocation passed while nobody looked.
struct Unseen {
  std::atomic<bool> before{false};  // the first activation
  std::atomic<bool> in_gap{false};  // after it
};

// What the hooks share. Never destroyed: storages are freed after main has returned.
struct RegistryState {
  // Read first by every hook.
  std::atomic<bool> active{false};
  std::atomic<bool> ever_active{false};
  std::array<Unseen, kWatchedTypes> unseen;
  std::atomic<bool> names_only{false};       // RegistryOptions::Detail::kNames
  std::atomic<bool> ever_names_only{false};  // storages were born so
  std::atomic<bool> has_demand_observer{false};
  std::atomic<bool> closed{false};  // hooks/close_books.h
  std::atomic<BlockObserver> block_observer{nullptr};
  StepObservers step_observers;
  std::atomic<int> gradients_wanted{0};  // number of living GradientNotes::Wanted
  std::atomic<int64_t> unknown_frees{0};
  std::atomic<int64_t> swallowed_exceptions{0};

  core::NameTable names;   // operators and autograd nodes: as many as LibTorch has
  core::NameTable labels;  // as many as the program makes up
  core::PeakLabels peak_labels;
  core::LabelHistory label_history;
  core::Ledger ledger;
  core::RunningOperators running;
  core::ForwardOperators forward_operators;
  std::atomic<core::StepMarks*> step_marks{nullptr};  // null: nobody asks for steps

  Unseen& unseen_of(WatchedType type) noexcept { return unseen[static_cast<size_t>(type)]; }
  const Unseen& unseen_of(WatchedType type) const noexcept {
    return unseen[static_cast<size_t>(type)];
  }

  // Hidden, so that the loader does not merge those of two copies (registry/second_copy/copies.h).
  __attribute__((visibility("hidden"))) static RegistryState& get() noexcept {
    static RegistryState* const state = new RegistryState;
    return *state;
  }
};

}  // namespace memledger
