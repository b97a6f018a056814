#include "registry/core/optimizer_phase.h"

#include <type_traits>
#include <utility>

#include "registry/core/ledger.h"

namespace memledger::core {
namespace {

static_assert(std::is_trivially_destructible_v<OptimizerPhase> &&
              std::is_trivially_default_constructible_v<OptimizerPhase>);

}  // namespace

void OptimizerPhase::note_parameter(OperatorKind kind, Ledger& ledger) noexcept {
  const bool was_in_step = std::exchange(in_step_, kind == OperatorKind::kStep);
  operator_phase_ = in_step() ? Phase::kOptimizer : Phase::kOther;
  if (was_in_step != in_step_) {
    for (uint32_t i = 0; i < birth_count_; ++i)
      ledger.set_phase(births_[i].address, births_[i].id, operator_phase_, /*inferred=*/in_step_);
  }
  if (!in_step_) decidable_ = false;  // the other operands add nothing
  birth_count_ = 0;
  keeps_births_ = false;
}

void OptimizerPhase::keep_birth(uintptr_t address, uint64_t id) noexcept {
  births_[birth_count_++] = {address, id};
  keeps_births_ = birth_count_ < kMaxBirths;
}

}  // namespace memledger::core
