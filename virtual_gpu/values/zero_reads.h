#pragma once

#include <cstdint>
#include <string>

namespace memledger::virtual_gpu {

// Counts a copy to the host whose values are not known, and read as zero, for the line at the end
// of the run. `op` is the program's operator; nullptr: none runs. Never throws.
void note_zero_read(const char* op) noexcept;

// Notes that the program has got a value of the device that is not the real one: files that are
// written from now on are named at the end of the run. Never throws. Cost: a relaxed load.
void note_unreal_value() noexcept;

struct ZeroReadsSoFar {
  uint64_t count = 0;
  std::string first_op;     // empty where the count is 0
  std::string first_place;  // the program's line; may be empty
};
// Returns what was counted, for the report of a run, which has it instead of the line. Looks up a
// line of C++, which takes a while. Throws std::bad_alloc.
ZeroReadsSoFar zero_reads_so_far();

}  // namespace memledger::virtual_gpu
