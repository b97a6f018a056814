#pragma once

// Real networks written with LibTorch's C++ frontend, for examples, tests and benchmarks. They know
// nothing of memledger. Modules, parameters and buffers have the names of the Python originals.
//
//   memledger::models::ResNet net = memledger::models::resnet50();
//   net->forward(torch::randn({16, 3, 224, 224})).sum().backward();
//
// The defaults of each options struct are the published network; smaller figures make a small one
// of the same shape. Sizes that make no network throw c10::Error. This file includes module.h
// alone: to touch `net->fc->weight`, include <torch/torch.h>.

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace torch::nn {
class AdaptiveAvgPool2dImpl;
class BatchNorm2dImpl;
class Conv2dImpl;
class EmbeddingImpl;
class GRUImpl;
class LSTMImpl;
class LinearImpl;
class MaxPool2dImpl;
class ModuleListImpl;
class ReLUImpl;
class TransformerEncoderImpl;
}  // namespace torch::nn

namespace memledger::models {

// ---------------------------------------------------------------- ResNet

enum class ResNetBlock {
  kBasic,       // two 3x3 convolutions (ResNet-18, ResNet-34)
  kBottleneck,  // 1x1, 3x3, 1x1, four times as wide at its end (ResNet-50, ...)
};

struct ResNetOptions {
  ResNetBlock block = ResNetBlock::kBottleneck;
  // Blocks in layer1 to layer4. The default is ResNet-50.
  std::array<int64_t, 4> blocks_per_layer = {3, 4, 6, 3};
  // Channels after the stem and in layer1; each later layer doubles them.
  int64_t base_channels = 64;
  int64_t num_classes = 1000;
};

// A residual network for images (He et al., "Deep Residual Learning for Image
// Recognition", 2015), as in torchvision. A block's stride is that of its 3x3
// convolution; ReLU and the addition of the shortcut work in place. Weights start
// from Kaiming's normal distribution (fan out). Modules have torchvision's names:
// conv1, bn1, relu, maxpool, layer1 ... layer4 (of blocks), avgpool, fc.
//
//   x ── conv1 7x7/2 ─ bn1 ─ relu ─ maxpool 3x3/2 ─┐
//   ┌──────────────────────────────────────────────┘
//   └─ layer1 ─ layer2 /2 ─ layer3 /2 ─ layer4 /2 ─ avgpool ─ flatten ─ fc ─→
//
// Input (N, 3, H, W), any H and W; made for 224x224. Output (N, num_classes):
// logits. In training mode batch norm wants more than one value per channel:
// with inputs up to 32x32 let N be at least 2.
class ResNetImpl final : public torch::nn::Cloneable<ResNetImpl> {
 public:
  explicit ResNetImpl(ResNetOptions options = {});

  at::Tensor forward(const at::Tensor& images);
  void reset() override;

  std::shared_ptr<torch::nn::Conv2dImpl> conv1;
  std::shared_ptr<torch::nn::BatchNorm2dImpl> bn1;
  std::shared_ptr<torch::nn::ReLUImpl> relu;
  std::shared_ptr<torch::nn::MaxPool2dImpl> maxpool;
  torch::nn::Sequential layer1 = nullptr;
  torch::nn::Sequential layer2 = nullptr;
  torch::nn::Sequential layer3 = nullptr;
  torch::nn::Sequential layer4 = nullptr;
  std::shared_ptr<torch::nn::AdaptiveAvgPool2dImpl> avgpool;
  std::shared_ptr<torch::nn::LinearImpl> fc;

