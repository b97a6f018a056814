#pragma once

// Reads how much of the machine's memory this process holds, as Linux counts it.
//
//   if (const auto memory = memledger::process_memory())
//     std::cout << memory->resident_bytes << " bytes are resident\n";

#include <cstdint>
#include <optional>

namespace memledger {

// Resident memory in bytes, by whole pages.
struct ProcessMemory {
  int64_t resident_bytes = 0;   // the sum of the others
  int64_t anonymous_bytes = 0;  // heap, stacks, tensors
  int64_t file_bytes = 0;       // libraries and mapped files
  int64_t shared_bytes = 0;     // shared memory
};

// Returns the figures of this moment, or nothing where /proc does not have them. Takes some ten
// microseconds.
std::optional<ProcessMemory> process_memory();

}  // namespace memledger
