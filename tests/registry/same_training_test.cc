// Training is the same, bit for bit, whether anyone watches or not: parameters, buffers, and the
// peak of tensor bytes.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>

#include "tests/support/doctest_beside_torch.h"

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/models/models.h"
#include "registry/registry.h"
#include "tests/support/allocation_count.h"

namespace memledger {
namespace {

constexpr int kSteps = 20;

struct Trained {
  std::vector<std::string> bits;  // of each parameter and buffer
  int64_t peak_bytes = 0;
  int64_t reports = 0;
};

std::string bits_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().contiguous();
  return std::string(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
}

template <typename Make, typename Optimizer>
Trained train(const Make& make, const Optimizer& optimizer_of, const at::Tensor& input) {
  torch::manual_seed(7);
  Trained trained;
  testing::AllocationCount count;
  {
    const testing::AllocationCount::Scope scope(count);
    auto net = make();
    auto optimizer = optimizer_of(net->parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor output = net->forward(input);
      (output * output).mean().backward();
      optimizer.step();
    }
    for (const at::Tensor& parameter : net->parameters())
      trained.bits.push_back(bits_of(parameter));
    for (const at::Tensor& buffer : net->buffers()) trained.bits.push_back(bits_of(buffer));
  }
  trained.peak_bytes = count.peak_bytes();
  trained.reports = count.reports();
  return trained;
}

void check_same(const Trained& a, const Trained& b) {
  CHECK((a.bits == b.bits));
  CHECK(a.peak_bytes == b.peak_bytes);
  CHECK(a.reports == b.reports);
}

template <typename Train>
void check_watched(const Train& train) {
  const Trained bare = train();
  REQUIRE(bare.peak_bytes > 0);
  REQUIRE_FALSE(bare.bits.empty());
  {
    INFO("bare against bare");
    check_same(bare, train());
  }
  Registry& registry = Registry::global();
  {
    INFO("watched");
    const ScopedTracking tracking;
    check_same(bare, train());
    CHECK(registry.snapshot().counters(at::kCPU).allocated_count > 0);
  }
  {
    INFO("watched with stacks, and looked at meanwhile");
    RegistryOptions options;
    options.stacks = StackOptions::sampled(64 << 10);
    const ScopedTracking tracking(options);
    REQUIRE(registry.keep_label_peak("training").ok());
    const ScopedLabel label("training");
    std::atomic<bool> trained{false};
    std::atomic<int> looks{0};
    std::thread onlooker([&] {
      for (; !trained.load(); ++looks) registry.peak_snapshot(at::kCPU).total_bytes(at::kCPU);
    });
    check_same(bare, train());
    trained = true;
    onlooker.join();
    CHECK(looks.load() > 0);
    CHECK(registry.peak_snapshot(at::kCPU, "training").total_bytes(at::kCPU) > 0);
  }
  CHECK(registry.health().swallowed_exceptions == 0);
}

TEST_CASE("convolutions, batch norms and Adam") {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const at::Tensor input = torch::randn({2, 3, 32, 32});
  check_watched([&] {
    return train([] { return models::resnet18(10); },
                 [](std::vector<at::Tensor> all) {
                   return torch::optim::Adam(std::move(all), torch::optim::AdamOptions(1e-3));
                 },
                 input);
  });
}

TEST_CASE("attention, dropout and SGD with momentum") {
  at::set_num_threads(1);
  torch::manual_seed(2);
  models::TransformerEncoderOptions options;
  options.num_layers = 2;
  options.d_model = 64;
  options.num_heads = 4;
  options.feedforward_size = 128;
  options.dropout = 0.2;
  const at::Tensor input = torch::randn({12, 4, 64});
  check_watched([&] {
    return train([&] { return models::TransformerEncoder(options); },
                 [](std::vector<at::Tensor> all) {
                   return torch::optim::SGD(std::move(all),
                                            torch::optim::SGDOptions(1e-2).momentum(0.9));
                 },
                 input);
  });
}

}  // namespace
}  // namespace memledger
