#pragma once

#include <cstddef>

namespace memledger::virtual_gpu {

// Fills the range with zeros. Whole pages of a large range are given back to the system where they
// are private and no file's, so that what a program copies from a device takes no memory of the
// host until it is written to. Thread-safe.
void fill_with_zeros(void* begin, size_t bytes);

}  // namespace memledger::virtual_gpu
