// ResNet and VGG-19.

#include <c10/util/Exception.h>
#include <torch/enum.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <array>
#include <cstdint>

#include "examples/models/models.h"

namespace memledger::models {
namespace {

namespace nn = torch::nn;

nn::Conv2d make_conv3x3(int64_t in, int64_t out, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

nn::Conv2d make_conv1x1(int64_t in, int64_t out, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false));
}

nn::ReLU make_inplace_relu() { return nn::ReLU(nn::ReLUOptions().inplace(true)); }

// What brings a block's input to the shape of its output; empty where the
// shapes agree.
nn::Sequential make_downsample(int64_t in, int64_t out, int64_t stride) {
  if (in == out && stride == 1) return nullptr;
  return nn::Sequential(make_conv1x1(in, out, stride), nn::BatchNorm2d(out));
}

// torchvision's start for convolutions. Batch norm needs nothing: LibTorch
// starts it with ones and zeros.
void init_convolutions(nn::Module& root) {
  // Not `root` itself: a module under construction has no shared pointer yet.
  for (const auto& module : root.modules(/*include_self=*/false)) {
    auto* conv = module->as<nn::Conv2d>();
    if (conv == nullptr) continue;
    nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
    if (conv->bias.defined()) nn::init::zeros_(conv->bias);
  }
}

}  // namespace

// The blocks are not in the header, as nobody needs to name them; they are not
// in the unnamed namespace either, so that Module::name() stays readable. Their
// forward functions take one step per statement: nested calls would keep every
// step's result until the end of the expression, and peak higher than
// torchvision does when nothing is saved for a backward pass.

struct BlockShape {
  int64_t in;
  int64_t channels;  // of the 3x3 convolutions
  int64_t stride;
};

class BasicBlockImpl final : public nn::Cloneable<BasicBlockImpl> {
 public:
  static constexpr int64_t kExpansion = 1;

  explicit BasicBlockImpl(BlockShape shape) : shape_(shape) { BasicBlockImpl::reset(); }

  void reset() override {
    const auto [in, channels, stride] = shape_;
    conv1_ = register_module("conv1", make_conv3x3(in, channels, stride));
    bn1_ = register_module("bn1", nn::BatchNorm2d(channels));
    relu_ = register_module("relu", make_inplace_relu());
    conv2_ = register_module("conv2", make_conv3x3(channels, channels, 1));
    bn2_ = register_module("bn2", nn::BatchNorm2d(channels));
    downsample_ = make_downsample(in, channels, stride);
    if (downsample_) register_module("downsample", downsample_);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor out = conv1_->forward(x);
    out = bn1_->forward(out);
    out = relu_->forward(out);
    out = conv2_->forward(out);
    out = bn2_->forward(out);
    out += downsample_ ? downsample_->forward(x) : x;
    return relu_->forward(out);
  }

 private:
  BlockShape shape_;
  nn::Conv2d conv1_ = nullptr;
  nn::BatchNorm2d bn1_ = nullptr;
  nn::ReLU relu_ = nullptr;
  nn::Conv2d conv2_ = nullptr;
  nn::BatchNorm2d bn2_ = nullptr;
  nn::Sequential downsample_ = nullptr;
};
TORCH_MODULE(BasicBlock);

class BottleneckImpl final : public nn::Cloneable<BottleneckImpl> {
 public:
  static constexpr int64_t kExpansion = 4;

  explicit BottleneckImpl(BlockShape shape) : shape_(shape) { BottleneckImpl::reset(); }

  void reset() override {
    const auto [in, channels, stride] = shape_;
    const int64_t out = channels * kExpansion;
    conv1_ = register_module("conv1", make_conv1x1(in, channels, 1));
    bn1_ = register_module("bn1", nn::BatchNorm2d(channels));
    conv2_ = register_module("conv2", make_conv3x3(channels, channels, stride));
    bn2_ = register_module("bn2", nn::BatchNorm2d(channels));
    conv3_ = register_module("conv3", make_conv1x1(channels, out, 1));
    bn3_ = register_module("bn3", nn::BatchNorm2d(out));
    relu_ = register_module("relu", make_inplace_relu());
    downsample_ = make_downsample(in, out, stride);
    if (downsample_) register_module("downsample", downsample_);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor out = conv1_->forward(x);
    out = bn1_->forward(out);
    out = relu_->forward(out);
    out = conv2_->forward(out);
    out = bn2_->forward(out);
    out = relu_->forward(out);
    out = conv3_->forward(out);
    out = bn3_->forward(out);
    out += downsample_ ? downsample_->forward(x) : x;
    return relu_->forward(out);
  }

 private:
  BlockShape shape_;
  nn::Conv2d conv1_ = nullptr;
  nn::BatchNorm2d bn1_ = nullptr;
  nn::Conv2d conv2_ = nullptr;
  nn::BatchNorm2d bn2_ = nullptr;
  nn::Conv2d conv3_ = nullptr;
  nn::BatchNorm2d bn3_ = nullptr;
  nn::ReLU relu_ = nullptr;
  nn::Sequential downsample_ = nullptr;
};
TORCH_MODULE(Bottleneck);

