#pragma once

#include <cstddef>

namespace memledger::testing {

// A block that is no tensor's, from the device's allocator past all storages; null where the CPU
// has no such thing.
struct RawBlocks {
  void* (*take)(size_t nbytes);
  void (*give_back)(void* block);
};
extern const RawBlocks* books_raw_blocks;

inline bool books_on_cuda() { return books_raw_blocks != nullptr; }

}  // namespace memledger::testing
