// What watching costs: the same work bare and watched, side by side in one run.
//
//   ./bazelw run //tests/bench:watch_cost                 all of it, some minutes
//   ./bazelw run //tests/bench:watch_cost -- --smoke      a few rounds, to see that it works
//
// Bare is the registry switched off: its allocator wrapper then passes calls through after one flag
// read.

#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <torch/csrc/profiler/unwind/unwind.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "examples/models/models.h"
#include "registry/hooks/block_observer.h"
#include "registry/registry.h"
#include "tests/bench/paired_ratio.h"
#include "tracker/growth_finder.h"
#include "tracker/line_profiler.h"

ABSL_FLAG(bool, smoke, false,
          "A few rounds only: shows that the benchmark runs, not what things cost.");
ABSL_FLAG(int, threads, 0, "Threads that LibTorch may use within an operator; 0: its own choice.");

namespace memledger::bench {
namespace {

void show(const char* name, const PairedRatio& ratio) {
  fmt::print("{:<72}{:>12.3f}{:>12.3f}   {:.4f} [{:.4f}, {:.4f}]  {} pairs\n", name, ratio.first_ms,
             ratio.second_ms, ratio.ratio, ratio.low, ratio.high, ratio.pairs);
  std::cout.flush();
}

PairedRatio bare_against_watched(size_t pairs, const RegistryOptions& options,
                                 const std::function<void()>& work) {
  for (int warm_up = 0; warm_up < 3; ++warm_up) work();
  return compare(pairs, work, [&] {
    const ScopedTracking tracking(options);
    work();
  });
}

// What `memledger run` takes for lines: --stacks=off against its default.
PairedRatio watched_against_lines(size_t pairs, const std::function<void()>& work) {
  constexpr int64_t kBytesPerStack = int64_t{256} << 10;
  RegistryOptions lines;
  lines.stacks = StackOptions::sampled(kBytesPerStack);
  const auto watched = [&work](const RegistryOptions& options) {
    const ScopedTracking tracking(options);
    work();
  };
  return compare(
      pairs, [&] { watched({}); }, [&] { watched(lines); });
}

template <class Net>
std::function<void()> training_step(Net net, const at::Tensor& input, int repeats) {
  auto optimizer = std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(1e-6).momentum(0.9));
  return [=]() mutable {
    for (int i = 0; i < repeats; ++i) {
      optimizer->zero_grad();
      net->forward(input).sum().backward();
      optimizer->step();
    }
  };
}

// What LibTorch takes to report its operators, their inputs and results: an observer that names
// them cannot take less.
class NothingButCallbacks {
 public:
  NothingButCallbacks()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(
                [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
                  return nullptr;
                },
                [](const at::RecordFunction&, at::ObserverContext*) {})
                .needsInputs(true)
                .needsOutputs(true)
                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                         at::RecordScope::USER_SCOPE}))) {}
  ~NothingButCallbacks() { at::removeCallback(handle_); }
  NothingButCallbacks(const NothingButCallbacks&) = delete;
  NothingButCallbacks& operator=(const NothingButCallbacks&) = delete;

 private:
  at::CallbackHandle handle_;
};

