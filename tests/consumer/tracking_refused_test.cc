// Where LibTorch refuses the operator callback, every front class says so once and goes on with
// `?`.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "memledger.h"
#include "tests/support/text_matchers.h"

namespace at {

// Takes the place of LibTorch's for this program.
CallbackHandle addGlobalCallback(RecordFunctionCallback) {
  TORCH_CHECK(false, "no callbacks today");
}

}  // namespace at

namespace memledger {
namespace {

using testing::contains;

std::string file_named(const char* name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return std::string(folder == nullptr ? "." : folder) + "/" + name;
}

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns what `body` writes to standard error.
std::string standard_error_of(const std::function<void()>& body) {
  const std::string path = file_named("standard_error.txt");
  std::FILE* const file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  const int before = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  body();
  dup2(before, STDERR_FILENO);
  close(before);
  std::fclose(file);
  return contents(path);
}

TEST_CASE("tracking that cannot be had is told once, with the remedy, and front classes go on") {
  const torch::nn::Linear net(2, 3);
  const std::string told = standard_error_of([&] {
    const ScopedTracking tracking;
    CHECK(absl::IsInternal(tracking.status()));
    const ScopedTracking again;
    CHECK(again.status() == tracking.status());

    std::ostringstream report;
    report << MemReporter(net).collect();
    CHECK_MESSAGE(contains(report.str(), "?"), report.str());

    TrackerOptions options;
    options.path = file_named("");
    options.file_name = "refused.txt";
    MemTracker tracker(options);
    CHECK_FALSE(tracker.track().tensor_bytes.has_value());
    CHECK(contains(contents(tracker.log_path()), "Total Tensor Used Memory:?"));

    GrowthFinder finder;
    for (int i = 0; i < 100; ++i) finder.step();
    CHECK(finder.report().verdict() == "unknown: tracking is off");
    CHECK_FALSE(no_growth(finder));

    NoLeak no_leak;
    const TestVerdict leak = no_leak.check();
    CHECK_FALSE(leak);
    CHECK_MESSAGE(contains(leak.message(), "tracking is off"), leak.message());
    PeakAtMost peak(c10::Device(c10::kCPU), 1, PeakOver::kNothing);
    CHECK_FALSE(peak.check());

    Timeline timeline;
    CHECK(timeline.read().recording.lifetimes.empty());
    LineProfiler lines;
    { const LineProfiler::On on = lines.enable(); }
    const Courtesy courtesy;

    std::ostringstream iteration;
    MemoryProfilerOptions profiler;
    profiler.out = &iteration;
    MemoryProfiler(net, profiler).record_stats();
    CHECK_MESSAGE(contains(iteration.str(), "Total layer weight usage...............? MB"),
                  iteration.str());
  });
  CHECK(told ==
        "memledger: cannot watch operators: no callbacks today; activate with "
        "RegistryOptions::operators = false to have bytes without names. Figures that need "
        "tracking read ?\n");
  CHECK_FALSE(Registry::global().active());
}

TEST_CASE("bytes without names can be had where LibTorch refuses the callback") {
  RegistryOptions options;
  options.operators = false;
  const ScopedTracking tracking(options);
  REQUIRE(tracking.status().ok());
  const auto tensor = at::ones({1024});
  const Snapshot snapshot = Registry::global().snapshot();
  const StorageInfo* const row = snapshot.find_address(at::kCPU, tensor.data_ptr());
  REQUIRE(row != nullptr);
  CHECK(row->nbytes == 4096);
  CHECK(row->op.empty());
}

}  // namespace
}  // namespace memledger
