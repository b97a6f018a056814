#pragma once

#include <cstdint>
#include <string_view>

namespace memledger {

// What a storage is for: the first that fits, in this order. Further reasons to be alive are
// listed, not counted again.
enum class Role : uint8_t {
  kParameter,
  kBuffer,
  kGradient,
  kOptimizerState,
  kInput,      // registered with add_input
  kSaved,      // held by the autograd graph for the backward pass
  kTemporary,  // made inside an operator that is still running
  kTensor,     // anything else
};

constexpr std::string_view to_string(Role role) {
  switch (role) {
    case Role::kParameter:
      return "Parameter";
    case Role::kBuffer:
      return "Buffer";
    case Role::kGradient:
      return "Gradient";
    case Role::kOptimizerState:
      return "OptimizerState";
    case Role::kInput:
      return "Input";
    case Role::kSaved:
      return "Saved";
    case Role::kTemporary:
      return "Temporary";
    case Role::kTensor:
      break;
  }
  return "Tensor";
}

}  // namespace memledger