// The smallest operator that makes a tensor, in one thread or in several that share nothing but the
// registry.
void small_adds(bool smoke, int threads) {
  const int adds = smoke ? 1000 : 20000;
  const auto work = [=] {
    const auto add = [=] {
      const torch::NoGradGuard no_grad;
      const auto a = torch::ones({16, 16});
      for (int i = 0; i < adds; ++i) a.add(a);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(add);
    add();
    for (std::thread& other : others) other.join();
  };
  const size_t pairs = smoke ? 3 : 60;
  const auto show_adds = [&](const char* how, const PairedRatio& ratio) {
    show(fmt::format("{} adds of 16x16 in {}, {}", adds,
                     threads == 1 ? "one thread" : "each of 2 threads", how)
             .c_str(),
         ratio);
    fmt::print("  per add: {:.0f} ns bare, {:+.0f} ns\n", ratio.first_ms * 1e6 / adds,
               (ratio.second_ms - ratio.first_ms) * 1e6 / adds);
  };
  RegistryOptions options;
  show_adds("peaks kept", bare_against_watched(pairs, options, work));
  options.peaks = false;
  show_adds("peaks not kept", bare_against_watched(pairs, options, work));
  options.operators = false;
  show_adds("allocator hook only", bare_against_watched(pairs, options, work));
  show_adds("callbacks that do nothing", compare(pairs, work, [&] {
              const NothingButCallbacks callbacks;
              work();
            }));
  // Less than this nobody can take who counts bytes and looks at results.
  show_adds("allocator hook and callbacks that do nothing", compare(pairs, work, [&] {
              const ScopedTracking tracking(options);
              const NothingButCallbacks callbacks;
              work();
            }));
  options = {};
  options.stacks = StackOptions::sampled(512 << 10);
  show_adds("stacks sampled every 512 KiB", bare_against_watched(pairs, options, work));
}

PairedRatio bare_against_line_profiled(size_t pairs, const std::function<void()>& work) {
  return compare(pairs, work, [&work] {
    LineProfiler profiler;
    const auto on = profiler.enable();
    work();
  });
}

// What nobody can take less than who watches these steps.
void least_for_steps(size_t pairs, const std::function<void()>& work) {
  RegistryOptions allocator_only;
  allocator_only.operators = false;
  show("the same, callbacks that do nothing", compare(pairs, work, [&] {
         const NothingButCallbacks callbacks;
         work();
       }));
  show("the same, allocator hook and callbacks that do nothing", compare(pairs, work, [&] {
         const ScopedTracking tracking(allocator_only);
         const NothingButCallbacks callbacks;
         work();
       }));
  // A line profiler has to know at each birth and death which line runs.
  show("the same, and LibTorch's unwinder", compare(pairs, work, [&] {
         const ScopedTracking tracking(allocator_only);
         const NothingButCallbacks callbacks;
         set_block_observer([](const BlockEvent& /*event*/) noexcept {
           [[maybe_unused]] const auto stack = torch::unwind::unwind();
         });
         work();
         set_block_observer(nullptr);
       }));
}

// What is left where memledger is linked in and nothing is active: a call and a flag read. The
// deleter is LibTorch's own then.
void switched_off(bool smoke) {
  c10::Allocator* const own = c10::GetDefaultCPUAllocator();
  c10::Allocator* const front = c10::GetAllocator(c10::kCPU);
  TORCH_CHECK(front != own, "memledger's wrapper does not stand before LibTorch's allocator");
  const int blocks = smoke ? 1000 : 200000;
  const auto allocate = [blocks](c10::Allocator* allocator) {
    for (int i = 0; i < blocks; ++i) allocator->allocate(1024).clear();
  };
  const PairedRatio ratio = compare(
      smoke ? 3 : 60, [&] { allocate(own); }, [&] { allocate(front); });
  show(fmt::format("{} blocks of 1 KiB made and freed, memledger switched off", blocks).c_str(),
       ratio);
  fmt::print("  per block: {:.0f} ns bare, {:+.1f} ns\n", ratio.first_ms * 1e6 / blocks,
             (ratio.second_ms - ratio.first_ms) * 1e6 / blocks);
}

// A step of GrowthFinder with much that lives and does not change.
void growth_steps(bool smoke) {
  constexpr int kChanges = 100;
  const int live = smoke ? 1000 : 100000;
  const ScopedTracking tracking;
  std::vector<at::Tensor> kept;
  for (int i = 0; i < live; ++i) kept.push_back(torch::empty({1}));
  GrowthFinder finder;
  std::vector<double> times;
  for (int step = 0; step < (smoke ? 5 : 200); ++step) {
    for (int i = 0; i < kChanges; ++i) kept[static_cast<size_t>(i)] = torch::empty({1});
    times.push_back(seconds([&] { finder.step(); }));
  }
  fmt::print("GrowthFinder::step(), {} storages alive, {} replaced: {:.3f} ms (median)\n", live,
             kChanges, median(times) * 1e3);
}

void run(bool smoke) {
  fmt::print("{:<72}{:>12}{:>12}   ratio [95 % interval]\n", "", "bare ms", "watched ms");
  {
    models::MlpOptions options;
    const auto mlp = models::Mlp(options);
    const auto step = training_step(mlp, torch::randn({64, 256}), 20);
    show("20 MLP steps (4 x 256, batch 64)", bare_against_watched(smoke ? 3 : 300, {}, step));
    show("the same, watched against watched with sampled lines",
         watched_against_lines(smoke ? 3 : 300, step));
    RegistryOptions allocator_only;
    allocator_only.operators = false;
    show("the same, allocator hook only",
         bare_against_watched(smoke ? 3 : 100, allocator_only, step));
    show("the same, line profiler on", bare_against_line_profiled(smoke ? 3 : 100, step));
    least_for_steps(smoke ? 3 : 100, step);
  }
  switched_off(smoke);
  for (const int threads : {1, 2}) small_adds(smoke, threads);
  growth_steps(smoke);
  {
    const auto net = models::resnet18();
    const auto step =
        training_step(net, torch::randn({8, 3, smoke ? 64 : 224, smoke ? 64 : 224}), 1);
    show("ResNet-18 step (batch 8)", bare_against_watched(smoke ? 2 : 40, {}, step));
    show("the same, line profiler on", bare_against_line_profiled(smoke ? 2 : 40, step));
  }
}

}  // namespace
}  // namespace memledger::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Times the same work bare and watched, side by side, and prints the ratio.");
  absl::ParseCommandLine(argc, argv);
  if (const int threads = absl::GetFlag(FLAGS_threads); threads > 0) at::set_num_threads(threads);
  torch::manual_seed(1);
  memledger::bench::run(absl::GetFlag(FLAGS_smoke));
}
