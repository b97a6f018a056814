#include "reporter/report.h"

#include <numeric>

namespace memledger {
namespace {

int64_t sum(const std::vector<DeviceReport>& devices, int64_t DeviceReport::*member) {
  return std::accumulate(devices.begin(), devices.end(), int64_t{0},
                         [member](int64_t total, const DeviceReport& device) { return total + device.*member; });
}

}  // namespace

int64_t Report::total_bytes() const { return sum(devices, &DeviceReport::total_bytes); }
int64_t Report::allocator_bytes() const { return sum(devices, &DeviceReport::allocator_bytes); }
int64_t Report::unexplained_bytes() const { return sum(devices, &DeviceReport::unexplained_bytes); }

}  // namespace memledger