 private:
  ResNetOptions options_;
};
TORCH_MODULE(ResNet);

// 11,689,512 parameters with 1000 classes: 62 tensors, and 60 buffers.
ResNet resnet18(int64_t num_classes = 1000);

// 25,557,032 parameters with 1000 classes: 161 tensors, and 159 buffers.
ResNet resnet50(int64_t num_classes = 1000);

// ---------------------------------------------------------------- VGG-19

struct Vgg19Options {
  // False leaves `avgpool` and `classifier` out: they hold 124 of the 144
  // million parameters.
  bool with_classifier = true;
  // Channels of the first convolution; the widest have eight times as many.
  int64_t base_channels = 64;
  // Width of the classifier's two hidden layers.
  int64_t classifier_width = 4096;
  int64_t num_classes = 1000;
  double dropout = 0.5;  // probability
};

// VGG-19 without batch norm (Simonyan and Zisserman, "Very Deep Convolutional
// Networks for Large-Scale Image Recognition", 2014, configuration E), as
// torchvision builds it. `features` has the indices 0 to 36: sixteen 3x3
// convolutions, each followed by ReLU in place, and five 2x2 max pools.
// `classifier` has 0 to 6: Linear, ReLU, Dropout, Linear, ReLU, Dropout,
// Linear. 143,667,240 parameters in 38 tensors; no buffers.
//
// Input (N, 3, H, W), H and W at least 32; made for 224x224. Output
// (N, num_classes): logits; without the classifier the feature map
// (N, 8 * base_channels, H / 32, W / 32), as `features->forward(x)` gives it.
class Vgg19Impl final : public torch::nn::Cloneable<Vgg19Impl> {
 public:
  explicit Vgg19Impl(Vgg19Options options = {});

  at::Tensor forward(const at::Tensor& images);
  void reset() override;

  torch::nn::Sequential features = nullptr;
  std::shared_ptr<torch::nn::AdaptiveAvgPool2dImpl> avgpool;  // or null
  torch::nn::Sequential classifier = nullptr;                 // or empty

 private:
  Vgg19Options options_;
};
TORCH_MODULE(Vgg19);

// ----------------------------------------------------- recurrent networks

struct RecurrentOptions {
  int64_t input_size = 1024;
  int64_t hidden_size = 1024;
  int64_t num_layers = 1;
  bool bidirectional = false;
  double dropout = 0.0;  // probability, between layers
};
using LstmOptions = RecurrentOptions;
using GruOptions = RecurrentOptions;

// A long short-term memory network: `torch::nn::LSTM`, with the equations of
// its documentation. By default one layer of 1024 units on 1024 inputs:
// 8,396,800 parameters (`lstm.weight_ih_l0`, ...).
//
// Input (T, N, input_size): time steps, batch, features. Output
// (T, N, hidden_size), twice as wide if bidirectional: the hidden state of the
// last layer at every step. The final states are dropped; for those call
// `net->lstm->forward(x)` (<torch/nn/modules/rnn.h>).
class LstmImpl final : public torch::nn::Cloneable<LstmImpl> {
 public:
  explicit LstmImpl(LstmOptions options = {});

  at::Tensor forward(const at::Tensor& sequence);
  void reset() override;

  std::shared_ptr<torch::nn::LSTMImpl> lstm;

 private:
  LstmOptions options_;
};
TORCH_MODULE(Lstm);

// A gated recurrent unit network: `torch::nn::GRU`; shapes and options as for
// Lstm. 6,297,600 parameters by default (`gru.weight_ih_l0`, ...).
class GruImpl final : public torch::nn::Cloneable<GruImpl> {
 public:
  explicit GruImpl(GruOptions options = {});

  at::Tensor forward(const at::Tensor& sequence);
  void reset() override;

  std::shared_ptr<torch::nn::GRUImpl> gru;

