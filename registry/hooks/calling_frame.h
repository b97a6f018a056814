#pragma once

#include <cstdint>

#include "registry/stacks.h"

namespace memledger {

// Returns the innermost frame of the program's own code behind a line of a library's, both with
// lines: of what lies in no folder of packages (Python), or in the program's file and no source of
// another project's (C++). Empty where the program's line (program_frame) is no library's, or where
// no such frame is known. Cost and exceptions as of program_frame().
StackFrame calling_frame(uint32_t stack);

}  // namespace memledger
