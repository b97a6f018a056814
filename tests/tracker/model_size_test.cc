// Model sizes against sizes worked out by hand, and against the figures that autograd's own count
// gave in issue 8.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tracker/model_size.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include <sstream>

#include "examples/models/models.h"
#include "tests/support/doctest_beside_torch.h"

namespace memledger {
namespace {

namespace nn = torch::nn;

std::string text_of(const ModelSize& size) {
  std::ostringstream out;
  out << size;
  return out.str();
}

const LayerSize* find(const ModelSize& size, const std::string& name) {
  for (const LayerSize& layer : size.layers) {
    if (layer.name == name) return &layer;
  }
  return nullptr;
}

int64_t saved_of_layers(const ModelSize& size) {
  int64_t bytes = size.other_saved_bytes;
  for (const LayerSize& layer : size.layers) bytes += layer.saved_bytes;
  return bytes;
}

TEST_SUITE_BEGIN("model size");

TEST_CASE(
    "VGG-19's features at 1x3x512x512: the figures of the Python tool's rule, and the true one") {
  models::Vgg19Options options;
  options.with_classifier = false;
  models::Vgg19 vgg(options);
  const ModelSize size = modelsize(vgg->features, torch::randn({1, 3, 512, 512}));
  CHECK(size.parameter_bytes == 80097536);
  CHECK(size.parameters == 20024384);
  CHECK(size.intermediate_bytes == 342360064);
  CHECK(size.saved_bytes == 405798912);
  CHECK(size.saved_is_complete);
  CHECK(size.other_saved_bytes == 0);
  CHECK(saved_of_layers(size) == size.saved_bytes);
  const std::string text = text_of(size);
  CHECK(text.rfind("Model Sequential : params: 80.097536M\n"
                   "Model Sequential : intermedite variables: 342.360064 M (without backward)\n"
                   "Model Sequential : intermedite variables: 684.720128 M (with backward)\n"
                   "Model Sequential : kept for backward: 405.798912 M (measured)\n",
                   0) == 0);
  // 16 convolutions, 16 ReLU in place, 5 pools.
  REQUIRE(size.layers.size() == 37);
  CHECK(size.layers[0].name == "0");
  CHECK(size.layers[0].type == "Conv2d");
  CHECK(size.layers[0].parameters == 64 * 3 * 9 + 64);
  CHECK(size.layers[0].activation_bytes == 64 * 512 * 512 * 4);
  CHECK(size.layers[0].saved_bytes == 64 * 512 * 512 * 4);
  CHECK(size.layers[1].type == "ReLU");
  CHECK(size.layers[1].activation_bytes == 0);
  CHECK(size.layers[4].type == "MaxPool2d");
  CHECK(size.layers[4].activation_bytes == 64 * 256 * 256 * 4);
  // Its result, and the int64 indices that no layer returns.
  CHECK(size.layers[4].saved_bytes == 64 * 256 * 256 * (4 + 8));
  CHECK(size.layers[4].output_shape == std::vector<int64_t>{1, 64, 256, 256});
  CHECK(size.layers[36].saved_bytes == 512 * 16 * 16 * 8);  // its result is the module's
}

TEST_CASE(
    "type_size is of the three lines and the table's activations, which add up; what is kept is "
    "measured") {
  nn::Sequential net(nn::Linear(10, 20));
  const ModelSize own = modelsize(net, torch::ones({4, 10}));
  CHECK(own.parameter_bytes == 220 * 4);
  CHECK(own.intermediate_bytes == 4 * 20 * 4);
  const ModelSize half = modelsize(net, torch::ones({4, 10}), 2);
  CHECK(half.parameter_bytes == 220 * 2);
  CHECK(half.intermediate_bytes == 4 * 20 * 2);
  CHECK(half.activation_bytes == half.intermediate_bytes);
  CHECK(half.layers.at(0).activation_bytes == 4 * 20 * 2);
  CHECK(half.saved_bytes == own.saved_bytes);
  ModelSizeOptions options;
  options.type_size = 8;
  CHECK(modelsize(options, net, torch::ones({4, 10})).parameter_bytes == 220 * 8);
  net->to(torch::kDouble);
  CHECK(modelsize(net, torch::ones({4, 10}, torch::kDouble)).parameter_bytes == 220 * 8);
}

TEST_CASE("nested Sequentials: a row for each child, what the child does in its own row") {
  struct Twice : nn::Module {
    at::Tensor forward(const at::Tensor& x) { return (x * 2).exp(); }
  };
  struct Nested : nn::SequentialImpl {
    using SequentialImpl::SequentialImpl;
    at::Tensor forward(const at::Tensor& x) { return nn::SequentialImpl::forward<at::Tensor>(x); }
  };
  nn::Sequential net(nn::Linear(8, 16), Nested(nn::Tanh(), nn::Linear(16, 4)), Twice());
  const ModelSize size = modelsize(net, torch::ones({5, 8}));
  std::vector<std::string> names;
  for (const LayerSize& layer : size.layers) names.push_back(layer.name + " " + layer.type);
  CHECK(names ==
        std::vector<std::string>{"0 Linear", "1 Nested", "1.0 Tanh", "1.1 Linear", "2 Twice"});
  CHECK(find(size, "0")->activation_bytes == 5 * 16 * 4);
  CHECK(find(size, "1")->activation_bytes == 0);
  CHECK(find(size, "1")->output_shape == std::vector<int64_t>{5, 4});
  CHECK(find(size, "1.0")->activation_bytes == 5 * 16 * 4);
  CHECK(find(size, "2")->activation_bytes == 2 * 5 * 4 * 4);
  CHECK(size.intermediate_bytes == (16 + 16 + 4 + 4 + 4) * 5 * 4);
  // Tanh's result is saved by itself and by Linear, the input is not counted; exp saves its result,
  // which is the module's.
  CHECK(size.saved_bytes == 5 * 16 * 4);
  CHECK(find(size, "1.0")->saved_bytes == 5 * 16 * 4);
}

TEST_CASE("a module that is no Sequential: operators stand under the layer before them") {
  struct Net : nn::Module {
    Net() {
      first = register_module("first", nn::Linear(8, 16));
      second = register_module("second", nn::Linear(16, 16));
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor hidden = at::relu(first(x)) * 2;
      return at::sigmoid(at::relu(second(at::relu(second(hidden)))));
    }
    nn::Linear first = nullptr, second = nullptr;
  };
  auto net = std::make_shared<Net>();
  const ModelSize size = modelsize(net, torch::ones({3, 8}));
  CHECK(size.model == "Net");
  std::vector<std::string> names;
  for (const LayerSize& layer : size.layers)
    names.push_back(layer.name + " " + std::to_string(layer.calls));
  CHECK(names == std::vector<std::string>{"first 1", "aten::relu 1", "aten::mul 1", "second 2",
                                          "aten::relu 2", "aten::sigmoid 1"});
  CHECK(size.intermediate_bytes == 8 * 3 * 16 * 4);
  CHECK(text_of(size).find("second (Linear) x 2") != std::string::npos);
}

TEST_CASE(
    "ResNet-50, LSTM, Transformer and NeuMF: columns add up, and kept is what the graph holds") {
  SUBCASE("ResNet-50") {
    models::ResNet net = models::resnet50();
    const ModelSize size = modelsize(net, torch::randn({2, 3, 64, 64}));
    CHECK(size.parameters == 25557032);
    CHECK(size.model == "ResNet");
    CHECK(size.saved_is_complete);
    CHECK(size.other_saved_bytes == 0);
    CHECK(saved_of_layers(size) == size.saved_bytes);
    REQUIRE(find(size, "layer1.0.conv1") != nullptr);
    CHECK(find(size, "layer1.0.conv1")->activation_bytes == 2 * 64 * 16 * 16 * 4);
    // 53 convolutions, 53 norms, 16 blocks of the Sequentials with 4 downsamples whose children are
    // among them, and fc.
    size_t modules = 0;
    int64_t parameters = 0;
    for (const LayerSize& layer : size.layers) {
      modules += layer.is_module;
      parameters += layer.parameters;
    }
    CHECK(modules == 53 + 53 + 16 + 1);
    CHECK(parameters == size.parameters);
  }
  SUBCASE("LSTM, with a state among its inputs and a tuple as its result") {
    nn::LSTM lstm(nn::LSTMOptions(8, 16));
    const ModelSize size = modelsize(
        lstm, torch::ones({4, 2, 8}),
        std::make_optional(std::make_tuple(torch::ones({1, 2, 16}), torch::ones({1, 2, 16}))));
    CHECK(size.model == "LSTM");
    CHECK(size.parameters == 4 * 16 * (8 + 16 + 2));
    CHECK(size.intermediate_bytes >= 4 * 2 * 16 * 4);
    CHECK(size.saved_bytes > 4 * 2 * 16 * 4);
    CHECK(saved_of_layers(size) == size.saved_bytes);
  }
  SUBCASE("Transformer") {
    models::TransformerEncoderOptions options;
    options.num_layers = 2;
    options.d_model = 32;
    options.num_heads = 4;
    options.feedforward_size = 64;
    models::TransformerEncoder net(options);
    const ModelSize size = modelsize(net, torch::ones({5, 2, 32}));
    CHECK(size.intermediate_bytes > 0);
    CHECK(saved_of_layers(size) == size.saved_bytes);
    CHECK(find(size, "encoder.layers.1.linear1") != nullptr);
  }
  SUBCASE("NeuMF, two inputs of integers") {
    models::NeuMfOptions options;
    options.num_users = 100;
    options.num_items = 50;
    models::NeuMf net(options);
    const ModelSize size =
        modelsize(net, torch::ones({7}, torch::kLong), torch::ones({7}, torch::kLong));
    REQUIRE(find(size, "mf_user_embed") != nullptr);
    CHECK(find(size, "mf_user_embed")->activation_bytes == 7 * 64 * 4);
    CHECK(saved_of_layers(size) == size.saved_bytes);
  }
}

TEST_CASE("afterwards all is as it was") {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(1, 2, 3)), nn::BatchNorm2d(2),
                     nn::ReLU(nn::ReLUOptions(true)), nn::Dropout(0.5));
  net[1]->eval();
  const at::Tensor input = torch::ones({2, 1, 8, 8}).set_requires_grad(true);
  const at::Tensor statistics = net->named_buffers()["1.running_mean"];
  const at::Tensor before = statistics.clone();
  const auto version = input._version();
  torch::manual_seed(3);
  const at::Tensor expected = torch::randn({5});
  torch::manual_seed(3);
  bool training = true;
  SUBCASE("in the mode it is in") { modelsize(net, input); }
  SUBCASE("in training mode") {
    ModelSizeOptions options;
    options.training = true;
    const ModelSize size = modelsize(options, net, input);
    CHECK(find(size, "3")->saved_bytes > 0);  // the mask
  }
  SUBCASE("in evaluation mode") {
    ModelSizeOptions options;
    options.training = false;
    modelsize(options, net, input);
  }
  SUBCASE("when forward throws") {
    CHECK_THROWS_AS(modelsize(net, torch::ones({2, 7, 8, 8})), c10::Error);
  }
  CHECK(net->is_training() == training);
  CHECK_FALSE(net[1]->is_training());
  CHECK(net[0]->is_training());
  CHECK(statistics.equal(before));
  CHECK(input._version() == version);
  CHECK_FALSE(input.grad().defined());
  CHECK(input.use_count() == 1);
  CHECK(torch::randn({5}).equal(expected));
  for (const at::Tensor& parameter : net->parameters()) CHECK_FALSE(parameter.grad().defined());
  // The children are themselves again.
  CHECK(net->at<nn::Conv2dImpl>(0).weight.defined());
  CHECK(net->forward(torch::ones({2, 1, 8, 8})).sizes() == at::IntArrayRef({2, 2, 6, 6}));
  CHECK(at::GradMode::is_enabled());
}

