#pragma once

#include <cstddef>

#include "virtual_gpu/known_values.h"

// What a process reads of its devices where no library watches it (reads.h): programs without
// LibTorch, or with a release that this memledger was not built for. The driver sees copies and
// kernels, and neither types nor operators. While `memledger dry-run` measures the process, the
// copies are counted in its UseFile, and their bytes are what the run assumes.

namespace memledger::virtual_gpu {

// Writes what a copy to the host has where nobody knows it: zeros, or what the run assumes of it.
// Returns whether that is another value than in the first runs, which holds whatever is known of
// it. Lock-free. Cost: some nanoseconds per value.
bool read_unknown(void* destination, size_t bytes);

// Counts kernels that were given an address of the host's memory: what they write there is read
// without a copy. Not those of LibTorch, cuDNN and cuBLAS, which are taken to write to none.
// `origin`: where the kernel's code came
// from, in a mapped file; nullptr where that is not known.
void note_host_addresses(const memledger_virtual_gpu_work& work, const void* origin);

// Counts that a program asked for a device's address of the host's memory. Not cuDNN and cuBLAS,
// by `caller`, the code that asks.
void note_host_address_asked(const void* caller);

// Counts an allocation of managed memory, which the host reads without a copy.
void note_managed_allocation();

}  // namespace memledger::virtual_gpu
