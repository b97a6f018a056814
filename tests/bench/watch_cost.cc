// What watching costs: the same work bare and watched, side by side in one run.
//
//   ./bazelw run //tests/bench:watch_cost                 all of it, some minutes
//   ./bazelw run //tests/bench:watch_cost -- --smoke      a few rounds, to see that it works
//
// Bare is the registry switched off: its allocator wrapper then passes calls through after one flag read.

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "examples/models/models.h"
#include "registry/registry.h"
#include "tests/bench/paired_ratio.h"

ABSL_FLAG(bool, smoke, false, "A few rounds only: shows that the benchmark runs, not what things cost.");
ABSL_FLAG(int, threads, 0, "Threads that LibTorch may use within an operator; 0: its own choice.");

namespace memledger::bench {
namespace {

void show(const char* name, const PairedRatio& ratio) {
  fmt::print("{:<44}{:>12.3f}{:>12.3f}   {:.4f} [{:.4f}, {:.4f}]  {} pairs\n", name, ratio.first_ms, ratio.second_ms, ratio.ratio,
             ratio.low, ratio.high, ratio.pairs);
  std::cout.flush();
}

PairedRatio bare_against_watched(size_t pairs, const RegistryOptions& options, const std::function<void()>& work) {
  for (int warm_up = 0; warm_up < 3; ++warm_up) work();
  return compare(pairs, work, [&] {
    const ScopedTracking tracking(options);
    work();
  });
}

template <class Net>
std::function<void()> training_step(Net net, at::Tensor input, int repeats) {
  auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(1e-6).momentum(0.9));
  return [=]() mutable {
    for (int i = 0; i < repeats; ++i) {
      optimizer->zero_grad();
      net->forward(input).sum().backward();
      optimizer->step();
    }
  };
}

void run(bool smoke) {
  fmt::print("{:<44}{:>12}{:>12}   ratio [95 % interval]\n", "", "bare ms", "watched ms");
  {
    models::MlpOptions options;
    const auto mlp = models::Mlp(options);
    const auto step = training_step(mlp, torch::randn({64, 256}), 20);
    show("20 MLP steps (4 x 256, batch 64)", bare_against_watched(smoke ? 3 : 300, {}, step));
    RegistryOptions allocator_only;
    allocator_only.operators = false;
    show("the same, allocator hook only", bare_against_watched(smoke ? 3 : 100, allocator_only, step));
  }
  {
    const auto a = torch::ones({16, 16});
    const torch::NoGradGuard no_grad;
    const int adds = smoke ? 1000 : 20000;
    const auto work = [&] {
      for (int i = 0; i < adds; ++i) a.add(a);
    };
    const PairedRatio ratio = bare_against_watched(smoke ? 3 : 60, {}, work);
    show(fmt::format("{} adds of 16x16", adds).c_str(), ratio);
    fmt::print("  per add: {:.0f} ns bare, {:+.0f} ns watched\n", ratio.first_ms * 1e6 / adds,
               (ratio.second_ms - ratio.first_ms) * 1e6 / adds);
  }
  {
    const auto net = models::resnet18();
    const auto step = training_step(net, torch::randn({8, 3, smoke ? 64 : 224, smoke ? 64 : 224}), 1);
    show("ResNet-18 step (batch 8)", bare_against_watched(smoke ? 2 : 40, {}, step));
  }
}

}  // namespace
}  // namespace memledger::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times the same work bare and watched, side by side, and prints the ratio.");
  absl::ParseCommandLine(argc, argv);
  if (const int threads = absl::GetFlag(FLAGS_threads); threads > 0) at::set_num_threads(threads);
  torch::manual_seed(1);
  memledger::bench::run(absl::GetFlag(FLAGS_smoke));
}