namespace {

// One of layer1 to layer4. Leaves in `in` the channels that come out.
template <typename Block>
nn::Sequential make_layer(int64_t& in, int64_t channels, int64_t blocks, int64_t stride) {
  nn::Sequential layer;
  for (int64_t i = 0; i < blocks; ++i) {
    layer->push_back(Block(BlockShape{in, channels, i == 0 ? stride : 1}));
    in = channels * Block::Impl::kExpansion;
  }
  return layer;
}

}  // namespace

// ---------------------------------------------------------------- ResNet

ResNetImpl::ResNetImpl(ResNetOptions options) : options_(options) {
  for (const int64_t blocks : options_.blocks_per_layer) {
    TORCH_CHECK(blocks > 0, "ResNet: blocks_per_layer must be positive, got ", blocks);
  }
  TORCH_CHECK(options_.base_channels > 0 && options_.num_classes > 0,
              "ResNet: base_channels and num_classes must be positive, got ",
              options_.base_channels, " and ", options_.num_classes);
  ResNetImpl::reset();
}

void ResNetImpl::reset() {
  const auto make =
      options_.block == ResNetBlock::kBasic ? make_layer<BasicBlock> : make_layer<Bottleneck>;
  const int64_t base = options_.base_channels;
  const auto& blocks = options_.blocks_per_layer;
  int64_t channels = base;

  conv1 = register_module(
      "conv1", nn::Conv2d(nn::Conv2dOptions(3, base, 7).stride(2).padding(3).bias(false)));
  bn1 = register_module("bn1", nn::BatchNorm2d(base));
  relu = register_module("relu", make_inplace_relu());
  maxpool = register_module("maxpool", nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  layer1 = register_module("layer1", make(channels, base, blocks[0], 1));
  layer2 = register_module("layer2", make(channels, base * 2, blocks[1], 2));
  layer3 = register_module("layer3", make(channels, base * 4, blocks[2], 2));
  layer4 = register_module("layer4", make(channels, base * 8, blocks[3], 2));
  avgpool = register_module("avgpool", nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({1, 1})));
  fc = register_module("fc", nn::Linear(channels, options_.num_classes));

  init_convolutions(*this);
}

at::Tensor ResNetImpl::forward(const at::Tensor& images) {
  at::Tensor x = conv1->forward(images);
  x = bn1->forward(x);
  x = relu->forward(x);
  x = maxpool->forward(x);
  x = layer1->forward(x);
  x = layer2->forward(x);
  x = layer3->forward(x);
  x = layer4->forward(x);
  x = avgpool->forward(x);
  return fc->forward(x.flatten(1));
}

ResNet resnet18(int64_t num_classes) {
  ResNetOptions options;
  options.block = ResNetBlock::kBasic;
  options.blocks_per_layer = {2, 2, 2, 2};
  options.num_classes = num_classes;
  return ResNet(options);
}

ResNet resnet50(int64_t num_classes) {
  ResNetOptions options;
  options.num_classes = num_classes;
  return ResNet(options);
}

// ---------------------------------------------------------------- VGG-19

Vgg19Impl::Vgg19Impl(Vgg19Options options) : options_(options) {
  TORCH_CHECK(
      options_.base_channels > 0 && options_.classifier_width > 0 && options_.num_classes > 0,
      "Vgg19: base_channels, classifier_width and num_classes must be "
      "positive, got ",
      options_.base_channels, ", ", options_.classifier_width, " and ", options_.num_classes);
  Vgg19Impl::reset();
}

void Vgg19Impl::reset() {
  // Per stage: convolutions, and channels as a multiple of the base. A pool
  // ends each stage.
  struct Stage {
    int64_t convolutions;
    int64_t multiple;
  };
  constexpr std::array<Stage, 5> kStages = {{{2, 1}, {2, 2}, {4, 4}, {4, 8}, {4, 8}}};
  constexpr int64_t kPooledSide = 7;

  features = nn::Sequential();
  int64_t channels = 3;
  for (const Stage& stage : kStages) {
    const int64_t out = options_.base_channels * stage.multiple;
    for (int64_t i = 0; i < stage.convolutions; ++i) {
      features->push_back(nn::Conv2d(nn::Conv2dOptions(channels, out, 3).padding(1)));
      features->push_back(make_inplace_relu());
      channels = out;
    }
    features->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2).stride(2)));
  }
  register_module("features", features);
  init_convolutions(*this);

  if (!options_.with_classifier) return;
  avgpool = register_module(
      "avgpool", nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({kPooledSide, kPooledSide})));
  const int64_t width = options_.classifier_width;
  classifier = register_module(
      "classifier",
      nn::Sequential(nn::Linear(channels * kPooledSide * kPooledSide, width), make_inplace_relu(),
                     nn::Dropout(options_.dropout), nn::Linear(width, width), make_inplace_relu(),
                     nn::Dropout(options_.dropout), nn::Linear(width, options_.num_classes)));
  for (const auto& module : classifier->modules(/*include_self=*/false)) {
    auto* linear = module->as<nn::Linear>();
    if (linear == nullptr) continue;
    nn::init::normal_(linear->weight, 0.0, 0.01);
    nn::init::zeros_(linear->bias);
  }
}

at::Tensor Vgg19Impl::forward(const at::Tensor& images) {
  at::Tensor x = features->forward(images);
  if (!classifier) return x;
  x = avgpool->forward(x);
  return classifier->forward(x.flatten(1));
}

}  // namespace memledger::models
