#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "virtual_gpu/convolution.h"

namespace memledger::virtual_gpu {

struct CalibratedConvolution {
  Convolution convolution;
  uint64_t workspace_bytes = 0;  // the largest that was seen
};

// What `memledger validate` measured of a real device and a program, for runs on the virtual one.
struct Calibration {
  std::string device;            // as CUDA calls it
  uint64_t context_bytes = 0;    // the process beyond LibTorch's reserved bytes, at its first block
  uint64_t libraries_bytes = 0;  // what it held more of that at its end
  // NVML reported what the process held; else both are of all that the device had in use.
  bool is_of_process = true;
  std::vector<CalibratedConvolution> convolutions;

  // Returns what cuDNN asked for; empty for a convolution that was not seen. Linear in their
  // number.
  std::optional<uint64_t> workspace_of(const Convolution& convolution) const;
  // Notes a convolution, or keeps the larger of two workspaces.
  void add(const CalibratedConvolution& seen);
};

// A calibration as a JSON object (docs/formats.md), with a line for each convolution.
std::string calibration_json(const Calibration& calibration);

struct ParsedCalibration {
  std::optional<Calibration> calibration;
  // A sentence that names the field, where there is no calibration.
  std::string error;
};

ParsedCalibration parse_calibration_json(std::string_view text);

}  // namespace memledger::virtual_gpu
