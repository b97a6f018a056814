#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "registry/core/name_table.h"

namespace memledger::core {

// What an operator is to an optimizer that runs it.
enum class OperatorKind : uint8_t {
  kUnknown,  // not classified yet
  kStep,     // writes to its first tensor as optimizers write to parameters: aten::addcdiv_
  kNeutral,  // optimizers read parameters with it: to make state, for weight decay, flat views
  kOther,    // anything else: on a parameter, a forward pass or initialization
};

OperatorKind kind_of_operator(std::string_view name) noexcept;

// Returns whether zero_grad() does this to a gradient, before it sets it to none, which is no
// operator.
bool may_be_of_zero_grad(std::string_view name) noexcept;

// What is known of an operator by its name.
struct OperatorTraits {
  OperatorKind kind = OperatorKind::kUnknown;
  bool may_be_of_zero_grad = false;
  // It reads parameters of all layers, so that none of them tells one.
  bool reads_all_layers = false;
  // Its result may lie on memory that no watched allocator made.
  bool may_make_external = false;
  bool looks_up = false;  // an embedding reads rows of its weight

  uint8_t packed() const noexcept {
    return static_cast<uint8_t>(
        static_cast<unsigned>(kind) | static_cast<unsigned>(may_be_of_zero_grad) << 2 |
        static_cast<unsigned>(reads_all_layers) << 3 |
        static_cast<unsigned>(may_make_external) << 4 | static_cast<unsigned>(looks_up) << 5);
  }
  static OperatorTraits unpacked(uint8_t bits) noexcept {
    return {static_cast<OperatorKind>(bits & 3), (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0,
            (bits & 32) != 0};
  }
};

OperatorTraits traits_of_operator(std::string_view name) noexcept;

// Remembers traits by the operators' ids in one NameTable. One load, but for a name's first time.
// Lock-free.
class TraitsById {
 public:
  OperatorTraits of(NameId id, const char* name) noexcept {
    // Ids beyond the table are few, and are classified each time.
    const uint8_t known = id < known_.size() ? known_[id].load(std::memory_order_relaxed) : 0;
    return known != 0 ? OperatorTraits::unpacked(known) : classify(id, name);
  }

 private:
  OperatorTraits classify(NameId id, std::string_view name) noexcept;

  std::array<std::atomic<uint8_t>, 8192> known_{};  // 0: not classified yet
};

}  // namespace memledger::core
