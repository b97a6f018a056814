// Runs one program whose memory someone has published, on cuda:0, and prints what LibTorch says it
// took. tests/gpu/published.cc has the cases and what the real devices took.
//
//   published_case gpt2 original|mask|fused|bfloat16|modules|flash
//   published_case qwen3
//   published_case mlp INPUT OUTPUT DEPTH ARCHITECTURE BATCH [ACTIVATION DROPOUT BATCH_NORM]
//   published_case cnn CHANNELS CLASSES DEPTH ARCHITECTURE FILTERS BATCH SIZE ACTIVATION DROPOUT
//                      BATCH_NORM PARAMETERS
//   published_case convolution float32|bfloat16
//
// DROPOUT: its rate, 0 for none; BATCH_NORM: 0 or 1; PARAMETERS: how many the network must have.
//
// Prints lines of two words: a figure's name and bytes.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/gpu/as_python.h"
#include "tests/gpu/published_networks.h"

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using at::Tensor;
using namespace memledger::as_python;  // NOLINT(google-build-using-namespace)

// Section 1: GPT-2 124M of "Build a Large Language Model From Scratch", and the steps that make its
// training faster.
class Gpt2 {
 public:
  struct Options {
    bool mask_is_a_buffer = true;
    bool bfloat16 = false;
    bool modules_of_torch = false;  // LayerNorm and GELU
    bool flash_attention = false;
  };

  explicit Gpt2(Options options) : options_(options) {
    tokens_ = tensors_.parameter({kVocabulary, kWidth});
    positions_ = tensors_.parameter({kContext, kWidth});
    for (Block& block : blocks_) {
      if (options_.flash_attention) {
        block.query = tensors_.parameter({3 * kWidth, kWidth});
      } else {
        block.query = tensors_.parameter({kWidth, kWidth});
        block.key = tensors_.parameter({kWidth, kWidth});
        block.value = tensors_.parameter({kWidth, kWidth});
      }
      block.out = linear(kWidth, kWidth);
      if (options_.mask_is_a_buffer) block.mask = tensors_.buffer({kContext, kContext});
      block.up = linear(kWidth, 4 * kWidth);
      block.down = linear(4 * kWidth, kWidth);
      block.norm1 = norm();
      block.norm2 = norm();
    }
    final_norm_ = norm();
    head_ = tensors_.parameter({kVocabulary, kWidth});
  }

  Tensors& tensors() { return tensors_; }
  void train(bool on) { training_ = on; }

  // 12 blocks on (batch, positions) tokens.
  Tensor forward(const Tensor& in) const {
    const Tensor token_embeddings = at::embedding(tensors_[tokens_], in);
    const Tensor position_embeddings = at::embedding(
        tensors_[positions_], at::arange(in.size(1), at::device(kDevice).dtype(at::kLong)));
    Tensor x = token_embeddings + position_embeddings;
    x = dropout(x);
    for (const Block& block : blocks_) x = forward(block, x);
    x = layer_norm(final_norm_, x);
    return at::linear(x, tensors_[head_]);
  }

  static constexpr int64_t kVocabulary = 50257, kContext = 1024;

 private:
  static constexpr int64_t kWidth = 768, kHeads = 12, kBlocks = 12;
  static constexpr double kDropout = 0.1;

  struct Pair {
    size_t weight, bias;
  };
  struct Block {
    size_t query = 0, key = 0, value = 0, mask = 0;
    Pair out, up, down, norm1, norm2;
  };

  Pair linear(int64_t in, int64_t out) {
    const size_t weight = tensors_.parameter({out, in});
    return {weight, tensors_.parameter({out})};
  }

  Pair norm() {
    const size_t weight = tensors_.parameter({kWidth});
    return {weight, tensors_.parameter({kWidth})};
  }

  Tensor linear(const Pair& pair, const Tensor& x) const {
    return memledger::as_python::linear(x, tensors_[pair.weight], tensors_[pair.bias]);
  }

  Tensor dropout(const Tensor& x) const { return at::dropout(x, kDropout, training_); }

  Tensor layer_norm(const Pair& pair, const Tensor& x) const {
    if (options_.modules_of_torch)
      return at::layer_norm(x, {kWidth}, tensors_[pair.weight], tensors_[pair.bias]);
    const Tensor mean = x.mean(-1, /*keepdim=*/true);
    const Tensor variance = x.var(at::IntArrayRef{-1}, /*unbiased=*/false, /*keepdim=*/true);
    Tensor root = variance + 1e-5;
    root = at::sqrt(root);
    Tensor normal = x - mean;
    normal = normal / root;
    root.reset();
    Tensor scaled = tensors_[pair.weight] * normal;
    scaled = scaled + tensors_[pair.bias];
    return scaled;
  }

