#pragma once

#include <cstdint>
#include <string>

namespace memledger::virtual_gpu {

// Where the calling thread is in the program: the innermost line that is not LibTorch's.
struct ProgramLine {
  std::string python;  // "moe.py:84 forward"; empty where no Python runs
  uint32_t stack = 0;  // of C++ (registry/stacks.h), where no Python runs
};

// Takes the GIL for a moment where the thread has Python's frames. Never throws.
ProgramLine take_program_line() noexcept;

// Returns a text that identifies the line within the program, and is the same in each run of it:
// the line itself where Python runs, else an offset in a library. Takes some microseconds the first
// time for each stack. Throws std::bad_alloc.
std::string key_of(const ProgramLine& line);

// Returns "train.cc:42 forward(at::Tensor)", or nothing where it is not known. The first call for a
// C++ stack takes some 100 ms.
std::string to_string(const ProgramLine& line);

}  // namespace memledger::virtual_gpu
