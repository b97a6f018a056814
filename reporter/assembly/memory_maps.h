#pragma once

// Which file, if any, the pages at an address are of.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace memledger {

// The process's mappings of files and shared memory as /proc/self/maps has them at construction.
// Cost: by their number, less than a millisecond for a thousand.
class MemoryMaps {
 public:
  struct Mapping {
    uintptr_t begin = 0, end = 0;
    bool shared_memory = false;  // /dev/shm, memfd, System V, or an anonymous shared mapping
    std::string path;            // empty for an anonymous one
  };

  MemoryMaps();
  // Null for memory of the program's own: heap, stack, private anonymous mappings; and for the
  // pages of programs and libraries, whose data is the program's.
  const Mapping* find(uintptr_t address) const;

 private:
  std::vector<Mapping> mappings_;  // by address
};

}  // namespace memledger
