#include "tests/gpu/published_networks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/gpu/as_python.h"

namespace memledger::as_python {
namespace {

using at::Tensor;

struct Style {
  std::string activation;
  double dropout = 0;
  bool batch_norm = false;
};

using Activation = std::function<Tensor(const Tensor&)>;

Activation activation_named(const std::string& name) {
  static const auto& all = *new std::map<std::string, Activation>{
      {"relu", [](const Tensor& x) { return at::relu(x); }},
      {"leaky_relu", [](const Tensor& x) { return at::leaky_relu(x); }},
      {"elu", [](const Tensor& x) { return at::elu(x); }},
      {"selu", [](const Tensor& x) { return at::selu(x); }},
      {"gelu", [](const Tensor& x) { return at::gelu(x); }},
      {"tanh", [](const Tensor& x) { return at::tanh(x); }},
      {"swish", [](const Tensor& x) { return at::silu(x); }},
      {"softplus", [](const Tensor& x) { return at::softplus(x); }},
      {"mish", [](const Tensor& x) { return at::mish(x); }},
      {"identity", [](const Tensor& x) { return x; }},
  };
  const auto found = all.find(name);
  if (found == all.end()) throw std::runtime_error("no activation: " + name);
  return found->second;
}

// Makes modules: functions that share the network's tensors and its mode. A caller keeps its
// argument until the module returns, as Python's frames do.
class Layers {
 public:
  using Forward = std::function<Tensor(Tensor)>;

  explicit Layers(Style style) : style_(std::move(style)) {}

  Tensors& tensors() { return *tensors_; }
  void train(bool on) { *training_ = on; }

  Forward linear(int64_t in, int64_t out) {
    const size_t weight = tensors_->parameter({out, in}), bias = tensors_->parameter({out});
    return [=, tensors = tensors_](const Tensor& x) {
      return as_python::linear(x, (*tensors)[weight], (*tensors)[bias]);
    };
  }

  struct Window {
    int64_t size = 3, stride = 1, padding = 1;
  };

  Forward convolution(int64_t in, int64_t out, Window window) {
    const size_t weight = tensors_->parameter({out, in, window.size, window.size});
    const size_t bias = tensors_->parameter({out});
    return [=, tensors = tensors_](const Tensor& x) {
      return at::conv2d(x, (*tensors)[weight], (*tensors)[bias], window.stride, window.padding);
    };
  }

  Forward batch_norm(int64_t channels) {
    const size_t weight = tensors_->parameter({channels}), bias = tensors_->parameter({channels});
    const size_t mean = tensors_->buffer({channels}), variance = tensors_->buffer({channels});
    const size_t batches = tensors_->counter();
    return [=, tensors = tensors_, training = training_](const Tensor& x) {
      if (*training) (*tensors)[batches].add_(1);
      return at::batch_norm(x, (*tensors)[weight], (*tensors)[bias], (*tensors)[mean],
                            (*tensors)[variance], *training, /*momentum=*/0.1, /*eps=*/1e-5,
                            /*cudnn_enabled=*/true);
    };
  }

  // torch.nn.Sequential of a layer and what the style puts behind it.
  Forward block(Forward layer, int64_t channels, const Style& style) {
    std::vector<Forward> modules = {std::move(layer)};
    if (style.batch_norm) modules.push_back(batch_norm(channels));
    modules.push_back(activation(style.activation));
    if (style.dropout > 0) {
      modules.emplace_back([rate = style.dropout, training = training_](const Tensor& x) {
        return at::dropout(x, rate, *training);
      });
    }
    return [modules = std::move(modules)](Tensor x) {
      for (const Forward& module : modules) x = module(x);
      return x;
    };
  }

  const Style& style() const { return style_; }

 private:
  Forward activation(const std::string& name) {
    if (name != "prelu") return activation_named(name);
    const size_t slope = tensors_->parameter({1});
    return [=, tensors = tensors_](const Tensor& x) { return at::prelu(x, (*tensors)[slope]); };
  }

  Style style_;
  std::shared_ptr<Tensors> tensors_ = std::make_shared<Tensors>();
  std::shared_ptr<bool> training_ = std::make_shared<bool>(true);
};

Layers::Forward mlp(Layers& layers, int64_t input, int64_t output, int64_t depth,
                    const std::string& architecture) {
  std::vector<Layers::Forward> modules;
  int64_t width = input;
  const auto add = [&](int64_t to) {
    modules.push_back(layers.block(layers.linear(width, to), to, layers.style()));
    width = to;
  };
  const auto halve = [&] { add(std::max(width / 2, output)); };
  for (int64_t i = 0; i < depth; ++i) {
    if (architecture == "uniform") {
      add(width);
    } else if (architecture == "pyramid" || architecture == "bottleneck") {
      halve();
    } else if (architecture == "gradual") {
      add(std::max(width - (input - output) / depth, output));
    } else {
      throw std::runtime_error("no architecture of an MLP: " + architecture);
    }
  }
  if (architecture == "bottleneck") halve();
  modules.push_back(layers.linear(width, output));
  return [modules = std::move(modules)](Tensor x) {
    for (const Layers::Forward& module : modules) x = module(x);
    return x;
  };
}

// The convolutional part of cnn.py and its width at the end.
class Cnn {
 public:
  struct Shape {
    int64_t channels, depth, filters, size;
    std::string architecture;
    bool pools_by_depth;  // the coin
  };

