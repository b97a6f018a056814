#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace memledger::runner {

// What a program would have written, had its writes not been held back.
struct WouldBeFiles {
  struct File {
    std::string path;  // as the program knows it
    uint64_t bytes = 0;
    bool is_removed = false;  // one that was there before
  };
  std::vector<File> files;  // by path
  uint64_t bytes = 0;       // of all
};

}  // namespace memledger::runner
