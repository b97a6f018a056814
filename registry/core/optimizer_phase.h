#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "registry/core/operator_traits.h"
#include "registry/phase.h"

namespace memledger::core {

class Ledger;

// Infers the phase of one thread from what the hooks report of it.
//
// A ScopedPhase decides while it is open. Else backward and grad mode do. A step is bracketed by
// begin_step(), as Python's optimizers open a user scope, or inferred: LibTorch's C++ optimizers
// open none, and SGD writes through param.data(), which is no leaf that requires grad. So the
// ledger remembers which storages operators consumed as such leaves, and
//
//   no step ── kStep writes to a parameter's storage ─▶ step
//   step    ── grad mode is on, or backward runs ─▶ no step
//   step    ── kOther reads a parameter's storage (a forward pass under no_grad) ─▶ no step
//
// What was born under no_grad and outside scopes since the last forward or backward pass (state
// that the first step makes) becomes the step's, up to kMaxBirths storages. What was born after the
// last write of a step that such a forward pass ends (the input of a test) was not the step's.
// Trivially constructible and destructible, as ThreadContext is; zeros are the start.
class OptimizerPhase {
 public:
  enum class Mode : uint8_t { kNoGrad, kForward, kBackward };

  // Notes that the thread's outermost operator begins.
  void begin_operator(Mode mode) noexcept {
    decidable_ = mode == Mode::kNoGrad;
    if (!decidable_) {
      in_step_ = false;
      birth_count_ = 0;
    }
    operator_phase_ = mode == Mode::kBackward  ? Phase::kBackward
                      : mode == Mode::kForward ? Phase::kForward
                      : in_step()              ? Phase::kOptimizer
                                               : Phase::kOther;
    keeps_births_ = decidable_ && steps_ == 0 && !is_set_ && birth_count_ < kMaxBirths;
  }
  // Notes that the thread is back in an operator inside which an autograd node ran, and with it
  // operators of its own. What the rest of the operator does begins and ends no step.
  void resume_operator(Phase phase) noexcept {
    operator_phase_ = phase;
    end_operator();
  }
  void end_operator() noexcept { decidable_ = keeps_births_ = false; }

  // Notes a storage that the running operator has made. One load where no step can begin: the
  // allocators' hooks call it.
  void note_birth(uintptr_t address, uint64_t id) noexcept {
    if (keeps_births_) keep_birth(address, id);
  }

  // Returns whether the running operator may be part of a step: it began under no_grad, outside
  // backward, and has not turned out to be a forward pass.
  bool may_step() const noexcept { return decidable_; }
  // Returns whether note_parameter() would change anything, so that callers look up only then whose
  // storage an operand is. `first`: the operand is the operator's first, or in its first list.
  bool depends_on(OperatorKind kind, bool first) const noexcept {
    return decidable_ && !is_set_ &&
           (kind == OperatorKind::kStep ? first && (!in_step_ || birth_count_ > 0)
                                        : kind == OperatorKind::kOther);
  }
  // Notes that such an operand is a parameter, which `kind` writes to or reads: a step begins or
  // goes on, and takes what was made for it, or has ended with the last write.
  void note_parameter(OperatorKind kind, Ledger& ledger) noexcept;

  // Bracket a step that says so itself, as Python's optimizers do. What it runs under no_grad is
  // the optimizer's; a closure that computes the loss again is not. They nest.
  void begin_step() noexcept { ++steps_; }
  void end_step() noexcept {
    if (steps_ > 0) --steps_;
    in_step_ = false;
  }
  bool in_bracketed_step() const noexcept { return steps_ > 0; }

  // Called by ScopedPhase. `was_set` and `before` are what the scope found.
  bool is_set() const noexcept { return is_set_; }
  Phase set_phase() const noexcept { return set_phase_; }
  void open_scope(Phase phase) noexcept { restore_scope(true, phase); }
  void restore_scope(bool was_set, Phase before) noexcept {
    is_set_ = was_set;
    set_phase_ = before;
  }

  Phase phase(bool in_operator, bool in_autograd_node) const noexcept {
    return is_set_            ? set_phase_
           : in_operator      ? operator_phase_
           : in_autograd_node ? Phase::kBackward
                              : Phase::kOther;
  }
  bool is_inferred(bool in_operator) const noexcept {
    return !is_set_ && in_operator && operator_phase_ == Phase::kOptimizer && steps_ == 0;
  }
  // Returns the running operator's phase, whatever scope is open.
  Phase operator_phase() const noexcept { return operator_phase_; }

 private:
  static constexpr uint32_t kMaxBirths = 64;
  struct Birth {
    uintptr_t address;
    uint64_t id;
  };

  bool in_step() const noexcept { return in_step_ || steps_ > 0; }
  void keep_birth(uintptr_t address, uint64_t id) noexcept;

  Phase operator_phase_;
  Phase set_phase_;
  bool is_set_;
  bool in_step_;
  bool decidable_;  // what the running operator does with parameters shows whether this is a step
  bool keeps_births_;
  uint32_t birth_count_;
  uint32_t steps_;                        // bracketed ones that are running
  std::array<Birth, kMaxBirths> births_;  // under no_grad, of what may turn out to be a step
};

}  // namespace memledger::core
