#pragma once

#include <cstdint>

#include "registry/stacks.h"

namespace memledger {

// Returns the innermost frame of the program's own code that led to a library's line; both have
// lines. In Python that is code in no folder of packages. In C++ it is code in the program's file
// and not in a source of another project. Empty where the program's line (program_frame) is no
// library's, or where no such frame is known. Cost and exceptions as of program_frame().
StackFrame calling_frame(uint32_t stack);

}  // namespace memledger
