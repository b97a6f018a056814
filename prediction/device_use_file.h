#pragma once

#include <cstdint>

// What a process takes of virtual devices, written by the virtual GPU itself. So it is there of
// programs without LibTorch, or with one that is not watched, too, and whatever ends them.

namespace memledger::prediction {

// PID.devices in the folder of kMeasureVariable, or PID.N.devices after the Nth exec(): one
// DeviceUseFile. The process maps it and writes it in place.
inline constexpr char kDeviceUseExtension[] = ".devices";
inline constexpr int kMaxDeviceUses = 8;
inline constexpr int kMaxLibrarySizes = 8;

// Sizes are in bytes. One without a peak was not used.
struct DeviceUseRow {
  char gpu[96];  // as CUDA calls it
  uint64_t capacity_bytes;
  uint64_t context_bytes;  // part of the peak
  uint64_t peak_bytes;     // the maximum that the process took at one time
  // How often it took some, how much in all, and how often it was refused.
  uint64_t times_taken;
  uint64_t taken_in_all;
  uint64_t times_refused;
  uint64_t first_refused_bytes;
};

// Copies to the host of bytes that nobody knows, by their size, as no library watches them.
struct UnwatchedCopies {
  uint64_t single_bytes;  // each of one byte
  uint64_t words;         // of 2, 4 or 8 bytes
  uint64_t blocks;        // of any other size
  uint64_t too_large;     // blocks that are zeros in all runs
};

// Memory that nobody says at most how much it is (virtual_gpu/library_sizes.h).
struct LibrarySizeRow {
  char what[80];
  uint64_t count;
  uint64_t has_upper_bound;
};

struct DeviceUseFile {
  DeviceUseRow devices[kMaxDeviceUses];  // by the machine's numbers
  UnwatchedCopies copies;
  uint64_t are_ones_likely;  // the copies are ones at first, not zeros
  // How often a kernel was given an address of the host's memory, where it may write what the
  // program then reads without a copy; and allocations of managed memory.
  uint64_t host_addresses;
  uint64_t managed_allocations;
  LibrarySizeRow library_sizes[kMaxLibrarySizes];
  char libraries[512];  // NVIDIA's own, as Measurement::libraries has them
};

}  // namespace memledger::prediction
