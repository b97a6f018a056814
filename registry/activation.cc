#include "registry/activation.h"

#include <algorithm>
#include <optional>

namespace memledger {
namespace {

// Returns stacks that serve both; nothing for samples together with stacks from a size on.
std::optional<StackOptions> wider(StackOptions a, StackOptions b) {
  using Policy = StackOptions::Policy;
  if (a.policy == Policy::kNone) return b;
  if (b.policy == Policy::kNone) return a;
  // Every stack has its own weight, so estimates from all of them, or from samples of two
  // densities, are right as well.
  if (a.policy == Policy::kAll || b.policy == Policy::kAll) return StackOptions::all();
  if (a.policy != b.policy) return std::nullopt;
  return a.bytes <= b.bytes ? a : b;
}

}  // namespace

Activation& activation() {
  static auto* const activation = new Activation;
  return *activation;
}

absl::StatusOr<RegistryOptions> wider(const RegistryOptions& present,
                                      const RegistryOptions& asked) {
  const std::optional<StackOptions> stacks = wider(present.stacks, asked.stacks);
  if (!stacks) {
    return absl::FailedPreconditionError(
        "memledger: RegistryOptions::stacks: another activation takes stacks by the other rule "
        "(sampled or from a size on), and both cannot be had; ask for StackOptions::all(), which "
        "serves both");
  }
  RegistryOptions both;
  both.operators = present.operators || asked.operators;
  both.adopt_inputs = present.adopt_inputs || asked.adopt_inputs;
  both.peaks = present.peaks || asked.peaks;
  both.stacks = *stacks;
  both.detail = present.detail;
  return both;
}

}  // namespace memledger
