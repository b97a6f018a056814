#pragma once

// Which run of an operator has made a storage, or autograd's node. Any thread may call these
// functions.

#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace memledger {

// A run of an outermost operator, as Birthplace::operator_run counts them on a thread. Zeros: not
// known.
struct OperatorRun {
  uint32_t thread = 0;
  uint32_t run = 0;
};

// Returns the run that made the storage; `run` is 0 outside operators.
OperatorRun run_that_made(const c10::StorageImpl& storage) noexcept;

// Returns the last run that began before autograd's node with these numbers was made: unless it is
// a custom Function's or a TorchScript method's, that which made it. Covers the last 65 536 nodes.
OperatorRun run_before_node(uint64_t forward_thread, uint64_t sequence_number) noexcept;

}  // namespace memledger
