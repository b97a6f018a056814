#pragma once

// What a storage is for, as reports, the log and all other formats name it.
//
//   std::cout << memledger::to_string(memledger::Role::kOptimizerState);     // OptimizerState
//   std::cout << memledger::machine_name(memledger::Role::kOptimizerState);  // optimizer_state

#include <cstdint>
#include <string_view>

namespace memledger {

// A storage has the first role that fits, in this order. Its further reasons to be alive are
// listed, not counted again.
enum class Role : uint8_t {
  kParameter,
  kBuffer,
  kGradient,
  kOptimizerState,
  kInput,      // given to add_input(), or nameless and read by a layer that did not make it
  kSaved,      // held by the autograd graph for the backward pass
  kTemporary,  // made inside an operator that is still running
  kTensor,     // anything else
};

// Returns the role as printed reports and the log spell it: Parameter, OptimizerState.
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

// Returns the role as JSON and CSV spell it: parameter, optimizer_state.
constexpr std::string_view machine_name(Role role) {
  switch (role) {
    case Role::kParameter:
      return "parameter";
    case Role::kBuffer:
      return "buffer";
    case Role::kGradient:
      return "gradient";
    case Role::kOptimizerState:
      return "optimizer_state";
    case Role::kInput:
      return "input";
    case Role::kSaved:
      return "saved";
    case Role::kTemporary:
      return "temporary";
    case Role::kTensor:
      break;
  }
  return "tensor";
}

}  // namespace memledger
