// Writes a timeline in both formats, and on standard output what must be found in them. The
// argument: a folder.
#include <ATen/Functions.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "registry/registry.h"
#include "tracker/timeline.h"

int main(int /*argc*/, char** argv) {
  const std::string folder = argv[1];
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/libtorch_cpu.so") == std::string::npos) continue;
    std::printf("libtorch %s\n", line.substr(line.find('/')).c_str());
    break;
  }
  memledger::Registry& registry = memledger::Registry::global();
  registry.activate().IgnoreError();
  const at::Tensor before = at::ones({1000});
  at::Tensor freed = at::ones({500});
  {
    memledger::Timeline timeline;
    torch::nn::Linear net(64, 32);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    timeline.add_module("net \"quoted\"", net).add_optimizer(sgd).add_tensor("before", before);
    std::vector<at::Tensor> kept;
    for (int step = 0; step < 3; ++step) {
      const memledger::ScopedLabel label("step " + std::to_string(step));
      sgd.zero_grad();
      at::Tensor loss;
      {
        const memledger::ScopedLabel forward("forward");
        loss = net(at::ones({16, 64})).relu().sum();
      }
      loss.backward();
      timeline.mark("after backward");
      sgd.step();
      kept.push_back(at::zeros({step + 1, 100}));
    }
    freed.reset();
    at::Tensor latin1;
    {
      const memledger::ScopedLabel label("caf\xe9");  // no UTF-8
      latin1 = at::zeros({10});
    }
    timeline.add_tensor("na\xefve", latin1);
    timeline.mark("fianc\xe9");
    int64_t births = 0;
    const memledger::TimelineData data = timeline.read();
    for (const memledger::Lifetime& life : data.recording.lifetimes)
      births += life.born_ns.has_value();
    for (const char* name : {"/timeline.json", "/timeline.pickle"}) {
      const absl::Status status = timeline.write(folder + name);
      if (!status.ok()) std::printf("failed: %s\n", std::string(status.message()).c_str());
    }
    std::printf("bytes %lld\n", static_cast<long long>(registry.counters(at::kCPU).current_bytes));
    std::printf("storages %lld\n",
                static_cast<long long>(registry.counters(at::kCPU).current_count));
    std::printf("births %lld\n", static_cast<long long>(births));
    std::printf("parameters %lld\n", static_cast<long long>((64 * 32 + 32) * 4));

    // A path that cannot be: said, and nothing left behind.
    const absl::Status unwritable = timeline.write("/dev/null/timeline.json");
    std::printf("unwritable %s\n", std::string(unwritable.message()).c_str());
    std::printf("full %s\n", timeline.write("/dev/full").ok() ? "ok" : "failed");
  }
  {
    memledger::TimelineOptions few;
    few.max_events = 320;
    memledger::Timeline timeline(few);
    std::vector<at::Tensor> kept;
    for (int i = 0; i < 5000; ++i) {
      kept.push_back(at::ones({i % 7 + 1}));
      if (i % 3 == 0) kept.erase(kept.begin());
    }
    for (const char* name : {"/dropped.json", "/dropped.pickle"}) {
      if (!timeline.write(folder + name).ok()) return 1;
    }
    std::printf("dropped_bytes %lld\n",
                static_cast<long long>(registry.counters(at::kCPU).current_bytes));
  }
}
