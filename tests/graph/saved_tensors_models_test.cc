// The figures that memledger promises for big networks, also against LibTorch's own memory reports:
// on cuda:0 where there is one, else on the CPU, where it needs about 2 GB.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "examples/models/models.h"
#include "graph/saved_tensors.h"
#include "tests/support/allocation_count.h"
#include "tests/support/doctest_beside_torch.h"

namespace {

namespace models = memledger::models;
using memledger::memory_for_backward;
using torch::Tensor;

constexpr int64_t kLossBytes = 4;  // one float

c10::Device device() {
  static const c10::Device kDevice =
      torch::cuda::is_available() ? c10::Device("cuda:0") : c10::Device("cpu");
  return kDevice;
}
bool on_cpu() { return device().is_cpu(); }

// LibTorch's own figure for the device.
int64_t requested_bytes() {
  return at::getDeviceAllocator(c10::kCUDA)
      ->getDeviceStats(0)
      .requested_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .current;
}

// Checks the figure without the inputs against what the forward pass leaves allocated. Returns it,
// and the loss in `result`.
int64_t checked(const torch::nn::Module& net, std::vector<Tensor> inputs,
                const std::function<Tensor()>& forward, Tensor* result = nullptr) {
  int64_t growth = 0;
  Tensor loss;
  if (on_cpu()) {
    const memledger::testing::AllocationGrowth allocated;
    loss = forward();
    growth = allocated.bytes();
  } else {
    loss = forward();  // LibTorch keeps workspaces from the first matrix product on
    loss = Tensor();
    const int64_t before = requested_bytes();
    loss = forward();
    growth = requested_bytes() - before;
  }
  const memledger::SavedTensors saved =
      memledger::saved_for_backward(net, loss, {/*exclude=*/std::move(inputs), device()});
  CHECK(saved.complete());
  CHECK(saved.total_bytes() == growth - kLossBytes);
  CHECK(saved.total_bytes() > 0);
  if (result != nullptr) *result = loss;
  return saved.total_bytes();
}

// As in Ronneberger et al., 2015, but narrow and two levels deep: concatenated skips, transposed
// convolutions, pools, sizes that need cropping.
struct UNetImpl : torch::nn::Module {
  UNetImpl() {
    for (int level = 0; level < 3; ++level) {
      const int64_t in = level == 0 ? 3 : 16 << (level - 1), out = 16 << level;
      down.push_back(register_module("down" + std::to_string(level), two_convolutions(in, out)));
    }
    for (int level = 1; level >= 0; --level) {
      const int64_t in = 32 << level, out = 16 << level;
      rise.push_back(register_module(
          "rise" + std::to_string(level),
          torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, 2).stride(2))));
      up.push_back(register_module("up" + std::to_string(level), two_convolutions(in, out)));
    }
    last = register_module("last", torch::nn::Conv2d(16, 2, 1));
  }

  static torch::nn::Sequential two_convolutions(int64_t in, int64_t out) {
    using torch::nn::Conv2d;
    using torch::nn::Conv2dOptions;
    return torch::nn::Sequential(Conv2d(Conv2dOptions(in, out, 3).padding(1)),
                                 torch::nn::BatchNorm2d(out), torch::nn::ReLU(true),
                                 Conv2d(Conv2dOptions(out, out, 3).padding(1)),
                                 torch::nn::BatchNorm2d(out), torch::nn::ReLU(true));
  }

  Tensor forward(const Tensor& images) {
    const Tensor first = down[0]->forward(images);
    const Tensor second = down[1]->forward(torch::max_pool2d(first, 2));
    Tensor x = down[2]->forward(torch::max_pool2d(second, 2));
    x = up[0]->forward(joined(rise[0]->forward(x), second));
    x = up[1]->forward(joined(rise[1]->forward(x), first));
    return last->forward(x).log_softmax(1);
  }

  static Tensor joined(const Tensor& risen, const Tensor& skipped) {
    return torch::cat({risen, skipped.slice(2, 0, risen.size(2)).slice(3, 0, risen.size(3))}, 1);
  }

  std::vector<torch::nn::Sequential> down, up;
  std::vector<torch::nn::ConvTranspose2d> rise;
  torch::nn::Conv2d last = nullptr;
};
TORCH_MODULE(UNet);

}  // namespace

