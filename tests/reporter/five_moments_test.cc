// Seven networks and a TorchScript one on the CPU, at five moments of a training step: every byte
// is explained, and nearly every byte has a name. Small batches, as names do not depend on them;
// MEMLEDGER_FULL=1 takes the published sizes.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/models/models.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "tests/support/allocation_count.h"
#include "tests/support/named_share.h"
#include "tests/support/script_resnet.h"

namespace memledger {
namespace {

testing::AllocationCount& truth() {
  static auto* const count = new testing::AllocationCount;
  return *count;
}

bool full() { return std::getenv("MEMLEDGER_FULL") != nullptr; }

// The CPU's rows, and what is allocated by LibTorch's own count.
void look(const MemReporter& reporter, const char* moment) {
  const Report report = reporter.collect();
  CAPTURE(moment);
  for (const DeviceReport& device : report.devices) {
    if (!device.device.is_cpu()) continue;
    int64_t rows = 0;
    for (const ReportRow& row : device.rows) {
      // TorchScript's node has let its captures go by then, which nobody can ask it.
      if (row.kind == RowKind::kUnknown && std::string_view(moment) == "after backward" &&
          row.name.find("DifferentiableGraphBackward.captures") != std::string::npos) {
        continue;
      }
      REQUIRE(row.nbytes.has_value());
      rows += *row.nbytes;
    }
    CHECK(rows == truth().live_bytes());
    CHECK(device.allocator_bytes == truth().live_bytes());
    CHECK(device.unexplained_bytes == 0);
    CHECK(device.named_bytes + device.anonymous_bytes == rows);
    const double share = testing::named_share(device);
    std::printf("  %-17s %12lld bytes, %.4f %% named\n", moment, static_cast<long long>(rows),
                100 * share);
    CHECK(share >= 0.99);
  }
}

using Inputs = std::vector<std::pair<std::string, at::Tensor>>;

void train(const char* name, MemReporter& reporter, const std::vector<at::Tensor>& parameters,
           const Inputs& inputs, const std::function<at::Tensor()>& forward, int steps = 1) {
  CAPTURE(name);
  std::printf("%s\n", name);
  torch::optim::Adam adam(parameters);
  reporter.add_optimizer(adam);
  for (const auto& [input_name, input] : inputs) reporter.add_input(input_name, input);
  look(reporter, "built");
  for (int step = 0; step < steps; ++step) {
    {
      const at::Tensor loss = forward();
      reporter.add_graph(loss);
      look(reporter, "after forward");
      loss.backward();
      look(reporter, "after backward");
    }
    adam.step();
    look(reporter, "after step");
    adam.zero_grad();
    look(reporter, "after zero_grad");
  }
  CHECK(truth().live_bytes() > 0);
  reporter.remove_optimizer(adam);
}

template <typename Holder>
void train(const char* name, Holder net, const Inputs& inputs,
           const std::function<at::Tensor(Holder&)>& forward) {
  MemReporter reporter(net);
  train(name, reporter, net->parameters(), inputs, [&] { return forward(net); });
}

TEST_CASE("ResNet-50") {
  const auto images = full() ? at::randn({16, 3, 224, 224}) : at::randn({2, 3, 64, 64});
  train<models::ResNet>("ResNet-50", models::resnet50(), {{"images", images}},
                        [&](models::ResNet& net) { return net->forward(images).sum(); });
}

TEST_CASE("VGG-19") {
  models::Vgg19Options options;
  if (!full()) options.classifier_width = 256;
  const auto images = full() ? at::randn({16, 3, 224, 224}) : at::randn({2, 3, 64, 64});
  train<models::Vgg19>("VGG-19", models::Vgg19(options), {{"images", images}},
                       [&](models::Vgg19& net) { return net->forward(images).sum(); });
}

TEST_CASE("LSTM") {
  const auto sequence = full() ? at::randn({128, 32, 1024}) : at::randn({16, 8, 1024});
  train<models::Lstm>("LSTM", models::Lstm(), {{"sequence", sequence}},
                      [&](models::Lstm& net) { return net->forward(sequence).sum(); });
}

TEST_CASE("Transformer") {
  const auto sequence = full() ? at::randn({128, 32, 512}) : at::randn({32, 4, 512});
  train<models::TransformerEncoder>(
      "Transformer", models::TransformerEncoder(), {{"sequence", sequence}},
      [&](models::TransformerEncoder& net) { return net->forward(sequence).sum(); });
}

TEST_CASE("NeuMF") {
  models::NeuMfOptions options;
  if (!full()) {
    options.num_users /= 20;
    options.num_items /= 20;
  }
  const auto users = at::randint(options.num_users, {4096}, at::kLong);
  const auto items = at::randint(options.num_items, {4096}, at::kLong);
  train<models::NeuMf>("NeuMF", models::NeuMf(options), {{"users", users}, {"items", items}},
                       [&](models::NeuMf& net) { return net->forward(users, items).sum(); });
}

TEST_CASE("MLP") {
  const auto rows = at::randn({64, 256});
  train<models::Mlp>("MLP", models::Mlp(), {{"rows", rows}},
                     [&](models::Mlp& net) { return net->forward(rows).sum(); });
}

TEST_CASE("a TorchScript ResNet") {
  torch::jit::Module net =
      full() ? testing::script_resnet() : testing::script_resnet({2, 2, 2, 2}, 64, 100);
  const auto images = full() ? at::randn({16, 3, 224, 224}) : at::randn({2, 3, 64, 64});
  MemReporter reporter(net);
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : net.parameters()) parameters.push_back(parameter);
  // The first runs of a method are watched by TorchScript's profiler, the later ones are optimized:
  // their graphs have other nodes.
  constexpr int kSteps = 4;
  train(
      "TorchScript ResNet", reporter, parameters, {{"images", images}},
      [&] { return net.forward({images}).toTensor().sum(); }, kSteps);
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (!memledger::Registry::global().activate().ok()) return 1;
  const memledger::testing::AllocationCount::Scope scope(memledger::truth());
  return doctest::Context(argc, argv).run();
}
