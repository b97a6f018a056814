#pragma once

namespace memledger::inside {

// In a Python program, sees to it that PyTorch's hooks tell names from the end of its import on.
// Costs next to nothing where there is no Python, or where it is done. Calls no function of
// Python's that takes its lock. Throws nothing.
void tell_python_names() noexcept;

}  // namespace memledger::inside
