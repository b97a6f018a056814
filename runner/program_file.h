#pragma once

#include <string>

namespace memledger::runner {

// Both empty: nothing speaks against it, or it does not exist.
struct Fitness {
  std::string refusal;  // why it cannot be run, or could never be watched: not a program, for
                        // another machine, with LibTorch inside
  std::string note;     // what the caller should know: it is not watched itself
};

// Of a program, looked up in PATH as the shell does.
Fitness check_program(const std::string& program);

}  // namespace memledger::runner