  Cnn(Layers& layers, Shape shape)
      : layers_(layers), shape_(std::move(shape)), width_(shape_.channels), size_(shape_.size) {
    if (shape_.architecture == "residual") {
      add_residual_blocks();
    } else if (shape_.architecture == "dense") {
      add_dense_blocks();
    } else {
      for (int64_t i = 0; i < shape_.depth; ++i) add_block(filters_at(i));
    }
  }

  int64_t width() const { return width_; }

  Tensor forward(Tensor x) const {
    for (const Layers::Forward& block : blocks_) x = block(x);
    return x;
  }

 private:
  static constexpr double kMaxFilters = 2048;

  double growth(double depth) const {
    return std::pow(kMaxFilters / static_cast<double>(shape_.filters), 1 / depth);
  }

  // Filters times the growth to a power, in whole filters.
  int64_t grown(double growth, int64_t power) const {
    return static_cast<int64_t>(static_cast<double>(shape_.filters) *
                                std::pow(growth, static_cast<double>(power)));
  }

  int64_t filters_at(int64_t i) const {
    const std::string& architecture = shape_.architecture;
    const int64_t depth = shape_.depth, most = static_cast<int64_t>(kMaxFilters);
    const auto real = [](int64_t number) { return static_cast<double>(number); };
    if (architecture == "uniform") return shape_.filters;
    if (architecture == "pyramid") return std::min(grown(growth(real(depth)), i), most);
    if (architecture == "gradual") return std::min(grown(growth(real(2 * depth)), i), most);
    if (architecture == "bottleneck") {
      if (i == 0) return 2 * shape_.filters;
      return std::min(grown(depth <= 2 ? 2 : growth(real(depth - 1)), i - 1), most);
    }
    if (architecture == "hourglass") {
      const int64_t contracting = depth / 2;
      if (i < contracting) return std::min(grown(growth(real(contracting)), i), most);
      return std::max(grown(growth(real(depth - contracting)), depth - i - 1), shape_.filters);
    }
    throw std::runtime_error("no architecture of a CNN: " + architecture);
  }

  Layers::Forward block(int64_t in, int64_t out, Layers::Window window, const Style& style) {
    return layers_.block(layers_.convolution(in, out, window), out, style);
  }

  void add_block(int64_t out) {
    blocks_.push_back(block(width_, out, {}, layers_.style()));
    width_ = out;
  }

  void add_residual_blocks() {
    const double factor = growth(static_cast<double>(shape_.depth));
    for (int64_t i = 0; i < shape_.depth / 2; ++i) {
      const int64_t out = std::min(grown(factor, i), static_cast<int64_t>(kMaxFilters));
      const int64_t stride = i % 2 == 1 && size_ > 7 ? 2 : 1;
      blocks_.push_back(residual(width_, out, stride));
      width_ = out;
      if (stride == 2) size_ /= 2;
      if (size_ <= 7) break;
    }
  }

  Layers::Forward residual(int64_t in, int64_t out, int64_t stride) {
    const Layers::Forward first = block(in, out, {3, stride, 1}, layers_.style());
    const Layers::Forward second = block(out, out, {}, layers_.style());
    Layers::Forward shortcut = [](const Tensor& x) { return x; };
    if (in != out || stride != 1) {
      shortcut = layers_.convolution(in, out, {1, stride, 0});
      if (layers_.style().batch_norm) {
        shortcut = [convolution = shortcut, norm = layers_.batch_norm(out)](Tensor x) {
          x = convolution(x);
          x = norm(x);
          return x;
        };
      }
    }
    return [=](Tensor x) {
      const Tensor residual = shortcut(x);
      x = first(x);
      x = second(x);
      return x + residual;
    };
  }

  void add_dense_blocks() {
    constexpr int64_t kGrowth = 32, kLayers = 4;
    const int64_t blocks = shape_.depth / 4, pooling = pooling_frequency();
    for (int64_t i = 0; i < blocks; ++i) {
      std::vector<Layers::Forward> layers;
      for (int64_t layer = 0; layer < kLayers; ++layer)
        layers.push_back(block(width_ + layer * kGrowth, kGrowth, {}, layers_.style()));
      width_ += kLayers * kGrowth;
      blocks_.emplace_back([layers = std::move(layers)](const Tensor& x) {
        std::vector<Tensor> features = {x};
        for (const Layers::Forward& layer : layers) features.push_back(layer(at::cat(features, 1)));
        return at::cat(features, 1);
      });
      if (i % pooling == 0 && i != blocks - 1) add_transition();
    }
  }

  // The coin decides between two ways.
  int64_t pooling_frequency() const {
    if (!shape_.pools_by_depth) return 5;
    const auto needed =
        std::max<int64_t>(1, static_cast<int64_t>(std::log2(shape_.size / 7)));  // of whole numbers
    return std::max<int64_t>(1, (shape_.depth + needed - 1) / needed);
  }

