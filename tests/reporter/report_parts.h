#pragma once

// What tests look at in a report.

#include <sstream>
#include <string>

#include "reporter/mem_reporter.h"
#include "tests/support/allocation_count.h"
#include "tests/support/doctest_beside_torch.h"
#include "tests/support/text_matchers.h"

namespace memledger::testing {

// What LibTorch itself says of all allocations since the first call.
inline AllocationCount& truth() {
  static auto* const count = new AllocationCount;
  return *count;
}

inline std::string text(const MemReporter& reporter, ReportOptions options = {}) {
  std::ostringstream out;
  reporter.report(out, options);
  return out.str();
}

inline std::string verbose_text(const MemReporter& reporter) {
  ReportOptions options;
  options.verbose = true;
  return text(reporter, options);
}

inline const ReportRow* find_row(const Report& report, const std::string& name) {
  for (const DeviceReport& device : report.devices) {
    for (const ReportRow& row : device.rows) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

inline const DeviceReport& cpu(const Report& report) {
  for (const DeviceReport& device : report.devices) {
    if (device.device.is_cpu()) return device;
  }
  FAIL("no report of the CPU");
  return report.devices.front();
}

}  // namespace memledger::testing
