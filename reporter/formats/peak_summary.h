#pragma once

// A device's peak on a few lines: how high, who held it, the largest tensors.
//
//   const memledger::Report peak = memledger::MemReporter().collect_peak(device);
//   std::cout << memledger::peak_summary(peak.devices.front(), {});

#include <cstdint>
#include <optional>
#include <string>

#include "reporter/report.h"

namespace memledger {

// What the rows do not tell, in bytes. Empty: not known, and not printed.
struct PeakFigures {
  std::string gpu;                        // NVIDIA H100
  std::optional<int64_t> allocated_peak;  // LibTorch's own, of the whole run
  std::optional<int64_t> reserved_peak;
  std::optional<int64_t> capacity;
};

// Returns the lines, each ended. The device is of MemReporter::collect_peak(). Cost grows with its
// rows.
std::string peak_summary(const DeviceReport& device, const PeakFigures& figures);

}  // namespace memledger
