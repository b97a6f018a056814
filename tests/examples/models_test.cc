// The networks in examples/models against figures that do not come from them:
// torchvision's published parameter counts, its names, and sizes worked out by
// hand.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "examples/models/models.h"

#include <doctest/doctest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace models = memledger::models;

using Names = std::vector<std::string>;
using Sizes = std::vector<int64_t>;

// One thread: the networks here are small, and on a machine whose cores are all
// busy OpenMP's threads wait for each other ten times longer than they compute.
[[maybe_unused]] const bool one_thread = (at::set_num_threads(1), true);

// While a MakeOnMeta lives, this thread makes tensors on the Meta device, which
// have sizes and no bytes: a network's full size costs nothing. It is a
// dispatcher fallback that replaces the device each factory function is asked
// for; LibTorch's frontend has no such switch.
class MakeOnMeta {
 public:
  static void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const auto device = op.schema().argumentIndexWithName("device");
    if (device.has_value()) {
      stack->at(stack->size() - arguments.size() + static_cast<size_t>(*device)) =
          c10::Device(c10::kMeta);
    }
    const c10::impl::ExcludeDispatchKeyGuard once(kKey);
    op.callBoxed(*stack);
  }

 private:
  static constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
  c10::impl::IncludeDispatchKeyGuard include_{kKey};
};

int64_t count_elements(const torch::nn::Module& module) {
  int64_t elements = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    elements += parameter.numel();
  }
  return elements;
}

Names parameter_names(const torch::nn::Module& module) { return module.named_parameters().keys(); }

Names buffer_names(const torch::nn::Module& module) { return module.named_buffers().keys(); }

Sizes parameter_sizes(const torch::nn::Module& module, const std::string& name) {
  const auto parameters = module.named_parameters();
  const at::Tensor* parameter = parameters.find(name);
  REQUIRE_MESSAGE(parameter != nullptr, "no parameter " << name);
  return parameter->sizes().vec();
}

Names first(const Names& names, size_t count) {
  REQUIRE(names.size() >= count);
  return Names(names.begin(), names.begin() + static_cast<int64_t>(count));
}

Sizes sizes(const at::Tensor& tensor) { return tensor.sizes().vec(); }

void check_every_parameter_gets_a_gradient(const torch::nn::Module& module,
                                           const at::Tensor& output) {
  output.sum().backward();
  for (const auto& entry : module.named_parameters()) {
    INFO(entry.key());
    const at::Tensor& gradient = entry.value().grad();
    REQUIRE(gradient.defined());
    CHECK(sizes(gradient) == sizes(entry.value()));
    CHECK(gradient.isfinite().all().item<bool>());
  }
}

models::ResNetOptions small_resnet(models::ResNetBlock block) {
  models::ResNetOptions options;
  options.block = block;
  options.blocks_per_layer = {1, 2, 1, 1};
  options.base_channels = 4;
  options.num_classes = 5;
  return options;
}

models::Vgg19Options small_vgg() {
  models::Vgg19Options options;
  options.base_channels = 4;
  options.classifier_width = 16;
  options.num_classes = 5;
  return options;
}

models::NeuMfOptions small_neumf() {
  models::NeuMfOptions options;
  options.num_users = 10;
  options.num_items = 7;
  options.mf_factors = 3;
  options.mlp_widths = {8, 6, 4};
  return options;
}

at::Tensor ids(int64_t below) { return torch::arange(6, torch::kLong).remainder(below); }

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&MakeOnMeta::call>());
}

}  // namespace