TEST_CASE(
    "buffers that are sparse or change their size are put back, and random numbers in any case") {
  struct Net : nn::Module {
    Net() {
      sparse = register_buffer("sparse", at::eye(4).to_sparse());
      list = register_buffer("list", at::ones({3}));
      dropout = register_module("dropout", nn::Dropout(0.5));
    }
    at::Tensor forward(const at::Tensor& x) {
      if (changes) {
        sparse.zero_();
        list.resize_({7}).fill_(2);
      }
      return dropout(x);
    }
    bool changes = true;
    at::Tensor sparse, list;
    nn::Dropout dropout = nullptr;
  };
  auto net = std::make_shared<Net>();
  SUBCASE("changed") { net->changes = true; }
  SUBCASE("as they were") { net->changes = false; }
  torch::manual_seed(3);
  const at::Tensor expected = torch::randn({5});
  torch::manual_seed(3);
  modelsize(net, torch::ones({4, 4}));
  CHECK(torch::randn({5}).equal(expected));
  CHECK(net->sparse.is_sparse());
  CHECK(net->sparse.to_dense().equal(at::eye(4)));
  CHECK(net->list.equal(at::ones({3})));
}

TEST_CASE("under InferenceMode nothing can be measured, and a type has bytes: errors that say so") {
  nn::Linear linear(4, 4);
  const at::Tensor input = torch::ones({2, 4});
  for (const int size : {0, -4})
    CHECK_THROWS_WITH_AS(modelsize(linear, input, size), doctest::Contains("type_size is"),
                         c10::Error);
  const c10::InferenceMode inference;
  CHECK_THROWS_WITH_AS(modelsize(linear, input), doctest::Contains("c10::InferenceMode"),
                       c10::Error);
}