 private:
  GruOptions options_;
};
TORCH_MODULE(Gru);

// ---------------------------------------------------- Transformer encoder

struct TransformerEncoderOptions {
  int64_t num_layers = 6;
  int64_t d_model = 512;  // features per position
  int64_t num_heads = 8;  // divides d_model
  int64_t feedforward_size = 2048;
  double dropout = 0.1;  // probability
};

// The encoder of Vaswani et al., "Attention Is All You Need", 2017:
// `torch::nn::TransformerEncoder`, layer norm after each half of a layer, ReLU,
// no final norm, no embedding and no positions. 18,914,304 parameters by
// default (`encoder.layers.0.self_attn.in_proj_weight`, ...).
//
// Input and output (S, N, d_model): positions, batch, features. For masks call
// `net->encoder->forward` (<torch/nn/modules/transformercoder.h>).
//
// Worth knowing when memory is counted: LibTorch's encoder is filled with
// clones of a prototype layer, and its options keep the prototype alive
// (`net->encoder->options.encoder_layer()`). That is one layer's parameters of
// real memory, 12.6 MB by default, which `parameters()` does not reach. It is
// left in place on purpose, as every LibTorch program has it. A `clone()` of
// the network holds on to the same prototype.
class TransformerEncoderImpl final : public torch::nn::Cloneable<TransformerEncoderImpl> {
 public:
  explicit TransformerEncoderImpl(TransformerEncoderOptions options = {});

  at::Tensor forward(const at::Tensor& sequence);
  void reset() override;

  std::shared_ptr<torch::nn::TransformerEncoderImpl> encoder;

 private:
  TransformerEncoderOptions options_;
};
TORCH_MODULE(TransformerEncoder);

// ------------------------------------------------------------------ NeuMF

struct NeuMfOptions {
  int64_t num_users = 138493;  // MovieLens 20M
  int64_t num_items = 26744;
  int64_t mf_factors = 64;  // per user and per item
  // Widths along the multilayer perceptron, its input first. The input is a
  // user's and an item's embedding side by side, each half of the first width:
  // 128 by default. At least two widths; the first is even.
  std::vector<int64_t> mlp_widths = {256, 256, 128, 64};
};

// Neural matrix factorization, a recommender (He et al., "Neural Collaborative
// Filtering", 2017), with the names and by default the sizes of the example in
// pytorch_mem_profiler's README: 31,832,577 parameters, nearly all of them in
// four embedding tables.
//
//   user ─┬─ mf_user_embed ──┐
//   item ─┼─ mf_item_embed ──┴─ product ────────────┐
//         ├─ mlp_user_embed ─┐                      ├─ final ─→
//         └─ mlp_item_embed ─┴─ mlp.0 ─ mlp.1 ─ ... ┘   (ReLU after each mlp.i)
//
// Input: two int64 tensors (N), users below num_users and items below
// num_items. Output (N, 1): logits, before the sigmoid.
class NeuMfImpl final : public torch::nn::Cloneable<NeuMfImpl> {
 public:
  explicit NeuMfImpl(NeuMfOptions options = {});

  at::Tensor forward(const at::Tensor& users, const at::Tensor& items);
  void reset() override;

  std::shared_ptr<torch::nn::EmbeddingImpl> mf_user_embed;
  std::shared_ptr<torch::nn::EmbeddingImpl> mf_item_embed;
  std::shared_ptr<torch::nn::EmbeddingImpl> mlp_user_embed;
  std::shared_ptr<torch::nn::EmbeddingImpl> mlp_item_embed;
  std::shared_ptr<torch::nn::ModuleListImpl> mlp;
  std::shared_ptr<torch::nn::LinearImpl> final;

 private:
  NeuMfOptions options_;
};
TORCH_MODULE(NeuMf);

// -------------------------------------------------------------------- MLP

struct MlpOptions {
  int64_t num_layers = 4;
  int64_t width = 256;  // of the input and of every layer
};

// A multilayer perceptron: `num_layers` times Linear and ReLU (not in place),
// in one Sequential, `layers.0.weight`, `layers.2.weight`, ... 263,168
// parameters by default.
//
// Input and output (N, width).
class MlpImpl final : public torch::nn::Cloneable<MlpImpl> {
 public:
  explicit MlpImpl(MlpOptions options = {});

  at::Tensor forward(const at::Tensor& rows);
  void reset() override;

  torch::nn::Sequential layers = nullptr;

 private:
  MlpOptions options_;
};
TORCH_MODULE(Mlp);

}  // namespace memledger::models
