// Recurrent networks, the Transformer encoder, NeuMF and the MLP.

#include <c10/util/Exception.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformercoder.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "examples/models/models.h"

namespace memledger::models {
namespace {

namespace nn = torch::nn;

void check_recurrent(const char* what, const RecurrentOptions& options) {
  TORCH_CHECK(options.input_size > 0 && options.hidden_size > 0 && options.num_layers > 0, what,
              ": input_size, hidden_size and num_layers must be positive, got ", options.input_size,
              ", ", options.hidden_size, " and ", options.num_layers);
}

}  // namespace

// ----------------------------------------------------- recurrent networks

LstmImpl::LstmImpl(LstmOptions options) : options_(options) {
  check_recurrent("Lstm", options_);
  LstmImpl::reset();
}

void LstmImpl::reset() {
  lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(options_.input_size, options_.hidden_size)
                                              .num_layers(options_.num_layers)
                                              .bidirectional(options_.bidirectional)
                                              .dropout(options_.dropout)));
}

at::Tensor LstmImpl::forward(const at::Tensor& sequence) {
  return std::get<0>(lstm->forward(sequence));
}

GruImpl::GruImpl(GruOptions options) : options_(options) {
  check_recurrent("Gru", options_);
  GruImpl::reset();
}

void GruImpl::reset() {
  gru = register_module("gru", nn::GRU(nn::GRUOptions(options_.input_size, options_.hidden_size)
                                           .num_layers(options_.num_layers)
                                           .bidirectional(options_.bidirectional)
                                           .dropout(options_.dropout)));
}

at::Tensor GruImpl::forward(const at::Tensor& sequence) {
  return std::get<0>(gru->forward(sequence));
}

// ---------------------------------------------------- Transformer encoder

TransformerEncoderImpl::TransformerEncoderImpl(TransformerEncoderOptions options)
    : options_(options) {
  TORCH_CHECK(options_.num_layers > 0 && options_.feedforward_size > 0,
              "TransformerEncoder: num_layers and feedforward_size must be "
              "positive, got ",
              options_.num_layers, " and ", options_.feedforward_size);
  TORCH_CHECK(
      options_.d_model > 0 && options_.num_heads > 0 && options_.d_model % options_.num_heads == 0,
      "TransformerEncoder: d_model must be a positive multiple of "
      "num_heads, got ",
      options_.d_model, " and ", options_.num_heads);
  TransformerEncoderImpl::reset();
}

void TransformerEncoderImpl::reset() {
  const auto layer = nn::TransformerEncoderLayerOptions(options_.d_model, options_.num_heads)
                         .dim_feedforward(options_.feedforward_size)
                         .dropout(options_.dropout);
  encoder = register_module(
      "encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, options_.num_layers)));
}

at::Tensor TransformerEncoderImpl::forward(const at::Tensor& sequence) {
  return encoder->forward(sequence);
}

// ------------------------------------------------------------------ NeuMF

NeuMfImpl::NeuMfImpl(NeuMfOptions options) : options_(std::move(options)) {
  TORCH_CHECK(options_.num_users > 0 && options_.num_items > 0 && options_.mf_factors > 0,
              "NeuMf: num_users, num_items and mf_factors must be positive, "
              "got ",
              options_.num_users, ", ", options_.num_items, " and ", options_.mf_factors);
  TORCH_CHECK(options_.mlp_widths.size() >= 2,
              "NeuMf: mlp_widths needs an input's width and one layer's at "
              "least, got ",
              options_.mlp_widths.size(), " of them");
  for (const int64_t width : options_.mlp_widths) {
    TORCH_CHECK(width > 0, "NeuMf: mlp_widths must be positive, got ", width);
  }
  TORCH_CHECK(options_.mlp_widths.front() % 2 == 0,
              "NeuMf: the first of mlp_widths is a user's and an item's half "
              "and must be even, got ",
              options_.mlp_widths.front());
  NeuMfImpl::reset();
}

void NeuMfImpl::reset() {
  const std::vector<int64_t>& widths = options_.mlp_widths;
  const int64_t half = widths.front() / 2;

  mf_user_embed =
      register_module("mf_user_embed", nn::Embedding(options_.num_users, options_.mf_factors));
  mf_item_embed =
      register_module("mf_item_embed", nn::Embedding(options_.num_items, options_.mf_factors));
  mlp_user_embed = register_module("mlp_user_embed", nn::Embedding(options_.num_users, half));
  mlp_item_embed = register_module("mlp_item_embed", nn::Embedding(options_.num_items, half));
  mlp = register_module("mlp", nn::ModuleList());
  for (size_t i = 1; i < widths.size(); ++i) {
    mlp->push_back(nn::Linear(widths[i - 1], widths[i]));
  }
  final = register_module("final", nn::Linear(options_.mf_factors + widths.back(), 1));

  // The paper's start: embeddings close to zero, Glorot's bounds for the
  // perceptron, 1 / sqrt(fan in) in spread for the last layer.
  for (const auto& table : {mf_user_embed, mf_item_embed, mlp_user_embed, mlp_item_embed}) {
    nn::init::normal_(table->weight, 0.0, 0.01);
  }
  for (const auto& layer : *mlp) {
    nn::init::xavier_uniform_(layer->as<nn::Linear>()->weight);
  }
  const double bound = std::sqrt(3.0 / static_cast<double>(final->weight.size(1)));
  nn::init::uniform_(final->weight, -bound, bound);
}

at::Tensor NeuMfImpl::forward(const at::Tensor& users, const at::Tensor& items) {
  const at::Tensor factors = mf_user_embed->forward(users) * mf_item_embed->forward(items);
  at::Tensor x = at::cat({mlp_user_embed->forward(users), mlp_item_embed->forward(items)}, 1);
  for (const auto& layer : *mlp) {
    x = at::relu(layer->as<nn::Linear>()->forward(x));
  }
  return final->forward(at::cat({factors, x}, 1));
}

// -------------------------------------------------------------------- MLP

MlpImpl::MlpImpl(MlpOptions options) : options_(options) {
  TORCH_CHECK(options_.num_layers > 0 && options_.width > 0,
              "Mlp: num_layers and width must be positive, got ", options_.num_layers, " and ",
              options_.width);
  MlpImpl::reset();
}

void MlpImpl::reset() {
  layers = nn::Sequential();
  for (int64_t i = 0; i < options_.num_layers; ++i) {
    layers->push_back(nn::Linear(options_.width, options_.width));
    layers->push_back(nn::ReLU());
  }
  register_module("layers", layers);
}

at::Tensor MlpImpl::forward(const at::Tensor& rows) { return layers->forward(rows); }

}  // namespace memledger::models