TEST_CASE("a bool beside a tensor is forward()'s, no size of a type") {
  struct Flagged : nn::Module {
    at::Tensor forward(const at::Tensor& x, bool twice) { return twice ? (x * 2) * 2 : x * 2; }
  };
  auto net = std::make_shared<Flagged>();
  CHECK(modelsize(net, torch::ones({3}), true).intermediate_bytes == 2 * 3 * 4);
  CHECK(modelsize(net, torch::ones({3}), false).intermediate_bytes == 3 * 4);
}

TEST_CASE("an input that forward() writes to is untouched") {
  nn::Sequential net(nn::ReLU(nn::ReLUOptions(true)), nn::Linear(4, 4));
  const at::Tensor input = torch::randn({2, 4});
  const at::Tensor before = input.clone();
  modelsize(net, input);
  CHECK(input.equal(before));
}

TEST_CASE("measured under no_grad it is the same, and a callable will do") {
  nn::Linear linear(4, 4);
  const at::Tensor input = torch::ones({2, 4});
  const ModelSize with = modelsize(linear, input);
  {
    const at::NoGradGuard no_grad;
    CHECK(modelsize(linear, input).saved_bytes == with.saved_bytes);
    CHECK_FALSE(at::GradMode::is_enabled());
  }
  const ModelSize called =
      modelsize([&](const at::Tensor& x) { return linear(x).exp().sum(); }, input);
  CHECK(called.model == "callable");
}

