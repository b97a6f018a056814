#pragma once

#include <cstdint>

// What a process takes of virtual devices, written by the virtual GPU itself. So it is there of
// programs without LibTorch, or with one that is not watched, too, and whatever ends them.

namespace memledger::prediction {

// PID.devices in the folder of kMeasureVariable, or PID.N.devices after the Nth exec(): an array of
// kMaxDeviceUses, one for each device of the machine. The process maps it and writes it in place.
inline constexpr char kDeviceUseExtension[] = ".devices";
inline constexpr int kMaxDeviceUses = 8;

// Sizes are in bytes. One without a peak was not used.
struct DeviceUseRow {
  char gpu[96];  // as CUDA calls it
  uint64_t capacity_bytes;
  uint64_t context_bytes;  // part of the peak
  uint64_t peak_bytes;     // the most that the process took at one time
};

}  // namespace memledger::prediction
