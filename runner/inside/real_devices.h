#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "virtual_gpu/device_use.h"

namespace memledger::inside {

// Returns whether the devices of this process are real, or to be measured as if they were
// (environment::kMeasureReal).
bool has_real_devices();

// What the process holds of a CUDA device: what the driver says of it (NVML), else what everybody
// together holds of the device.
struct RealUse {
  std::string name;
  int64_t total_bytes = 0;
  int64_t process_bytes = 0;
  bool is_of_process = false;  // false: other programs may have part of it
};

// Empty for a device that CUDA or NVML do not know. Asks nothing of LibTorch, so it may be called
// at exit. Cost: some calls of the driver, a millisecond.
RealUse real_use(int device);

// What memledger_virtual_gpu_uses says, of real devices that LibTorch has allocated on. The context
// is what the process holds beyond LibTorch's reserved bytes now, libraries included; the peak is
// that plus the peak of reserved bytes. One row per device, empty where nothing was allocated.
std::vector<memledger_virtual_gpu_use> real_device_uses();

// NVIDIA's own libraries in a program on a virtual GPU, as memledger_virtual_gpu_real_libraries()
// gives them. Empty without any, and where the devices are real.
std::string real_libraries();

}  // namespace memledger::inside