TEST_CASE(
    "a callable's parameters are the leaves that its operators consumed: each once, and none of "
    "them kept for backward") {
  nn::Linear one(4, 8), two(8, 8);
  two->bias.set_requires_grad(false);  // frozen: nothing distinguishes it from a constant
  const at::Tensor input = torch::ones({2, 4}).set_requires_grad(true);
  const auto forward = [&](const at::Tensor& x) { return two(two(one(x).relu())).exp(); };
  const ModelSize size = modelsize(forward, input);
  CHECK(size.parameters == 4 * 8 + 8 + 8 * 8);
  CHECK(size.parameter_bytes == (4 * 8 + 8 + 8 * 8) * 4);
  // relu's result and that of the first `two`; exp saves its own, which is what is returned.
  CHECK(size.saved_bytes == 2 * (2 * 8 * 4));
  CHECK(size.other_saved_bytes == 0);
  CHECK(saved_of_layers(size) == size.saved_bytes);
  CHECK(modelsize(forward, input, 2).parameter_bytes == (4 * 8 + 8 + 8 * 8) * 2);
  CHECK(text_of(size).find("where no operator was seen") == std::string::npos);
  // The same as for a module with these layers.
  nn::Sequential net(one, nn::ReLU(), two, two);
  const ModelSize as_module =
      modelsize([&](const at::Tensor& x) { return net->forward(x).exp(); }, input);
  CHECK(as_module.parameters == size.parameters);
  CHECK(as_module.saved_bytes == size.saved_bytes);
}

TEST_CASE("tied parameters count once; JSON has the exact bytes") {
  struct Tied : nn::Module {
    Tied() {
      weight = register_parameter("weight", torch::ones({4, 4}));
      register_parameter("again", weight);
    }
    at::Tensor forward(const at::Tensor& x) { return x.matmul(weight).relu(); }
    at::Tensor weight;
  };
  Tied tied;
  const ModelSize size = modelsize(tied, torch::ones({3, 4}));
  CHECK(size.parameters == 16);
  const std::string json = size.to_json();
  CHECK(json.rfind("{\"schema\":\"memledger.model_size/2\",\"model\":\"Tied\","
                   "\"parameters\":16,\"parameter_bytes\":64,"
                   "\"intermediate_bytes\":96,\"activation_bytes\":96,",
                   0) == 0);
  CHECK(json.find("{\"name\":\"\",\"type\":\"Tied\",\"is_module\":true,\"calls\":1,\"output_"
                  "shape\":[3,4],\"parameters\":16,"
                  "\"activation_bytes\":48,") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace memledger
