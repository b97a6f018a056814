// Reports in a program that uses one of two GPUs.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

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

TEST_CASE("threads of autograd and of the virtual GPU are none of the program's outside backward") {
  MemReporter reporter;
  const at::Tensor leaf = at::ones({1000}, kCuda0).set_requires_grad(true);
  reporter.add_tensor("leaf", leaf);
  const auto kind = [&] {
    for (const ReportRow& row : of(reporter.collect(), kCuda0).rows) {
      if (row.name == "leaf.grad") return std::string(to_string(row.kind));
    }
    return std::string("none");
  };
  at::Tensor loss = (leaf * 2).sum();
  std::string inside;
  (void)loss.register_hook([&](const at::Tensor&) {
    leaf.mutable_grad() = at::zeros({1000}, kCuda0);
    inside = kind();
  });
  loss.backward();
  CHECK(inside == "unread");  // on the engine's thread, next to main's
  leaf.mutable_grad() = at::zeros({1000}, kCuda0);
  CHECK(kind() == "storage");
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

TEST_CASE("rows say the stream, the private pool and the thread that they are of") {
  const MemReporter reporter;
  const auto row_of = [&](const Report& report, const at::Tensor& tensor) -> const ReportRow& {
    const uint64_t id = Registry::global().storage_id(tensor);
    for (const ReportRow& row : of(report, kCuda0).rows) {
      if (row.storage_id == id) return row;
    }
    FAIL("no row");
    return of(report, kCuda0).rows.front();
  };
  const at::Tensor plain = at::zeros({1000}, kCuda0);
  CHECK(text_of(reporter.collect()).find("stream") == std::string::npos);
  CHECK(text_of(reporter.collect()).find("thread") == std::string::npos);

  const c10::cuda::CUDAStream second = c10::cuda::getStreamFromPool(false, 0);
  at::Tensor on_second, in_pool, of_thread;
  {
    const c10::cuda::CUDAStreamGuard guard(second);
    on_second = at::zeros({1000}, kCuda0);
  }
  const std::pair<uint64_t, uint64_t> pool{77, 0};
  auto& allocator = *c10::cuda::CUDACachingAllocator::get();
  allocator.beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  in_pool = at::zeros({1000}, kCuda0);
  allocator.endAllocateToPool(0, pool);
  std::thread([&] { of_thread = at::zeros({2000}, kCuda0); }).join();

  const Report report = reporter.collect();
  const std::string text = text_of(report);
  CAPTURE(text);
  const uint64_t handle = reinterpret_cast<uintptr_t>(second.stream());
  REQUIRE(handle != 0);
  CHECK(row_of(report, plain).stream.value() == 0);
  CHECK((row_of(report, plain).pool == std::pair<uint64_t, uint64_t>{0, 0}));
  CHECK(row_of(report, on_second).stream.value() == handle);
  CHECK((row_of(report, on_second).pool == std::pair<uint64_t, uint64_t>{0, 0}));
  CHECK(row_of(report, in_pool).stream.value() == 0);
  CHECK((row_of(report, in_pool).pool == pool));
  CHECK(row_of(report, of_thread).thread != row_of(report, plain).thread);
  CHECK(text.find("  aten::zeros [forward]  stream 0x") != std::string::npos);
  CHECK(text.find("  aten::zeros [forward]  private pool (77, 0)\n") != std::string::npos);
  CHECK(text.find("  by thread: ") != std::string::npos);
  CHECK(of(report, kCuda0).unexplained_bytes == 0);

  in_pool = at::Tensor();
  allocator.releasePool(0, pool);
}

TEST_CASE("what a CUDA graph makes lies in the private pool of the graph") {
  const MemReporter reporter;
  at::cuda::CUDAGraph graph;
  at::Tensor output;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, 0));
    graph.capture_begin();
    output = at::empty({12345}, kCuda0);
    output.fill_(1);
    graph.capture_end();
  }
  graph.replay();
  const auto pool = graph.pool();
  REQUIRE(pool != c10::MempoolId_t{0, 0});
  const Report report = reporter.collect();
  const std::string text = text_of(report);
  CAPTURE(text);
  int rows = 0;
  for (const ReportRow& row : of(report, kCuda0).rows) {
    if (row.storage_id != Registry::global().storage_id(output)) continue;
    ++rows;
    CHECK((row.pool == std::pair<uint64_t, uint64_t>(pool.first, pool.second)));
  }
  CHECK(rows == 1);
  const std::string name =
      "private pool (" + std::to_string(pool.first) + ", " + std::to_string(pool.second) + ")";
  CHECK(text.find(name) != std::string::npos);
  CHECK(of(report, kCuda0).unexplained_bytes == 0);
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
  for (int i = 0; i < 100 || (moved == 0 && i < 300000); ++i) {
    const Report report = reporter.collect();
    const DeviceReport& device = of(report, kCuda0);
    INFO(text_of(report));
    REQUIRE(device.unexplained_bytes == 0);
    REQUIRE(device.unexplained_requested_bytes.value_or(0) == 0);
    for (const ReportItem& item : device.items)
      REQUIRE(item.kind != ReportItemKind::kBeforeTracking);
    if (!device.allocator_moved) continue;
    ++moved;
    CHECK_FALSE(device.requested_bytes.has_value());
    CHECK_FALSE(device.reserved_bytes.has_value());
    CHECK(text_of(report).find(
              "LibTorch's figures: ? (other threads allocated each time they were read)") !=
          std::string::npos);
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
