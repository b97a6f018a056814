// A device of 8 GiB, and a program that wants 9 GiB of it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_matchers.h"
#include "tracker/mem_tracker.h"

namespace memledger {
namespace {

using testing::contains;

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST_CASE("LibTorch's error, the log, who held what, and going on") {
  const at::TensorOptions bytes = at::TensorOptions(at::kCUDA).dtype(at::kByte);
  const testing::TemporaryFolder folder;
  TrackerOptions tracker_options;
  tracker_options.path = folder.path();
  MemTracker tracker(tracker_options);
  OutOfMemoryOptions options;
  options.folder = folder.path();
  REQUIRE(write_out_of_memory_reports(options).ok());
  tracker.track();

  std::vector<at::Tensor> held;
  {
    const ScopedLabel label("cache");
    for (int i = 0; i < 5; ++i) held.push_back(at::zeros({kGiB}, bytes));
  }
  tracker.track();
  std::string message;
  try {
    for (;;) held.push_back(at::ones({kGiB}, bytes));
  } catch (const c10::OutOfMemoryError& error) {
    message = error.what_without_backtrace();
  }
  CHECK(contains(
      message,
      "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 8.00 GiB"));
  REQUIRE(held.size() == 8);

  fs::path report, log;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    (contains(entry.path().filename().string(), "oom-") ? report : log) = entry.path();
  }
  const std::string said = text_of(report);
  CAPTURE(said);
  CHECK(contains(said, "memledger: out of memory on cuda:0\n"));
  CHECK(contains(said, "Asked for: 1.00G (1073741824 bytes) by aten::ones [forward]\n"));
  CHECK(contains(
      said,
      "Memory of cuda:0: 8.00G, free for the driver to give: 0.00B, other processes and CUDA "
      "itself: 0.00B\n"));
  CHECK(contains(said, "LibTorch says: CUDA out of memory. Tried to allocate 1024.00 MiB."));
  CHECK(contains(said,
                 "       5.00G       5 x  aten::zeros [cache, forward]\n       3.00G       3 x  "
                 "aten::ones [forward]\n"));
  CHECK(contains(said, "Explained: 8.00G of 8.00G (0.00B unexplained)"));
  CHECK_FALSE(contains(said, "fragmented"));
  const std::string logged = text_of(log);
  CAPTURE(logged);
  CHECK(contains(logged, "+ | 5 * Size:(1073741824,)"));

  // The program recovers, and the books go on.
  held.resize(2);
  const at::Tensor more = at::ones({4 * kGiB}, bytes);
  const auto statistics = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  CHECK(statistics.num_ooms == 1);
  CHECK(Registry::global().counters(c10::Device(at::kCUDA, 0)).current_bytes ==
        statistics.requested_bytes[0].current);
  CHECK(statistics.requested_bytes[0].current == 6 * kGiB);

  // Fragmentation is said where it is: 3 x 1 GiB and 2 x 0.5 GiB free, asked for 2 GiB in one
  // piece.
  held.clear();
  c10::cuda::CUDACachingAllocator::emptyCache();
  held.push_back(at::zeros({2 * kGiB}, bytes));
  c10::cuda::CUDACachingAllocator::setMemoryFraction(1.0, 0);
  std::vector<at::Tensor> pieces;
  held.clear();
  for (int i = 0; i < 4; ++i)
    pieces.push_back(at::empty({kGiB / 2}, bytes));  // of the cached 2 GiB
  pieces[0] = at::Tensor();
  pieces[2] = at::Tensor();
  held.push_back(at::empty({kGiB + kGiB / 2}, bytes));
  CHECK_THROWS_AS(at::empty({kGiB}, bytes), c10::OutOfMemoryError);
  std::string newest;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (contains(entry.path().filename().string(), "oom-") && entry.path() != report)
      newest = text_of(entry.path());
  }
  CAPTURE(newest);
  CHECK(contains(
      newest,
      "Advice: The free blocks in the cache, 1.00G, would be enough, but the largest has 512.00M"));
  stop_out_of_memory_reports();
}

}  // namespace
}  // namespace memledger