  Tensor gelu(const Tensor& x) const {
    if (options_.modules_of_torch) return at::gelu(x, "tanh");
    const Tensor half = 0.5 * x;
    Tensor inner = at::pow(x, 3);
    inner = 0.044715 * inner;
    inner = x + inner;
    inner = at::sqrt(at::scalar_tensor(2 / M_PI)) * inner;
    inner = at::tanh(inner);
    inner = 1 + inner;
    return half * inner;
  }

  Tensor attention(const Block& block, const Tensor& x) const {
    const int64_t batch = x.size(0), positions = x.size(1), per_head = kWidth / kHeads;
    const auto heads = [&](size_t weight) {
      return at::linear(x, tensors_[weight]).view({batch, positions, kHeads, per_head});
    };
    if (options_.flash_attention) {
      const Tensor together = at::linear(x, tensors_[block.query])
                                  .view({batch, positions, 3, kHeads, per_head})
                                  .permute({2, 0, 3, 1, 4});
      Tensor context = at::scaled_dot_product_attention(together[0], together[1], together[2], {},
                                                        training_ ? kDropout : 0,
                                                        /*is_causal=*/true);
      context = context.transpose(1, 2).contiguous().view({batch, positions, kWidth});
      return linear(block.out, context);
    }
    Tensor keys = heads(block.key), queries = heads(block.query), values = heads(block.value);
    keys = keys.transpose(1, 2);
    queries = queries.transpose(1, 2);
    values = values.transpose(1, 2);
    Tensor scores = at::matmul(queries, keys.transpose(2, 3));
    Tensor mask;
    if (options_.mask_is_a_buffer) {
      mask = tensors_[block.mask].to(at::kBool);
      mask = mask.narrow(0, 0, positions).narrow(1, 0, positions);
    } else {
      mask = at::ones({positions, positions}, at::device(kDevice));
      mask = at::triu(mask, 1);
      mask = mask.to(at::kBool);
    }
    scores.masked_fill_(mask, -std::numeric_limits<double>::infinity());
    Tensor weights = scores / std::sqrt(static_cast<double>(per_head));
    weights = at::softmax(weights, -1);
    weights = dropout(weights);
    Tensor context = at::matmul(weights, values).transpose(1, 2);
    context = context.reshape({batch, positions, kWidth});
    context = linear(block.out, context);
    return context;
  }

  Tensor forward(const Block& block, Tensor x) const {
    Tensor shortcut = x;
    x = layer_norm(block.norm1, x);
    x = attention(block, x);
    x = dropout(x);
    x = x + shortcut;
    shortcut = x;
    x = layer_norm(block.norm2, x);
    x = linear(block.up, x);
    x = gelu(x);
    x = linear(block.down, x);
    x = dropout(x);
    x = x + shortcut;
    return x;
  }

  Options options_;
  Tensors tensors_;
  size_t tokens_ = 0, positions_ = 0, head_ = 0;
  std::array<Block, kBlocks> blocks_;
  Pair final_norm_;
  bool training_ = true;
};

void train_gpt2(const std::string& step) {
  without_cublaslt();
  const std::vector<std::string> steps = {"original", "mask",    "fused",
                                          "bfloat16", "modules", "flash"};
  const int64_t number = std::find(steps.begin(), steps.end(), step) - steps.begin();
  if (number == static_cast<int64_t>(steps.size()))
    throw std::runtime_error("no step of GPT-2: " + step);
  Gpt2 net({number < 1, number >= 3, number >= 4, number >= 5});
  net.tensors().to(kDevice);
  if (number >= 3) net.tensors().to(at::kBFloat16);
  PythonAdam adam(net.tensors().parameters(), {5e-4, 0.1, /*fused=*/number >= 2});

  // 51 batches of 8, which is Middlemarch but for its last tenth.
  constexpr int kBatches = 51, kEvaluateEvery = 15;
  const auto ids = at::dtype(at::kLong);
  const auto loss_of = [&] {
    const Tensor input = at::zeros({8, Gpt2::kContext}, ids).to(kDevice);
    const Tensor target = at::zeros({8, Gpt2::kContext}, ids).to(kDevice);
    const Tensor logits = net.forward(input);
    return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
  };
  Tensor loss;
  for (int batch = 0; batch < kBatches; ++batch) {
    adam.zero_grad();
    loss = loss_of();
    loss.backward();
    adam.step();
    if (batch % kEvaluateEvery != 0) continue;
    const at::NoGradGuard no_grad;
    net.train(false);
    for (int set = 0; set < 2; ++set) loss_of().item<float>();
    net.train(true);
  }

  // Then it writes 50 tokens more than "Every effort moves you".
  {
    const at::NoGradGuard no_grad;
    net.train(false);
    Tensor text = at::zeros({1, 4}, ids).to(kDevice);
    Tensor logits;
    for (int token = 0; token < 50; ++token) {
      logits = net.forward(text);
      logits = logits.select(1, -1);
      text = at::cat({text, at::argmax(logits, -1, /*keepdim=*/true)}, 1);
    }
  }
  print("allocated", current(statistics().allocated_bytes));
  print("reserved", current(statistics().reserved_bytes));
}

