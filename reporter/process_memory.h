#pragma once

// What this process holds of the machine's memory, as Linux counts it.

#include <cstdint>
#include <optional>
#include <string>

namespace memledger {

// Bytes, by whole pages. The first is the sum of the others.
struct ProcessMemory {
  int64_t resident_bytes = 0;
  int64_t anonymous_bytes = 0;  // heap, stacks, tensors
  int64_t file_bytes = 0;       // of libraries and mapped files
  int64_t shared_bytes = 0;     // shared memory
};

// Empty where /proc does not tell. Cost: some ten microseconds.
std::optional<ProcessMemory> process_memory();

}  // namespace memledger
