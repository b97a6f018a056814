#pragma once

#include <cstdint>
#include <string_view>

namespace memledger {

// What the program was doing when a storage was made.
//   kBackward   inside an autograd graph task
//   kOptimizer  inside ScopedPhase(Phase::kOptimizer), else inferred (LibTorch's C++ optimizers
//   open no scope of their own): under
//               no_grad, from arithmetic in place on a storage that operators consumed as a leaf
//               that requires grad, until grad mode is on again or an operator other than
//               arithmetic reads such a storage (a forward pass under no_grad)
//   kForward    grad mode is on and it is not backward
//   kOther      anything else: no_grad work, allocations outside operators
enum class Phase : uint8_t { kOther, kForward, kBackward, kOptimizer };

constexpr std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kOther:
      break;
  }
  return "other";
}

}  // namespace memledger
