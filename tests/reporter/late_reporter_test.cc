// The first reporter activates the registry: what was made before is found through what is
// registered. A binary of its own.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/support/doctest_beside_torch.h"

#include <torch/torch.h>

#include <sstream>

#include "registry/registry.h"
#include "registry/training_paused.h"
#include "reporter/mem_reporter.h"
#include "tests/support/allocation_count.h"
#include "tests/support/sanitizers.h"

namespace memledger {
namespace {

testing::AllocationCount& truth() {
  static auto* const count = new testing::AllocationCount;
  return *count;
}

TEST_CASE(
    "module, optimizer, tensor, graph and operator input lead to everything; the table equals "
    "LibTorch's count") {
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::Tanh(), torch::nn::Linear(64, 4));
  torch::optim::Adam adam(net->parameters());
  net->forward(torch::ones({2, 32})).sum().backward();
  adam.step();
  auto registered = torch::ones({100});
  auto operand = torch::ones({200});
  auto loss = net->forward(torch::ones({2, 32})).square().sum();
  CHECK_FALSE(Registry::global().active());

  const ScopedTrainingPaused paused(!testing::kWorkersAreKnown);
  MemReporter reporter(net);
  reporter.add_optimizer(adam)
      .add_tensor("registered", registered)
      .add_graph(loss)
      .add_tensor("loss", loss);
  { auto result = operand.sum(); }
  const Report report = reporter.collect();
  REQUIRE(report.devices.size() == 1);
  CHECK(report.devices[0].total_bytes == truth().live_bytes());
  CHECK(report.devices[0].allocator_bytes == truth().live_bytes());
  CHECK(report.devices[0].adopted_bytes == truth().live_bytes());
  CHECK(report.devices[0].unexplained_bytes == 0);
  CHECK(report.unseen_before_tracking);
  std::ostringstream out;
  out << report;
  CHECK(out.str().find("  of it made before tracking: ") != std::string::npos);
  CHECK(out.str().find("\nbefore tracking: ?\n") != std::string::npos);

  loss.backward();
  adam.step();
  const Report after = reporter.collect();
  CHECK(after.devices[0].total_bytes == truth().live_bytes());
}

}  // namespace
}  // namespace memledger

int main(int argc, char** argv) {
  const memledger::testing::AllocationCount::Scope scope(memledger::truth());
  return doctest::Context(argc, argv).run();
}
