// What a call of MemTracker::track() costs: by what changed since the last one, not by what is
// alive.
//
//   ./bazelw run //tests/bench:track_cost
//
// Also what recording births and deaths (Timeline, MemoryProfiler) adds to the smallest operator.

#include <ATen/Functions.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "registry/recording.h"
#include "registry/registry.h"
#include "tests/bench/paired_ratio.h"
#include "tracker/mem_tracker.h"

ABSL_FLAG(int, live, 1000000, "Tensors that are alive meanwhile.");
ABSL_FLAG(int, fresh, 50000, "Tensors that are all new.");
ABSL_FLAG(int, rounds, 20, "Repetitions.");
ABSL_FLAG(bool, smoke, false, "Only sees that all of it runs.");

namespace memledger {
namespace {

// By the clock, and by this thread's own work, which a busy machine lengthens less.
struct Times {
  std::vector<double> wall_ms, cpu_ms;

  void add(const std::function<void()>& work) {
    const double before = cpu();
    wall_ms.push_back(bench::seconds(work) * 1e3);
    cpu_ms.push_back(cpu() - before);
  }
  // Nothing is promised of what has no figure.
  void print(const std::string& what, std::optional<double> promised_ms = std::nullopt) const {
    fmt::print("{:<66} median {:8.3f} ms, most {:8.3f} ms; CPU {:8.3f} ms{}\n", what,
               bench::median(wall_ms), *std::max_element(wall_ms.begin(), wall_ms.end()),
               bench::median(cpu_ms),
               promised_ms ? fmt::format("; promised {:g} ms", *promised_ms) : "");
  }

 private:
  static double cpu() {
    struct timespec now;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
  }
};

void run(int live, int fresh, int rounds, const std::string& folder) {
  TrackerOptions options;
  options.device = at::kCPU;
  options.path = folder;
  const ScopedTracking tracking;
  {
    std::vector<at::Tensor> held;
    held.reserve(static_cast<size_t>(live));
    for (int i = 0; i < live; ++i) held.push_back(at::empty({1 + i % 16}));
    MemTracker tracker(options);
    Times first;
    first.add([&] { tracker.track(); });
    first.print(
        fmt::format("the first track(), nothing changed since the tracker, {} alive", live));
    Times times;
    for (int round = 0; round < rounds; ++round) {
      // 50 go, 50 come.
      for (int i = 0; i < 50; ++i)
        held[static_cast<size_t>((round * 7919 + i * 104729) % live)] = at::empty({1 + i % 16});
      times.add([&] { tracker.track(); });
    }
    times.print(fmt::format("track() with {} alive and 100 changes", live), 3);
    Times none;
    for (int round = 0; round < rounds; ++round) none.add([&] { tracker.track(); });
    none.print(fmt::format("track() with {} alive and no change", live));
  }
  Times times, one_shape;
  for (int round = 0; round < std::min(rounds, 10); ++round) {
    MemTracker tracker(options);
    std::vector<at::Tensor> held;
    held.reserve(static_cast<size_t>(fresh));
    for (int i = 0; i < fresh; ++i) held.push_back(at::empty({1 + i % 1000}));
    times.add([&] { tracker.track(); });
    held.clear();
    tracker.track();
    for (int i = 0; i < fresh; ++i) held.push_back(at::empty({8}));
    one_shape.add([&] { tracker.track(); });
  }
  times.print(fmt::format("track() with {} alive, all new, of 1000 shapes", fresh), 100);
  one_shape.print(fmt::format("track() with {} alive, all new, of one shape", fresh), 100);

  const at::Tensor a = at::ones({16, 16}), b = at::ones({16, 16});
  const int operators = std::max(100, live / 50);
  const auto work = [&] {
    for (int i = 0; i < operators; ++i) at::add(a, b);
  };
  std::vector<double> added_ns;
  for (int round = 0; round < 3 * rounds; ++round) {
    work();
    const double without = bench::seconds(work);
    const Recorder recorder(static_cast<size_t>(operators));
    work();  // the rings' pages become memory
    work();
    added_ns.push_back((bench::seconds(work) - without) * 1e9 / operators);
  }
  fmt::print("{:<66} median {:8.0f} ns\n", "a Recorder adds to a 16x16 add (one birth, one death)",
             bench::median(added_ns));
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("What MemTracker::track() costs.");
  absl::ParseCommandLine(argc, argv);
  std::string folder = (std::filesystem::temp_directory_path() / "track_cost_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  if (absl::GetFlag(FLAGS_smoke)) {
    memledger::run(2000, 500, 2, folder);
  } else {
    memledger::run(absl::GetFlag(FLAGS_live), absl::GetFlag(FLAGS_fresh),
                   absl::GetFlag(FLAGS_rounds), folder);
  }
  std::filesystem::remove_all(folder);
}
