// What reading a graph costs, by its size: a chain, where nodes lie one behind the other, and a
// fan, which is wide. For comparison, the minimum that any reader must do: follow every edge and
// know where it has been.
//
//   ./bazelw run -c opt //tests/bench:saved_tensors_cost
//   ./bazelw run -c opt //tests/bench:saved_tensors_cost -- --tracked       # with the registry on,
//   which numbers the storages

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <time.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "graph/saved_groups.h"
#include "graph/saved_tensors.h"
#include "registry/registry.h"

ABSL_FLAG(bool, smoke, false, "Small graphs, once each.");
ABSL_FLAG(int64_t, nodes, 0, "Graphs of this size alone.");
ABSL_FLAG(bool, tracked, false, "With the registry active while the graphs are made.");

namespace {

at::Tensor chain(int64_t nodes) {
  at::Tensor y = at::randn({4}).requires_grad_();
  for (int64_t i = 0; i < nodes; ++i) y = i % 2 == 0 ? y.sin() : y.mul(y);
  return y;
}

at::Tensor fan(int64_t nodes) {
  const at::Tensor x = at::randn({4}).requires_grad_();
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < nodes; ++i) parts.push_back(x.sin());
  return at::cat(parts);
}

// Counts this thread only, so that others on the machine matter less.
double cpu_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

struct Times {
  double best_cpu, median_wall, bare_cpu;  // milliseconds
};

// Adds up something of every node, so that nothing is left out.
uint64_t follow_edges(const at::Tensor& root) {
  using torch::autograd::Node;
  absl::flat_hash_set<const Node*> seen = {root.grad_fn().get()};
  std::vector<const Node*> stack(seen.begin(), seen.end());
  uint64_t sum = 0;
  while (!stack.empty()) {
    const Node* const node = stack.back();
    stack.pop_back();
    sum += node->sequence_nr();
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second)
        stack.push_back(edge.function.get());
    }
  }
  return sum;
}

Times times_of(const at::Tensor& root, int runs) {
  std::vector<double> wall, cpu, bare;
  for (int i = 0; i < runs; ++i) {
    const double bare_begin = cpu_milliseconds();
    [[maybe_unused]] volatile const uint64_t sum = follow_edges(root);
    bare.push_back(cpu_milliseconds() - bare_begin);
    const auto begin = std::chrono::steady_clock::now();
    const double cpu_begin = cpu_milliseconds();
    const memledger::SavedTensors saved = memledger::saved_for_backward(root);
    cpu.push_back(cpu_milliseconds() - cpu_begin);
    wall.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::nth_element(wall.begin(), wall.begin() + runs / 2, wall.end());
  return {*std::min_element(cpu.begin(), cpu.end()), wall[static_cast<size_t>(runs / 2)],
          *std::min_element(bare.begin(), bare.end())};
}

int run(bool smoke) {
  struct Size {
    int64_t nodes;
    int runs;
    double promised;  // milliseconds
  };
  const std::vector<Size> sizes =
      smoke ? std::vector<Size>{{1000, 1, 0.5}}
            : std::vector<Size>{{1000, 101, 0.5}, {50000, 21, 30}, {1000000, 5, 1500}};
  const int64_t only = absl::GetFlag(FLAGS_nodes);
  fmt::print("{:>9}  {:>6}  {:>12}  {:>12}  {:>9}  {:>12}  {:>9}\n", "nodes", "shape", "best, CPU",
             "median, wall", "per node", "edges alone", "promised");
  for (const Size& size :
       only > 0 ? std::vector<Size>{{only, static_cast<int>(std::max<int64_t>(21, 2000000 / only)),
                                     std::max(0.5, 0.0006 * static_cast<double>(only))}}
                : sizes) {
    for (const bool wide : {false, true}) {
      at::Tensor root = wide ? fan(size.nodes) : chain(size.nodes);
      const Times times = times_of(root, size.runs);
      fmt::print("{:>9}  {:>6}  {:>9.3f} ms  {:>9.3f} ms  {:>6.0f} ns  {:>9.3f} ms  {:>6.1f} ms\n",
                 size.nodes, wide ? "fan" : "chain", times.best_cpu, times.median_wall,
                 times.best_cpu * 1e6 / static_cast<double>(size.nodes), times.bare_cpu,
                 size.promised);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times saved_for_backward() on graphs of several sizes.");
  absl::ParseCommandLine(argc, argv);
  if (absl::GetFlag(FLAGS_tracked)) memledger::Registry::global().activate().IgnoreError();
  return run(absl::GetFlag(FLAGS_smoke));
}
