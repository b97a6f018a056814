#pragma once

#include <c10/core/Device.h>

namespace memledger {

// Restarts the peaks in LibTorch's statistics of a CUDA device, for the whole process. Does nothing
// where device_statistics() is empty.
void reset_device_peaks(c10::Device device);

}  // namespace memledger