TEST_SUITE("models") {
  TEST_CASE("ResNet-18 has torchvision's parameters and buffers") {
    const MakeOnMeta no_bytes;
    const models::ResNet net = models::resnet18();
    CHECK(count_elements(*net) == 11'689'512);
    CHECK(parameter_names(*net).size() == 62);
    CHECK(buffer_names(*net).size() == 60);
    CHECK(first(parameter_names(*net), 9) == Names{"conv1.weight", "bn1.weight", "bn1.bias",
                                                   "layer1.0.conv1.weight", "layer1.0.bn1.weight",
                                                   "layer1.0.bn1.bias", "layer1.0.conv2.weight",
                                                   "layer1.0.bn2.weight", "layer1.0.bn2.bias"});
    CHECK(parameter_sizes(*net, "conv1.weight") == Sizes{64, 3, 7, 7});
    CHECK(parameter_sizes(*net, "layer2.0.conv1.weight") == Sizes{128, 64, 3, 3});
    CHECK(parameter_sizes(*net, "layer2.0.downsample.0.weight") == Sizes{128, 64, 1, 1});
    CHECK(parameter_sizes(*net, "layer2.0.downsample.1.weight") == Sizes{128});
    CHECK(parameter_sizes(*net, "fc.weight") == Sizes{1000, 512});
    // The first layer changes no shape here, so its shortcut is the identity.
    CHECK_FALSE(net->named_parameters().contains("layer1.0.downsample.0.weight"));
  }

  TEST_CASE("ResNet-50 has torchvision's parameters and buffers") {
    const MakeOnMeta no_bytes;
    const models::ResNet net = models::resnet50();
    CHECK(count_elements(*net) == 25'557'032);
    CHECK(parameter_names(*net).size() == 161);
    CHECK(buffer_names(*net).size() == 159);
    CHECK(first(parameter_names(*net), 15) ==
          Names{"conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight",
                "layer1.0.bn1.weight", "layer1.0.bn1.bias", "layer1.0.conv2.weight",
                "layer1.0.bn2.weight", "layer1.0.bn2.bias", "layer1.0.conv3.weight",
                "layer1.0.bn3.weight", "layer1.0.bn3.bias", "layer1.0.downsample.0.weight",
                "layer1.0.downsample.1.weight", "layer1.0.downsample.1.bias"});
    CHECK(first(buffer_names(*net), 4) == Names{"bn1.running_mean", "bn1.running_var",
                                                "bn1.num_batches_tracked",
                                                "layer1.0.bn1.running_mean"});
    CHECK(parameter_names(*net).back() == "fc.bias");
    CHECK(buffer_names(*net).back() == "layer4.2.bn3.num_batches_tracked");
    CHECK(parameter_sizes(*net, "layer4.0.conv2.weight") == Sizes{512, 512, 3, 3});
    CHECK(parameter_sizes(*net, "layer4.0.downsample.0.weight") == Sizes{2048, 1024, 1, 1});
    CHECK(parameter_sizes(*net, "fc.weight") == Sizes{1000, 2048});
  }

  TEST_CASE("ResNet's modules have torchvision's names") {
    const models::ResNet net = models::resnet18(/*num_classes=*/3);
    CHECK(net->named_children().keys() == Names{"conv1", "bn1", "relu", "maxpool", "layer1",
                                                "layer2", "layer3", "layer4", "avgpool", "fc"});
    CHECK(net->layer2->ptr(0)->named_children().keys() ==
          Names{"conv1", "bn1", "relu", "conv2", "bn2", "downsample"});
    CHECK(net->layer2->ptr(0)->name() == "memledger::models::BasicBlockImpl");
  }

  TEST_CASE("ResNet's convolutions start from Kaiming's normal distribution") {
    torch::manual_seed(1);
    const models::ResNet net = models::resnet18(/*num_classes=*/3);
    // Fan out 512 * 3 * 3; the standard deviation is sqrt(2 / fan out).
    const at::Tensor weight = net->named_parameters()["layer4.1.conv2.weight"].detach();
    CHECK(weight.std().item<double>() == doctest::Approx(0.0208333).epsilon(0.01));
    CHECK(weight.mean().item<double>() == doctest::Approx(0.0).epsilon(1e-4));
    CHECK(weight.abs().max().item<double>() > 4 * 0.0208333);
    CHECK(net->bn1->weight.equal(torch::ones({64})));
  }

  TEST_CASE("VGG-19 has torchvision's parameters") {
    const MakeOnMeta no_bytes;  // 575 MB otherwise
    const models::Vgg19 net;
    REQUIRE(net->parameters().front().is_meta());
    CHECK(count_elements(*net) == 143'667'240);
    CHECK(parameter_names(*net).size() == 38);
    CHECK(buffer_names(*net).empty());
    CHECK(first(parameter_names(*net), 5) == Names{"features.0.weight", "features.0.bias",
                                                   "features.2.weight", "features.2.bias",
                                                   "features.5.weight"});
    CHECK(parameter_sizes(*net, "features.0.weight") == Sizes{64, 3, 3, 3});
    CHECK(parameter_sizes(*net, "features.34.weight") == Sizes{512, 512, 3, 3});
    CHECK(parameter_sizes(*net, "classifier.0.weight") == Sizes{4096, 25088});
    CHECK(parameter_sizes(*net, "classifier.3.weight") == Sizes{4096, 4096});
    CHECK(parameter_sizes(*net, "classifier.6.weight") == Sizes{1000, 4096});
    CHECK(net->features->size() == 37);
    CHECK(net->named_children().keys() == Names{"features", "avgpool", "classifier"});
  }

  TEST_CASE("VGG-19 without its classifier is its features alone") {
    models::Vgg19Options options;
    options.with_classifier = false;
    models::Vgg19 net(options);
    // 143,667,240 less the three linear layers' 123,642,856.
    CHECK(count_elements(*net) == 20'024'384);
    CHECK(net->named_children().keys() == Names{"features"});
    const torch::NoGradGuard no_grad;
    const at::Tensor images = torch::randn({1, 3, 64, 32});
    const at::Tensor map = net->forward(images);
    CHECK(sizes(map) == Sizes{1, 512, 2, 1});
    CHECK(net->features->forward(images).equal(map));
  }

  TEST_CASE("ReLU works in place in ResNet and VGG-19, and not in the MLP") {
    const auto inplace_flags = [](const torch::nn::Module& module) {
      std::vector<bool> flags;
      for (const auto& child : module.modules()) {
        if (const auto* relu = child->as<torch::nn::ReLU>()) {
          flags.push_back(relu->options.inplace());
        }
      }
      return flags;
    };
    using Flags = std::vector<bool>;
    const models::ResNet resnet(small_resnet(models::ResNetBlock::kBottleneck));
    CHECK(inplace_flags(*resnet) == Flags(1 + 5, true));
    const models::Vgg19 vgg(small_vgg());
    CHECK(inplace_flags(*vgg) == Flags(16 + 2, true));
    const models::Mlp mlp;
    CHECK(inplace_flags(*mlp) == Flags(4, false));
  }

  TEST_CASE("the default sizes give the parameter counts worked out by hand") {
    const MakeOnMeta no_bytes;
    SUBCASE("LSTM: four gates, two weights and two biases each") {
      const models::Lstm net;
      CHECK(count_elements(*net) == 4 * (1024 * 1024 * 2 + 1024 * 2));
      CHECK(parameter_names(*net) ==
            Names{"lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.bias_ih_l0", "lstm.bias_hh_l0"});
      CHECK(parameter_sizes(*net, "lstm.weight_ih_l0") == Sizes{4096, 1024});
    }
    SUBCASE("GRU: three gates") {
      const models::Gru net;
      CHECK(count_elements(*net) == 3 * (1024 * 1024 * 2 + 1024 * 2));
      CHECK(parameter_sizes(*net, "gru.weight_hh_l0") == Sizes{3072, 1024});
    }
    SUBCASE("Transformer encoder: six layers of 3,152,384") {
      const models::TransformerEncoder net;
      CHECK(count_elements(*net) == 6 * 3'152'384);
      // Attention's two weights and biases, two linear layers, two norms.
      CHECK(parameter_names(*net).size() == 6 * 12);
      CHECK(parameter_sizes(*net, "encoder.layers.0.self_attn.in_proj_weight") == Sizes{1536, 512});
      CHECK(parameter_sizes(*net, "encoder.layers.5.linear2.weight") == Sizes{512, 2048});
    }
    SUBCASE("MLP: four linear layers of 256") {
      const models::Mlp net;
      CHECK(count_elements(*net) == 4 * (256 * 256 + 256));
      CHECK(parameter_names(*net) == Names{"layers.0.weight", "layers.0.bias", "layers.2.weight",
                                           "layers.2.bias", "layers.4.weight", "layers.4.bias",
                                           "layers.6.weight", "layers.6.bias"});
    }
  }

  TEST_CASE("NeuMF has the tables of pytorch_mem_profiler's README") {
    const MakeOnMeta no_bytes;
    const models::NeuMf net;
    struct Row {
      const char* name;
      int64_t bytes;
    };
    const std::vector<Row> rows = {
        {"mf_user_embed.weight", 35'454'208},   // 138493 x 64
        {"mf_item_embed.weight", 6'846'464},    // 26744 x 64
        {"mlp_user_embed.weight", 70'908'416},  // 138493 x 128
        {"mlp_item_embed.weight", 13'692'928},  // 26744 x 128
        {"mlp.0.weight", 262'144},              // 256 x 256
        {"mlp.0.bias", 1024},
        {"mlp.1.weight", 131'072},  // 128 x 256
        {"mlp.1.bias", 512},
        {"mlp.2.weight", 32'768},  // 64 x 128
        {"mlp.2.bias", 256},
        {"final.weight", 512},  // 1 x (64 + 64)
        {"final.bias", 4},
    };
    const auto parameters = net->named_parameters();
    REQUIRE(parameters.size() == rows.size());
    int64_t total_bytes = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(parameters[i].key() == rows[i].name);
      CHECK(static_cast<int64_t>(parameters[i].value().nbytes()) == rows[i].bytes);
      total_bytes += rows[i].bytes;
    }
    CHECK(total_bytes == 127'330'308);  // the README's 127 MB
  }

  TEST_CASE("outputs have the shapes that the header promises") {
    const torch::NoGradGuard no_grad;
    SUBCASE("ResNet") {
      for (const auto block : {models::ResNetBlock::kBasic, models::ResNetBlock::kBottleneck}) {
        models::ResNet net(small_resnet(block));
        CHECK(sizes(net->forward(torch::randn({2, 3, 40, 33}))) == Sizes{2, 5});
      }
      models::ResNet net = models::resnet18();
      CHECK(sizes(net->forward(torch::randn({1, 3, 64, 64}))) == Sizes{1, 1000});
      CHECK(sizes(net->layer1->forward(torch::randn({1, 64, 8, 8}))) == Sizes{1, 64, 8, 8});
    }
    SUBCASE("VGG-19") {
      models::Vgg19 net(small_vgg());
      CHECK(sizes(net->forward(torch::randn({2, 3, 32, 64}))) == Sizes{2, 5});
      CHECK(sizes(net->features->forward(torch::randn({1, 3, 96, 64}))) == Sizes{1, 32, 3, 2});
    }
    SUBCASE("LSTM and GRU") {
      models::RecurrentOptions options;
      options.input_size = 5;
      options.hidden_size = 7;
      options.num_layers = 2;
      CHECK(sizes(models::Lstm(options)->forward(torch::randn({3, 2, 5}))) == Sizes{3, 2, 7});
      CHECK(sizes(models::Gru(options)->forward(torch::randn({3, 2, 5}))) == Sizes{3, 2, 7});
      options.bidirectional = true;
      CHECK(sizes(models::Lstm(options)->forward(torch::randn({3, 2, 5}))) == Sizes{3, 2, 14});
    }
    SUBCASE("Transformer encoder") {
      models::TransformerEncoderOptions options;
      options.num_layers = 2;
      options.d_model = 16;
      options.num_heads = 4;
      options.feedforward_size = 32;
      models::TransformerEncoder net(options);
      CHECK(sizes(net->forward(torch::randn({6, 2, 16}))) == Sizes{6, 2, 16});
    }
    SUBCASE("NeuMF") {
      models::NeuMf net(small_neumf());
      CHECK(sizes(net->forward(ids(10), ids(7))) == Sizes{6, 1});
    }
    SUBCASE("MLP") {
      models::Mlp net;
      CHECK(sizes(net->forward(torch::randn({3, 256}))) == Sizes{3, 256});
    }
  }

  TEST_CASE("a backward pass gives every parameter a gradient") {
    torch::manual_seed(2);
    SUBCASE("ResNet of basic blocks") {
      models::ResNet net(small_resnet(models::ResNetBlock::kBasic));
      check_every_parameter_gets_a_gradient(*net, net->forward(torch::randn({2, 3, 64, 64})));
    }
    SUBCASE("ResNet of bottlenecks") {
      models::ResNet net(small_resnet(models::ResNetBlock::kBottleneck));
      check_every_parameter_gets_a_gradient(*net, net->forward(torch::randn({2, 3, 64, 64})));
    }
    SUBCASE("VGG-19") {
      models::Vgg19 net(small_vgg());
      check_every_parameter_gets_a_gradient(*net, net->forward(torch::randn({2, 3, 32, 32})));
    }
    SUBCASE("LSTM and GRU") {
      models::RecurrentOptions options;
      options.input_size = 5;
      options.hidden_size = 7;
      options.num_layers = 2;
      options.dropout = 0.5;
      models::Lstm lstm(options);
      check_every_parameter_gets_a_gradient(*lstm, lstm->forward(torch::randn({3, 2, 5})));
      models::Gru gru(options);
      check_every_parameter_gets_a_gradient(*gru, gru->forward(torch::randn({3, 2, 5})));
    }
    SUBCASE("Transformer encoder") {
      models::TransformerEncoderOptions options;
      options.num_layers = 2;
      options.d_model = 16;
      options.num_heads = 4;
      options.feedforward_size = 32;
      models::TransformerEncoder net(options);
      check_every_parameter_gets_a_gradient(*net, net->forward(torch::randn({6, 2, 16})));
    }
    SUBCASE("NeuMF") {
      models::NeuMf net(small_neumf());
      check_every_parameter_gets_a_gradient(*net, net->forward(ids(10), ids(7)));
    }
    SUBCASE("MLP") {
      models::Mlp net;
      check_every_parameter_gets_a_gradient(*net, net->forward(torch::randn({3, 256})));
    }
  }

  TEST_CASE("the MLP computes what its weights say") {
    models::MlpOptions options;
    options.num_layers = 2;
    options.width = 2;
    models::Mlp net(options);
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) parameter.fill_(1.0);
    }
    // (1, -3): each sum and bias gives -1, clipped to 0; then 0 + 0 + 1.
    // (1, 2): 4 and 4; then 4 + 4 + 1.
    CHECK(net->forward(torch::tensor({{1.0F, -3.0F}, {1.0F, 2.0F}}))
              .equal(torch::tensor({{1.0F, 1.0F}, {9.0F, 9.0F}})));
  }

  TEST_CASE("NeuMF computes what its weights say") {
    models::NeuMfOptions options;
    options.num_users = 2;
    options.num_items = 2;
    options.mf_factors = 1;
    options.mlp_widths = {2, 1};
    models::NeuMf net(options);
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) parameter.fill_(1.0);
      net->mf_user_embed->weight[1].fill_(5.0);
      net->mlp_item_embed->weight[1].fill_(-4.0);
    }
    // User 0, item 0: product 1; perceptron 1 + 1 + 1 = 3; 1 + 3 + 1.
    // User 1, item 1: product 5; perceptron 1 - 4 + 1, clipped; 5 + 0 + 1.
    const at::Tensor both = torch::arange(2, torch::kLong);
    CHECK(net->forward(both, both).equal(torch::tensor({{5.0F}, {6.0F}})));
  }

  TEST_CASE("a clone computes the same and shares no parameter") {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(3);
    const auto check_clone = [](const auto& holder, const auto& run) {
      using Impl = typename std::remove_reference_t<decltype(holder)>::ContainedType;
      const auto copy = std::dynamic_pointer_cast<Impl>(holder->clone());
      REQUIRE(copy != nullptr);
      holder.ptr()->eval();
      copy->eval();
      CHECK(run(*copy).equal(run(*holder.ptr())));
      const auto originals = holder->parameters();
      const auto copies = copy->parameters();
      REQUIRE(copies.size() == originals.size());
      for (size_t i = 0; i < copies.size(); ++i) {
        CHECK_FALSE(copies[i].is_alias_of(originals[i]));
        CHECK(copies[i].equal(originals[i]));
      }
    };
    const at::Tensor images = torch::randn({2, 3, 64, 64});
    const auto on_images = [&](auto& net) { return net.forward(images); };
    check_clone(models::ResNet(small_resnet(models::ResNetBlock::kBasic)), on_images);
    check_clone(models::ResNet(small_resnet(models::ResNetBlock::kBottleneck)), on_images);
    check_clone(models::Vgg19(small_vgg()), on_images);

    models::RecurrentOptions recurrent;
    recurrent.input_size = 16;
    recurrent.hidden_size = 7;
    models::TransformerEncoderOptions transformer;
    transformer.num_layers = 2;
    transformer.d_model = 16;
    transformer.num_heads = 4;
    transformer.feedforward_size = 32;
    const at::Tensor sequence = torch::randn({6, 2, 16});
    const auto on_sequence = [&](auto& net) { return net.forward(sequence); };
    check_clone(models::Lstm(recurrent), on_sequence);
    check_clone(models::Gru(recurrent), on_sequence);
    check_clone(models::TransformerEncoder(transformer), on_sequence);

    check_clone(models::NeuMf(small_neumf()),
                [](auto& net) { return net.forward(ids(10), ids(7)); });
    const at::Tensor rows = torch::randn({3, 256});
    check_clone(models::Mlp(), [&](auto& net) { return net.forward(rows); });
  }

  TEST_CASE("the Transformer's prototype layer is alive and not a parameter") {
    models::TransformerEncoderOptions options;
    options.num_layers = 2;
    options.d_model = 16;
    options.num_heads = 4;
    options.feedforward_size = 32;
    const models::TransformerEncoder net(options);
    const auto prototype = net->encoder->options.encoder_layer()->named_parameters();
    CHECK(prototype.size() == 12);
    for (const at::Tensor& parameter : net->parameters()) {
      for (const auto& hidden : prototype) {
        CHECK_FALSE(parameter.is_alias_of(hidden.value()));
      }
    }
  }

  TEST_CASE("sizes that make no network are refused by name") {
    models::ResNetOptions resnet;
    resnet.blocks_per_layer = {1, 0, 1, 1};
    CHECK_THROWS_WITH_AS(models::ResNet{resnet}, doctest::Contains("blocks_per_layer"), c10::Error);
    models::Vgg19Options vgg;
    vgg.base_channels = 0;
    CHECK_THROWS_WITH_AS(models::Vgg19{vgg}, doctest::Contains("base_channels"), c10::Error);
    models::RecurrentOptions recurrent;
    recurrent.num_layers = 0;
    CHECK_THROWS_WITH_AS(models::Lstm{recurrent}, doctest::Contains("Lstm: "), c10::Error);
    CHECK_THROWS_WITH_AS(models::Gru{recurrent}, doctest::Contains("Gru: "), c10::Error);
    models::TransformerEncoderOptions transformer;
    transformer.num_heads = 7;
    CHECK_THROWS_WITH_AS(models::TransformerEncoder{transformer}, doctest::Contains("num_heads"),
                         c10::Error);
    models::NeuMfOptions neumf;
    SUBCASE("no layer") { neumf.mlp_widths = {256}; }
    SUBCASE("an odd first width") { neumf.mlp_widths = {255, 64}; }
    SUBCASE("a width of zero") { neumf.mlp_widths = {256, 0}; }
    CHECK_THROWS_WITH_AS(models::NeuMf{neumf}, doctest::Contains("mlp_widths"), c10::Error);
    models::MlpOptions mlp;
    mlp.num_layers = -1;
    CHECK_THROWS_WITH_AS(models::Mlp{mlp}, doctest::Contains("num_layers"), c10::Error);
  }
}
