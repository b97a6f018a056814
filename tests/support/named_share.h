#pragma once

#include <cstdint>

#include "reporter/report.h"

namespace memledger::testing {

// Returns the share, from 0 to 1, of the rows' bytes that have a name or a role better than
// TensorN, or whose layer is known.
inline double named_share(const DeviceReport& device) {
  int64_t named = 0, all = 0;
  for (const ReportRow& row : device.rows) {
    const int64_t bytes = row.nbytes.value_or(0);
    all += bytes;
    if (!row.anonymous || row.role != Role::kTensor || row.is_output) named += bytes;
  }
  return all == 0 ? 1 : static_cast<double>(named) / static_cast<double>(all);
}

}  // namespace memledger::testing