// Section 2: two tokens of Qwen3-8B by Hugging Face's transformers 4.57.
class Qwen3 {
 public:
  Qwen3() {
    const auto parameter = [](at::IntArrayRef sizes) {
      return at::empty(sizes, at::device(kDevice).dtype(at::kBFloat16));
    };
    tokens_ = parameter({kVocabulary, kWidth});
    for (Layer& layer : layers_) {
      layer.query = parameter({kHeads * kPerHead, kWidth});
      layer.key = parameter({kKeys * kPerHead, kWidth});
      layer.value = parameter({kKeys * kPerHead, kWidth});
      layer.out = parameter({kWidth, kHeads * kPerHead});
      layer.query_norm = parameter({kPerHead});
      layer.key_norm = parameter({kPerHead});
      layer.gate = parameter({kInner, kWidth});
      layer.up = parameter({kInner, kWidth});
      layer.down = parameter({kWidth, kInner});
      layer.norm1 = parameter({kWidth});
      layer.norm2 = parameter({kWidth});
    }
    final_norm_ = parameter({kWidth});
    head_ = parameter({kVocabulary, kWidth});
    frequencies_ = at::empty({kPerHead / 2}, at::device(kDevice).dtype(at::kFloat));
  }

  // The logits of all positions; what the layers keep of the tokens stays in the cache.
  Tensor forward(const Tensor& in) { return at::linear(last_hidden_state(in), head_); }

 private:
  static constexpr int64_t kVocabulary = 151936, kWidth = 4096, kInner = 12288, kHeads = 32,
                           kKeys = 8, kPerHead = 128;
  static constexpr size_t kLayers = 36;

  struct Layer {
    Tensor query, key, value, out, query_norm, key_norm, gate, up, down, norm1, norm2;
  };

  Tensor last_hidden_state(const Tensor& in) {
    const Tensor embeddings = at::embedding(tokens_, in);
    const int64_t seen = cache_[0].first.defined() ? cache_[0].first.size(2) : 0;
    const Tensor cache_position =
        at::arange(seen, seen + in.size(1), at::device(kDevice).dtype(at::kLong));
    const Tensor position_ids = cache_position.unsqueeze(0);
    Tensor hidden = embeddings;
    const auto [cosine, sine] = rotation(position_ids);
    for (size_t i = 0; i < kLayers; ++i) hidden = forward(i, hidden, cosine, sine);
    return norm(final_norm_, hidden);
  }

  std::pair<Tensor, Tensor> rotation(const Tensor& position_ids) const {
    const Tensor frequencies = frequencies_.unsqueeze(0).unsqueeze(-1).expand({1, -1, 1});
    const Tensor positions = position_ids.unsqueeze(1).to(at::kFloat);
    const Tensor angles = at::matmul(frequencies, positions).transpose(1, 2);
    const Tensor both = at::cat({angles, angles}, -1);
    Tensor cosine = both.cos();
    cosine = cosine * 1.0;
    Tensor sine = both.sin();
    sine = sine * 1.0;
    return {cosine.to(at::kBFloat16), sine.to(at::kBFloat16)};
  }

  static Tensor norm(const Tensor& weight, Tensor hidden) {
    hidden = hidden.to(at::kFloat);
    Tensor variance = hidden.pow(2);
    variance = variance.mean(-1, /*keepdim=*/true);
    Tensor root = variance + 1e-6;
    root = at::rsqrt(root);
    hidden = hidden * root;
    root.reset();
    hidden = hidden.to(at::kBFloat16);
    return weight * hidden;
  }

  static Tensor half_turn(const Tensor& x) {
    const int64_t half = x.size(-1) / 2;
    const Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
    return at::cat({-second, first}, -1);
  }

  static Tensor rotate(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
    const Tensor straight = x * cosine;
    Tensor turned = half_turn(x);
    turned = turned * sine;
    return straight + turned;
  }

  static Tensor with_cache(Tensor& kept, const Tensor& states) {
    if (!kept.defined()) kept = at::empty({0}, states.options());
    kept = at::cat({kept, states}, -2);
    return kept;
  }