  void add_transition() {
    const int64_t out = width_ / 2;
    const Style style{"relu", 0, layers_.style().batch_norm};
    blocks_.emplace_back([convolve = block(width_, out, {1, 1, 0}, style)](Tensor x) {
      x = convolve(x);
      if (x.size(2) > 1 && x.size(3) > 1) x = at::avg_pool2d(x, 2, 2);
      return x;
    });
    width_ = out;
  }

  Layers& layers_;
  const Shape shape_;
  int64_t width_, size_;
  std::vector<Layers::Forward> blocks_;
};

// Trains with Adam. An epoch has 4 096 samples, and its last batch is what remains, which moves the
// peak until the third epoch, by up to 32 MiB. The programs train for 60 to 75 s; of steps that are
// alike, a dozen in a row leave LibTorch's cache as all of them do.
void train(Layers& layers, const Layers::Forward& model, const std::vector<int64_t>& sample_sizes,
           int64_t outputs_count, int64_t batch) {
  constexpr int64_t kSamples = 4096, kSteps = 12;
  const int64_t rest = kSamples % batch;
  const int epochs = rest == 0 ? 1 : 4;
  const int64_t samples = std::min(kSteps * batch + rest, kSamples);
  PythonAdam adam(layers.tensors().parameters(), {});
  Tensor inputs, labels, outputs, loss;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int64_t begin = 0; begin < samples; begin += batch) {
      std::vector<int64_t> sizes = {std::min(batch, samples - begin)};
      inputs.reset();
      labels.reset();
      const Tensor host_labels = at::zeros(sizes, at::kLong);
      sizes.insert(sizes.end(), sample_sizes.begin(), sample_sizes.end());
      inputs = at::empty(sizes).to(kDevice);
      labels = host_labels.to(kDevice);
      adam.zero_grad();
      outputs = model(inputs);
      if (outputs_count == 1) {
        labels = labels.view({-1, 1}).to(at::kFloat);
        loss = at::binary_cross_entropy_with_logits(outputs, labels);
      } else {
        loss = at::cross_entropy_loss(outputs, labels);
      }
      loss.backward();
      adam.step();
      loss.item();
    }
  }
  print("reserved_peak", peak(statistics().reserved_bytes));
}

// Counts parameters as the data set does: without PReLU's slopes, which have one element each.
int64_t count_of(const Tensors& tensors) {
  int64_t count = 0;
  for (const Tensor& parameter : tensors.parameters())
    if (parameter.numel() > 1) count += parameter.numel();
  return count;
}

}  // namespace

void train_mlp(const std::vector<std::string>& words) {
  without_cublaslt();
  const int64_t input = std::stoll(words[1]), output = std::stoll(words[2]);
  const bool is_first_set = words.size() == 6;
  Layers layers(is_first_set ? Style{"relu"}
                             : Style{words[6], std::stod(words[7]), words[8] == "1"});
  Layers::Forward model = mlp(layers, input, output, std::stoll(words[3]), words[4]);
  if (!is_first_set && output > 1) {
    model = [logits = std::move(model)](Tensor x) {
      x = logits(x);
      x = at::softmax(x, 1);
      return x;
    };
  }
  layers.tensors().to(kDevice);
  // torchsummary.
  {
    const Tensor x = at::empty({2, 1, input}).to(kDevice);
    model(is_first_set ? x : x.view({2, -1}));
  }
  train(layers, model, {input}, output, std::stoll(words[5]));
}

void train_cnn(const std::vector<std::string>& words) {
  without_cublaslt();
  const int64_t channels = std::stoll(words[1]), classes = std::stoll(words[2]);
  const int64_t batch = std::stoll(words[6]), size = std::stoll(words[7]);
  const int64_t parameters = std::stoll(words[11]);
  std::optional<Layers> layers;
  std::optional<Cnn> net;
  Layers::Forward head;
  for (const bool coin : {true, false}) {
    layers.emplace(Style{words[8], std::stod(words[9]), words[10] == "1"});
    net.emplace(*layers, Cnn::Shape{channels, std::stoll(words[3]), std::stoll(words[5]), size,
                                    words[4], coin});
    head = layers->linear(net->width(), classes);
    if (parameters == 0 || count_of(layers->tensors()) == parameters) break;
    if (!coin) throw std::runtime_error("the network has another number of parameters");
  }
  layers->tensors().to(kDevice);
  const auto model = [&](Tensor x) {
    x = net->forward(x);
    x = at::adaptive_avg_pool2d(x, {1, 1});
    x = at::flatten(x, 1);
    x = head(x);
    return at::softmax(x, 1);
  };
  // torchinfo.
  {
    const at::NoGradGuard no_grad;
    layers->train(false);
    const Tensor x = at::rand({batch, channels, size, size}).to(kDevice);
    model(x);
    layers->train(true);
  }
  train(*layers, model, {channels, size, size}, classes, batch);
}

}  // namespace memledger::as_python
