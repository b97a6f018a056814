#pragma once

#include <string>

namespace memledger::virtual_gpu {

// Returns where the calling thread is in a Python program, as "moe.py:84 forward": the innermost
// line that is not of PyTorch, or the innermost of all; empty where the thread runs no Python.
// Takes the GIL for a moment. LibTorch's own function for it imports torch._inductor, which costs a
// second and 100 MB. May throw std::bad_alloc.
std::string python_line();

}  // namespace memledger::virtual_gpu