  Tensor attention(size_t i, const Tensor& hidden, Tensor cosine, Tensor sine) {
    const Layer& layer = layers_[i];
    const int64_t positions = hidden.size(1);
    const auto heads = [&](const Tensor& weight) {
      return at::linear(hidden, weight).view({1, positions, -1, kPerHead});
    };
    Tensor query = norm(layer.query_norm, heads(layer.query)).transpose(1, 2);
    Tensor key = norm(layer.key_norm, heads(layer.key)).transpose(1, 2);
    Tensor value = heads(layer.value).transpose(1, 2);
    cosine = cosine.unsqueeze(1);
    sine = sine.unsqueeze(1);
    {
      const Tensor turned_query = rotate(query, cosine, sine);
      key = rotate(key, cosine, sine);
      query = turned_query;
    }
    key = with_cache(cache_[i].first, key);
    value = with_cache(cache_[i].second, value);
    Tensor output = at::scaled_dot_product_attention(query, key, value, {}, 0,
                                                     /*is_causal=*/positions > 1,
                                                     1 / std::sqrt(double{kPerHead}),
                                                     /*enable_gqa=*/true);
    output = output.transpose(1, 2).contiguous();
    output = output.reshape({1, positions, -1}).contiguous();
    return at::linear(output, layer.out);
  }

  Tensor forward(size_t i, Tensor hidden, const Tensor& cosine, const Tensor& sine) {
    const Layer& layer = layers_[i];
    Tensor residual = hidden;
    hidden = norm(layer.norm1, hidden);
    hidden = attention(i, hidden, cosine, sine);
    hidden = residual + hidden;
    residual = hidden;
    hidden = norm(layer.norm2, hidden);
    Tensor inner = at::silu(at::linear(hidden, layer.gate));
    inner = inner * at::linear(hidden, layer.up);
    inner = at::linear(inner, layer.down);
    hidden = residual + inner;
    return hidden;
  }

  Tensor tokens_, final_norm_, head_, frequencies_;
  std::array<Layer, kLayers> layers_;
  std::array<std::pair<Tensor, Tensor>, kLayers> cache_;
};

void infer_qwen3() {
  Qwen3 net;
  c10::cuda::device_synchronize();
  print("loaded", current(statistics().allocated_bytes));
  allocator::resetPeakStats(kDevice.index());

  const c10::InferenceMode inference;
  const auto ids = at::dtype(at::kLong);
  const Tensor input = at::zeros({1, 9}, ids).to(kDevice);
  const Tensor prompt_mask = at::ones({1, 9}, ids).to(kDevice);
  Tensor logits = net.forward(input);
  const Tensor next = at::argmax(logits.select(1, -1), -1, /*keepdim=*/true);
  next.item();
  const Tensor mask =
      at::cat({prompt_mask, at::ones({1, 1}, at::device(kDevice).dtype(at::kLong))}, 1);
  logits = net.forward(next);
  at::argmax(logits.select(1, -1), -1, /*keepdim=*/true).item();
  print("peak", peak(statistics().allocated_bytes));
}

// Section 4: what cuDNN asks for besides the tensors in a forward convolution.
void convolve(const std::string& type) {
  if (type != "float32" && type != "bfloat16") throw std::runtime_error("no type: " + type);
  const auto options = at::device(kDevice).dtype(type == "float32" ? at::kFloat : at::kBFloat16);
  const Tensor x = at::empty({2, 64, 128, 128}, options), w = at::empty({64, 64, 3, 3}, options);
  c10::cuda::device_synchronize();
  allocator::resetPeakStats(kDevice.index());
  const int64_t before = current(statistics().allocated_bytes);
  const at::NoGradGuard no_grad;
  const Tensor y = at::conv2d(x, w, {}, /*stride=*/1, /*padding=*/1);
  c10::cuda::device_synchronize();
  print("workspace",
        peak(statistics().allocated_bytes) - before - static_cast<int64_t>(y.storage().nbytes()));
}

void run(const std::vector<std::string>& words) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  if (words.size() == 2 && words[0] == "gpt2") return train_gpt2(words[1]);
  if (words.size() == 1 && words[0] == "qwen3") return infer_qwen3();
  if (words.size() == 2 && words[0] == "convolution") return convolve(words[1]);
  if ((words.size() == 6 || words.size() == 9) && words[0] == "mlp") return train_mlp(words);
  if (words.size() == 12 && words[0] == "cnn") return train_cnn(words);
  throw std::runtime_error("published_case gpt2 STEP | qwen3 | mlp … | cnn … | convolution TYPE");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "published_case: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
}
