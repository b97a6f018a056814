#pragma once

namespace memledger::inside {

// In a Python program, both make PyTorch's hooks register names from the end of its import on. They
// cost next to nothing where there is no Python, or where it is done, and throw nothing.
//
// For a caller that may have the dynamic linker's lock. Takes no lock of Python's: asks Python's
// main thread, which may be waiting for the one that imports torch.
void tell_python_names_soon() noexcept;
// For one that has not. Takes Python's lock where this is a thread of Python's, else does as above.
void tell_python_names_now() noexcept;

}  // namespace memledger::inside
