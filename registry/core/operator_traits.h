#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
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

// What is known of an operator by its name, in a byte.
struct OperatorTraits {
  OperatorKind kind : 2;
  // It reads parameters of all layers, so that none of them points to one.
  bool reads_all_layers : 1;
  // Its result may lie on memory that no watched allocator made.
  bool may_make_external : 1;
  bool looks_up : 1;  // an embedding reads rows of its weight
  // Python's custom Functions run under their class's name. What is within is of its own layer.
  bool is_function : 1;
  // A node that no operator makes: of a custom Function in C++.
  bool is_custom_node : 1;

  uint8_t packed() const noexcept {
    uint8_t bits = 0;
    std::memcpy(&bits, this, sizeof(bits));
    return bits;
  }
  static OperatorTraits unpacked(uint8_t bits) noexcept {
    OperatorTraits traits = {};
    std::memcpy(&traits, &bits, sizeof(bits));
    return traits;
  }
};
static_assert(sizeof(OperatorTraits) == 1);

OperatorTraits traits_of_operator(std::string_view name) noexcept;

// Returns the plain type of a custom Function in C++ by its node's name: Scale of
// torch::autograd::CppNode<net::Scale<float>>. Empty for other nodes.
std::string_view function_of_node(std::string_view node) noexcept;

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
