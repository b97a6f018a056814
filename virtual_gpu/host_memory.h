#pragma once

#include <cstddef>

namespace memledger::virtual_gpu {

// Fills the range with zeros. Whole pages of a large range go back to the system if they are
// private and belong to no file. So a program's copy from a device takes no memory of the host
// until it is written to. Thread-safe.
void fill_with_zeros(void* begin, size_t bytes);

}  // namespace memledger::virtual_gpu
