#pragma once

#include <atomic>
#include <cstdint>

#include "registry/core/ledger.h"
#include "registry/core/name_table.h"
#include "registry/core/thread_context.h"

namespace memledger {

// What the hooks share. One per process, never destroyed: storages are freed after main has returned.
struct RegistryState {
  // Read first by every hook.
  std::atomic<bool> active{false};
  std::atomic<bool> ever_active{false};
  // An allocation passed while nobody looked: before the first activation, or in a gap after it.
  std::atomic<bool> unseen_before{false};
  std::atomic<bool> unseen_in_gap{false};
  std::atomic<int64_t> unknown_frees{0};
  std::atomic<int64_t> swallowed_exceptions{0};

  // An operator has consumed a leaf that requires grad: this program trains.
  std::atomic<bool> any_parameter_like{false};

  core::NameTable names;   // operators and autograd nodes: as many as LibTorch has
  core::NameTable labels;  // as many as the program makes up
  core::Ledger ledger;
  core::RunningOperators running;

  static RegistryState& get() noexcept {
    static RegistryState* const state = new RegistryState;
    return *state;
  }
};

}  // namespace memledger
