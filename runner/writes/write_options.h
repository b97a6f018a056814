#pragma once

#include <cstdint>

namespace memledger::runner {

// What becomes of the files that a program writes.
enum class WritePolicy : uint8_t {
  kDiscard,  // what the program writes goes with it
  kAllow,    // it writes for real
};

struct WriteOptions {
  WritePolicy policy = WritePolicy::kDiscard;
  uint64_t limit_bytes = 0;  // of what one run writes; 0: its part of half of the free memory
};

}  // namespace memledger::runner
