// The figures that memledger promises for big networks, and the same against
// LibTorch's own memory reports. Needs about 2 GB.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "examples/models/models.h"
#include "graph/saved_tensors.h"
#include "tests/graph/allocation_count.h"
#include "tests/support/doctest_beside_torch.h"

namespace {

namespace models = memledger::models;
using memledger::memory_for_backward;
using torch::Tensor;

constexpr int64_t kLossBytes = 4;  // one float

// Checks the figure without the inputs against the growth over the forward, and
// returns it.
int64_t checked(const torch::nn::Module& net, std::vector<Tensor> inputs, const std::function<Tensor()>& forward) {
  memledger::testing::AllocationCount count;
  const Tensor loss = forward();
  const int64_t growth = count.growth() - kLossBytes;
  const memledger::SavedTensors saved = memledger::saved_for_backward(net, loss, {/*exclude=*/std::move(inputs)});
  CHECK(saved.complete());
  CHECK(saved.total_bytes() == growth);
  return saved.total_bytes();
}

}  // namespace

TEST_CASE("ResNet-50 at 16x3x224x224, with the input and without") {
  torch::manual_seed(1);
  models::ResNet net = models::resnet50();
  Tensor input = torch::randn({16, 3, 224, 224});
  Tensor loss;
  const int64_t without = checked(*net, {input}, [&] {
    loss = net->forward(input).sum();
    return loss;
  });
  CHECK(without == 1365130752);
  CHECK(memory_for_backward(*net, loss) == 1374764544);
  CHECK(memory_for_backward(*net, loss, {{input}}) == 1365130752);
}

TEST_CASE("VGG-19's features at 1x3x512x512, without the input") {
  models::Vgg19Options options;
  options.with_classifier = false;
  models::Vgg19 net(options);
  Tensor input = torch::randn({1, 3, 512, 512});
  Tensor loss;
  CHECK(checked(*net, {input}, [&] {
          loss = net->features->forward(input).sum();
          return loss;
        }) == 405798912);
  int64_t indices = 0;
  for (const memledger::SavedTensorRow& row : memledger::saved_for_backward(loss).rows()) {
    if (row.dtype == torch::kLong) indices += row.storage_bytes.value();
  }
  CHECK(indices == 63963136);
}

TEST_CASE("VGG-19 whole at batch 4: no weight is taken for an activation") {
  models::Vgg19 net;
  Tensor input = torch::randn({4, 3, 224, 224});
  CHECK(checked(*net, {input}, [&] { return net->forward(input).sum(); }) == 311885824);
}

TEST_CASE("an LSTM of 1024 over 10 steps") {
  models::Lstm net;
  Tensor input = torch::randn({10, 10, 1024});
  // The reserve that oneDNN keeps is one of its saved tensors.
  checked(*net, {input}, [&] { return net->forward(input).sum(); });
}

TEST_CASE("a GRU") {
  models::Gru net;
  Tensor input = torch::randn({10, 10, 1024});
  checked(*net, {input}, [&] { return net->forward(input).sum(); });
}

TEST_CASE("a Transformer encoder, with dropout and without") {
  for (const double dropout : {0.1, 0.0}) {
    CAPTURE(dropout);
    models::TransformerEncoderOptions options;
    options.dropout = dropout;
    models::TransformerEncoder net(options);
    Tensor input = torch::randn({32, 128, 512});
    checked(*net, {input}, [&] { return net->forward(input).sum(); });
  }
}

TEST_CASE("NeuMF") {
  models::NeuMfOptions options;
  options.num_users = 1000;
  options.num_items = 500;
  models::NeuMf net(options);
  Tensor users = torch::randint(0, 1000, {256});
  Tensor items = torch::randint(0, 500, {256});
  checked(*net, {users, items}, [&] { return net->forward(users, items).sum(); });
}

TEST_CASE("an MLP") {
  models::Mlp net;
  Tensor input = torch::randn({64, 256});
  checked(*net, {input}, [&] { return net->forward(input).sum(); });
}