TEST_CASE("ResNet-50 at 16x3x224x224, with the input and without") {
  torch::manual_seed(1);
  models::ResNet net = models::resnet50();
  net->to(device());
  Tensor input = torch::randn({16, 3, 224, 224}, device());
  Tensor loss;
  const int64_t without = checked(
      *net, {input}, [&] { return net->forward(input).sum(); }, &loss);
  CHECK(memory_for_backward(*net, loss, {{input}}) == without);
  CHECK(memory_for_backward(*net, loss) == without + 16 * 3 * 224 * 224 * 4);
  if (!on_cpu()) return;  // cuDNN keeps other things than oneDNN
  CHECK(without == 1365130752);
  CHECK(memory_for_backward(*net, loss) == 1374764544);
}

TEST_CASE("VGG-19's features at 1x3x512x512, without the input") {
  models::Vgg19Options options;
  options.with_classifier = false;
  models::Vgg19 net(options);
  net->to(device());
  Tensor input = torch::randn({1, 3, 512, 512}, device());
  Tensor loss;
  const int64_t bytes = checked(
      *net, {input}, [&] { return net->features->forward(input).sum(); }, &loss);
  if (!on_cpu()) return;
  CHECK(bytes == 405798912);
  int64_t indices = 0;
  for (const memledger::SavedTensorRow& row : memledger::saved_for_backward(loss).rows()) {
    if (row.dtype == torch::kLong) indices += row.storage_bytes.value();
  }
  CHECK(indices == 63963136);
}

TEST_CASE("VGG-19 whole at batch 4: no weight is taken for an activation") {
  models::Vgg19 net;
  net->to(device());
  Tensor input = torch::randn({4, 3, 224, 224}, device());
  const int64_t bytes = checked(*net, {input}, [&] { return net->forward(input).sum(); });
  if (on_cpu()) CHECK(bytes == 311885824);
}

TEST_CASE("an LSTM of 1024 over 10 steps") {
  models::Lstm net;
  net->to(device());
  Tensor input = torch::randn({10, 10, 1024}, device());
  // The reserve that oneDNN keeps is one of its saved tensors.
  const int64_t bytes = checked(*net, {input}, [&] { return net->forward(input).sum(); });
  if (on_cpu()) CHECK(bytes == 7192576);
}

TEST_CASE("a GRU of 1024 over 10 steps") {
  models::Gru net;
  net->to(device());
  Tensor input = torch::randn({10, 10, 1024}, device());
  checked(*net, {input}, [&] { return net->forward(input).sum(); });
}

TEST_CASE("a Transformer encoder, with dropout and without") {
  for (const double dropout : {0.1, 0.0}) {
    CAPTURE(dropout);
    models::TransformerEncoderOptions options;
    options.dropout = dropout;
    models::TransformerEncoder net(options);
    net->to(device());
    Tensor input = torch::randn({32, 128, 512}, device());
    checked(*net, {input}, [&] { return net->forward(input).sum(); });
  }
}

TEST_CASE("NeuMF, whose inputs are indices") {
  models::NeuMfOptions options;
  options.num_users = 1000;
  options.num_items = 500;
  models::NeuMf net(options);
  net->to(device());
  Tensor users =
      torch::randint(0, 1000, {256}, torch::TensorOptions(torch::kLong).device(device()));
  Tensor items = torch::randint(0, 500, {256}, torch::TensorOptions(torch::kLong).device(device()));
  checked(*net, {users, items}, [&] { return net->forward(users, items).sum(); });
}

TEST_CASE("a multilayer perceptron") {
  models::Mlp net;
  net->to(device());
  Tensor input = torch::randn({64, 256}, device());
  checked(*net, {input}, [&] { return net->forward(input).sum(); });
}

TEST_CASE("a U-Net: skips are concatenated, pools keep indices, sizes do not divide") {
  UNet net;
  net->to(device());
  Tensor input = torch::randn({2, 3, 70, 94}, device());
  checked(*net, {input}, [&] { return net->forward(input).sum(); });
}
