#pragma once

// What the program was doing when a storage was made.
//
//   memledger::ScopedPhase phase(memledger::Phase::kOptimizer);  // where inference is not enough
//   optimizer.step();

#include <cstdint>
#include <string_view>

namespace memledger {

enum class Phase : uint8_t {
  kOther,     // anything else: work under no_grad, allocations outside operators
  kForward,   // grad mode is on, and it is not backward; or backward computes it again
  kBackward,  // inside an autograd graph task
  // Inside ScopedPhase(Phase::kOptimizer), or inferred, because LibTorch's C++ optimizers open no
  // scope. An inferred step begins under no_grad with arithmetic in place on a parameter: a storage
  // that operators have read as a leaf that requires grad. It ends when grad mode is on again, or
  // when an operator other than arithmetic reads a parameter, as a forward pass under no_grad does.
  kOptimizer,
};

// Returns forward, backward, optimizer or other.
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
