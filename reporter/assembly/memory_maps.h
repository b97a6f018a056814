#pragma once

// Finds the file, if any, that is mapped at an address.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace memledger {

// Reads the process's mappings of files and shared memory from /proc/self/maps when it is made.
// Takes less than a millisecond for a thousand mappings.
class MemoryMaps {
 public:
  struct Mapping {
    uintptr_t begin = 0, end = 0;
    bool shared_memory = false;  // /dev/shm, memfd, System V, or an anonymous shared mapping
    std::string path;            // empty for an anonymous one
  };

  MemoryMaps();
  // Returns null for the program's own memory (heap, stack, private anonymous mappings), and for
  // the pages of programs and libraries, whose data is the program's.
  const Mapping* find(uintptr_t address) const;

 private:
  std::vector<Mapping> mappings_;  // by address
};

}  // namespace memledger
