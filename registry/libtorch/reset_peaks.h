#pragma once

#include <c10/core/Device.h>

namespace memledger {

// Begins the peaks in LibTorch's statistics of a CUDA device anew, for the whole process. Does
// nothing where device_statistics() is empty.
void reset_device_peaks(c10::Device device);

}  // namespace memledger
