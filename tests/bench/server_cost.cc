// What watching costs a server: small operators in 1, 2, 8 and 64 threads, each way of watching
// against bare, side by side in one run.
//
//   ./bazelw run //tests/bench:server_cost                 some minutes
//   ./bazelw run //tests/bench:server_cost -- --smoke      a few rounds, to see that it works
//
// With --device=cuda only that device's allocator: on a virtual GPU (memledger run
// --virtual-gpu=h100 -- server_cost --device=cuda) it is LibTorch's own, and the floor.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "registry/registry.h"
#include "tests/bench/paired_ratio.h"

ABSL_FLAG(bool, smoke, false,
          "A few rounds only: shows that the benchmark runs, not what things cost.");
ABSL_FLAG(std::string, device, "cpu", "cpu, or cuda: its allocator alone.");

namespace memledger::bench {
namespace {

using Work = std::function<void()>;

Work in_threads(int threads, const Work& work) {
  return [=] {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  };
}

Work small_adds(int adds) {
  return [=] {
    const at::AutoGradMode no_grad(false);
    const auto a = at::ones({16, 16});
    for (int i = 0; i < adds; ++i) a.add(a);
  };
}

// A request of one row to four layers of 256.
Work small_requests(int requests) {
  const auto weight = at::ones({256, 256}), bias = at::ones({256});
  return [=] {
    const at::AutoGradMode no_grad(false);
    for (int i = 0; i < requests; ++i) {
      auto row = at::ones({1, 256});
      for (int layer = 0; layer < 4; ++layer) row = at::relu(at::linear(row, weight, bias));
    }
  };
}

// Many that live on, and die in the order of their birth.
Work many_storages(int storages) {
  return [=] {
    std::vector<at::Tensor> kept;
    for (int i = 0; i < storages; ++i) kept.push_back(at::empty({8}));
    kept.clear();
  };
}

// One thread makes what another one frees, and the reverse.
Work freed_by_each_other(int storages) {
  return [=] {
    constexpr size_t kPlaces = 64;
    std::vector<std::atomic<at::TensorBase*>> places(kPlaces);
    const auto exchange = [&places, storages](size_t start) {
      for (size_t i = start; i < start + static_cast<size_t>(storages); ++i) {
        auto* const made = new at::TensorBase(at::empty({256}));
        delete places[i % kPlaces].exchange(made);
      }
    };
    std::thread other(exchange, kPlaces / 2);
    exchange(0);
    other.join();
    for (std::atomic<at::TensorBase*>& place : places) delete place.load();
  };
}

Work device_blocks(int blocks) {
  return [=] {
    for (int i = 0; i < blocks; ++i) at::empty({256}, at::TensorOptions(at::kCUDA));
  };
}

void show(const std::string& what, size_t pairs, const Work& work) {
  RegistryOptions names, allocator_only;
  names.detail = RegistryOptions::Detail::kNames;
  allocator_only.operators = false;
  const std::pair<const char*, RegistryOptions> ways[] = {
      {"watched", {}}, {"names only", names}, {"allocator's hook only", allocator_only}};
  work();
  for (const auto& [way, options] : ways) {
    const PairedRatio ratio = compare(pairs, work, [&work, &options = options] {
      const ScopedTracking tracking(options);
      work();
    });
    fmt::print("{:<56}{:<24}{:>9.3f} [{:.3f}, {:.3f}]  {:.1f} ms bare, {} pairs\n", what, way,
               ratio.ratio, ratio.low, ratio.high, ratio.first_ms, ratio.pairs);
    std::cout.flush();
  }
}

void run(bool smoke) {
  // The command that brought the virtual GPU watches as well.
  for (Registry& registry = Registry::global(); registry.active();) registry.deactivate();
  const size_t pairs = smoke ? 3 : 40;
  const int scale = smoke ? 1 : 20;
  fmt::print("{:<80}{:>9} [95 % interval]\n", "", "ratio");
  if (absl::GetFlag(FLAGS_device) == "cuda") {
    show("blocks of 1 KiB of the device", pairs, device_blocks(2000 * scale));
    return;
  }
  at::set_num_threads(1);
  for (const int threads : {1, 2, 8, 64}) {
    const int adds = 1000 * scale / threads + 1;
    show(fmt::format("adds of 16x16, {} in each of {} threads", adds, threads), pairs,
         in_threads(threads, small_adds(adds)));
  }
  show("one row through four linear layers of 256", pairs, small_requests(20 * scale));
  show("one row, in each of 64 threads", pairs, in_threads(64, small_requests(2 * scale)));
  show("many small storages alive", pairs, many_storages(2000 * scale));
  show("two threads that free each other's tensors", pairs, freed_by_each_other(1000 * scale));
}

}  // namespace
}  // namespace memledger::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times small operators in many threads, bare and watched.");
  absl::ParseCommandLine(argc, argv);
  memledger::bench::run(absl::GetFlag(FLAGS_smoke));
}
