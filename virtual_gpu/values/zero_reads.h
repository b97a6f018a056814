#pragma once

namespace memledger::virtual_gpu {

// Counts a copy to the host whose values are not known, and read as zero, for the line at the end
// of the run. `op` is the program's operator; nullptr: none runs. Never throws.
void note_zero_read(const char* op) noexcept;

}  // namespace memledger::virtual_gpu
