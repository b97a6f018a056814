#include "registry/core/optimizer_phase.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "registry/core/ledger.h"

namespace memledger::core {
namespace {

static_assert(std::is_trivially_destructible_v<OptimizerPhase> &&
              std::is_trivially_default_constructible_v<OptimizerPhase>);

// In-place operators that give a tensor its first or a copied value; optimizers do not step with
// these.
constexpr std::string_view kInitializers[] = {
    "aten::copy_",    "aten::fill_",      "aten::zero_",   "aten::normal_",
    "aten::uniform_", "aten::bernoulli_", "aten::random_", "aten::requires_grad_",
    "aten::set_",     "aten::detach_",    "aten::resize_", "aten::trunc_normal_"};

// What optimizers read parameters with, out of place: to make their state, weight decay, trust
// ratios, flat views.
constexpr std::string_view kReaders[] = {
    "aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like", "aten::new_zeros",
    "aten::new_empty",  "aten::add",       "aten::sub",        "aten::mul",       "aten::div",
    "aten::neg",        "aten::sign",      "aten::abs",        "aten::norm",      "aten::dot",
    "aten::view",       "aten::to",        "aten::detach",     "aten::alias",     "aten::clone",
    "aten::reshape",    "aten::cat"};

template <size_t kCount>
bool is_one_of(const std::string_view (&names)[kCount], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

OperatorKind kind_of_operator(std::string_view name) noexcept {
  if (name.size() < 7 || name.compare(0, 6, "aten::") != 0) return OperatorKind::kOther;
  if (name.compare(6, 7, "_fused_") == 0) return OperatorKind::kStep;
  if (name.back() == '_')
    return is_one_of(kInitializers, name) ? OperatorKind::kOther : OperatorKind::kStep;
  return name.compare(6, 9, "_foreach_") == 0 || is_one_of(kReaders, name) ? OperatorKind::kNeutral
                                                                           : OperatorKind::kOther;
}

bool may_be_of_zero_grad(std::string_view name) noexcept {
  return name == "aten::detach" || name == "aten::detach_" || name == "aten::zero_";
}

OperatorKind OperatorKinds::of(NameId id, const char* name) noexcept {
  // Ids beyond the table are few, and are classified each time.
  if (id >= kinds_.size()) return kind_of_operator(name);
  std::atomic<uint8_t>& known = kinds_[id];
  auto kind = static_cast<OperatorKind>(known.load(std::memory_order_relaxed));
  if (kind == OperatorKind::kUnknown) {
    kind = kind_of_operator(name);
    known.store(static_cast<uint8_t>(kind), std::memory_order_relaxed);
  }
  return kind;
}

void OptimizerPhase::note_parameter(OperatorKind kind, Ledger& ledger) noexcept {
  const bool was_in_step = std::exchange(in_step_, kind == OperatorKind::kStep);
  operator_phase_ = in_step() ? Phase::kOptimizer : Phase::kOther;
  if (was_in_step != in_step_) {
    for (uint32_t i = 0; i < birth_count_; ++i)
      ledger.set_phase(births_[i].address, births_[i].id, operator_phase_, /*inferred=*/in_step_);
  }
  if (!in_step_) decidable_ = false;  // the other operands cannot tell more
  birth_count_ = 0;
  keeps_births_ = false;
}

void OptimizerPhase::keep_birth(uintptr_t address, uint64_t id) noexcept {
  births_[birth_count_++] = {address, id};
  keeps_births_ = birth_count_ < kMaxBirths;
}

}  // namespace memledger::core
