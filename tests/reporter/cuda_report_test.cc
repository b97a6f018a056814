// Reports in a program that uses one of two GPUs.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <atomic>
#include <deque>
#include <sstream>
#include <string>
#include <thread>

#include "registry/registry.h"
#include "reporter/mem_reporter.h"

namespace memledger {
namespace {

const c10::Device kCuda0(c10::kCUDA, 0);

std::string text_of(const Report& report) {
  std::ostringstream out;
  out << report;
  return out.str();
}

const DeviceReport& of(const Report& report, c10::Device device) {
  for (const DeviceReport& one : report.devices) {
    if (one.device == device) return one;
  }
  FAIL("no " << device.str() << " in\n" << text_of(report));
  return report.devices.front();
}

TEST_CASE("a report makes no CUDA context where the program has none") {
  const MemReporter reporter;
  const at::Tensor tensor = at::zeros({1000}, kCuda0);
  REQUIRE(at::globalContext().getAcceleratorHooksInterface(at::kCUDA).hasPrimaryContext(0));
  std::ostringstream out;
  reporter.report(out, /*verbose=*/true);
  reporter.report_peak(out, kCuda0);
  reporter.why(tensor);
  CHECK_FALSE(at::globalContext().getAcceleratorHooksInterface(at::kCUDA).hasPrimaryContext(1));
  CHECK(of(reporter.collect(), kCuda0).device_used_bytes.value_or(0) > 0);
}

TEST_CASE("CUDA without an index is the first GPU") {
  const MemReporter reporter;
  { const at::Tensor peak = at::zeros({1 << 20}, kCuda0); }
  const at::Tensor tensor = at::zeros({1000}, kCuda0);
  const Registry& registry = Registry::global();
  CHECK(registry.counters(at::kCUDA).peak_bytes == registry.counters(kCuda0).peak_bytes);
  CHECK(registry.snapshot().total_bytes(at::kCUDA) == 4000);
  CHECK(registry.snapshot().counters(at::kCUDA).current_bytes == 4000);
  std::ostringstream with, without;
  reporter.report_peak(with, kCuda0);
  reporter.report_peak(without, at::kCUDA);
  CHECK(without.str() == with.str());
  CHECK(with.str().find("The peak of requested bytes on cuda:0: 4.00M") != std::string::npos);
}

TEST_CASE("a report beside threads that allocate adds up, with LibTorch's figures or without") {
  const MemReporter reporter;
  const at::Tensor kept = at::zeros({1000}, kCuda0);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    std::deque<at::Tensor> alive;
    while (!stop) {
      alive.push_back(at::empty({static_cast<int64_t>(1000 + alive.size())}, kCuda0));
      if (alive.size() > 50) alive.pop_front();
    }
  });
  int moved = 0;
  for (int i = 0; i < 100 || (moved == 0 && i < 10000); ++i) {
    const Report report = reporter.collect();
    const DeviceReport& device = of(report, kCuda0);
    INFO(text_of(report));
    REQUIRE(device.unexplained_bytes == 0);
    REQUIRE(device.unexplained_requested_bytes.value_or(0) == 0);
    for (const ReportItem& item : device.items) REQUIRE(item.kind != ReportItemKind::kBeforeTracking);
    if (!device.allocator_moved) continue;
    ++moved;
    CHECK_FALSE(device.requested_bytes.has_value());
    CHECK_FALSE(device.reserved_bytes.has_value());
    CHECK(text_of(report).find("LibTorch's figures: ? (other threads allocated each time they were read)") != std::string::npos);
  }
  stop = true;
  other.join();
  CHECK(moved > 0);
  const Report quiet = reporter.collect();
  CHECK_FALSE(of(quiet, kCuda0).allocator_moved);
  CHECK(of(quiet, kCuda0).requested_bytes.has_value());
  CHECK(of(quiet, kCuda0).unexplained_bytes == 0);
}

}  // namespace
}  // namespace memledger
