// memledger_autostart: everything is seen from load on, tensors of the program's static objects
// included.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/support/doctest_beside_torch.h"

#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <map>
#include <string>

#include "memledger.h"

namespace {

const at::Tensor made_before_main = at::ones({1000});

TEST_CASE("a static object's tensor is seen, and nothing is unknown") {
  const memledger::Snapshot snapshot = memledger::Registry::global().snapshot();
  CHECK(memledger::Registry::global().active());
  REQUIRE(snapshot.find(memledger::Registry::global().storage_id(made_before_main)) != nullptr);
  CHECK_FALSE(snapshot.find(memledger::Registry::global().storage_id(made_before_main))->adopted);
  CHECK(snapshot.total_bytes(at::kCPU) == 4000);
  CHECK_FALSE(snapshot.unseen_before_tracking());
}

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(100, 50));
    last = register_module("last", torch::nn::Linear(50, 10));
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(torch::relu(hidden->forward(x))); }
  torch::nn::Linear hidden{nullptr}, last{nullptr};
};

TEST_CASE("modules and optimizers have their names without being registered") {
  Net net;
  torch::optim::Adam adam(net.parameters());
  net.forward(torch::ones({3, 100})).sum().backward();
  adam.step();
  std::map<std::string, int64_t> bytes;
  for (const memledger::DeviceReport& device : memledger::MemReporter().collect().devices) {
    for (const memledger::ReportRow& row : device.rows) {
      if (!row.anonymous) bytes[row.name] = row.nbytes.value_or(0);
    }
  }
  std::map<std::string, int64_t> expected;
  for (const auto& [name, size] : std::map<std::string, int64_t>{{"hidden.weight", 20000},
                                                                 {"hidden.bias", 200},
                                                                 {"last.weight", 2000},
                                                                 {"last.bias", 40}}) {
    expected[name] = expected[name + ".grad"] = size;
    expected["Adam." + name + ".exp_avg"] = expected["Adam." + name + ".exp_avg_sq"] = size;
  }
  CHECK(bytes == expected);
}

}  // namespace
