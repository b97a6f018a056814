// Trains a decoder of the shape of Llama 2 7B, whose weights are made on the GPU, on one GPU or on
// several. It knows nothing of memledger.
//
//   ./bazelw build //examples:decoder_7b && program=$PWD/bazel-bin/examples/decoder_7b
//   memledger run --virtual-gpu=h100 -- $program
//   memledger run --virtual-gpu=h100,count=8 -- $program --dtype=float32 --pipeline
//   RANK=0 WORLD_SIZE=8 memledger run --virtual-gpu=h100 -- $program --dtype=float32 --shard
//   memledger dry-run --gpu=l4 --gpu=h100 -- $program --layers=8 --batch=4

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/cuda.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"

ABSL_FLAG(int64_t, layers, 32, "Layers.");
ABSL_FLAG(int64_t, hidden, 4096, "Width of a token between layers.");
ABSL_FLAG(int64_t, ffn, 0, "Width inside the feed-forward part; 0: 8/3 of --hidden.");
ABSL_FLAG(int64_t, heads, 0, "Heads of attention; 0: one for each 128 of --hidden.");
ABSL_FLAG(int64_t, kv_heads, 0, "Heads of keys and values; 0: as many as --heads.");
ABSL_FLAG(int64_t, vocabulary, 32000, "Tokens that there are.");
ABSL_FLAG(int64_t, batch, 1, "Sequences in the batch.");
ABSL_FLAG(int64_t, context, 2048, "Tokens in a sequence.");
ABSL_FLAG(int, steps, 1, "Steps of training.");
ABSL_FLAG(std::string, dtype, "bfloat16", "Of the weights: bfloat16 or float32.");
ABSL_FLAG(bool, pipeline, false, "Spread the layers over all GPUs.");
ABSL_FLAG(bool, shard, false,
          "Spread weights, gradients and the optimizer's state over WORLD_SIZE processes, of which "
          "this is RANK; each layer is gathered for the time it runs, and runs again in backward.");

namespace {

struct Shape {
  int64_t layers, hidden, ffn, heads, kv_heads, vocabulary, batch, context;

  int64_t head_width() const { return hidden / heads; }
};

// The angles by which rotary embedding turns pairs of a head's components, for each position.
struct Rotation {
  at::Tensor cosine, sine;  // (context, head width / 2)

  Rotation(const Shape& shape, const at::TensorOptions& options) {
    const int64_t half = shape.head_width() / 2;
    const at::TensorOptions exact = options.dtype(at::kFloat);
    const at::Tensor frequency = at::arange(half, exact).mul(-std::log(1e4) / half).exp();
    const at::Tensor angle = at::outer(at::arange(shape.context, exact), frequency);
    cosine = angle.cos().to(options);
    sine = angle.sin().to(options);
  }

  // `heads`: (batch, heads, context, head width).
  at::Tensor apply(const at::Tensor& heads) const {
    const std::vector<at::Tensor> halves = heads.chunk(2, -1);
    return at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine},
                   -1);
  }
};

// Part of the model, on one device. Its weights are made there: torch::nn::Linear makes them on the
// CPU, which would take 28 GB of the host's memory.
class Stage : public torch::nn::Module {
 public:
  explicit Stage(const at::TensorOptions& options) : options_(options) {}
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  at::Device device() const { return options_.device(); }

 protected:
  at::Tensor matrix(const std::string& name, int64_t rows, int64_t columns) {
    return register_parameter(
        name, torch::nn::init::normal_(at::empty({rows, columns}, options_), 0, 0.02));
  }
  at::Tensor ones(const std::string& name, int64_t width) {
    return register_parameter(name, at::ones({width}, options_));
  }

 private:
  const at::TensorOptions options_;
};

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight) {
  return at::rms_norm(input, {weight.size(0)}, weight, 1e-5);
}

class Embedding : public Stage {
 public:
  Embedding(const Shape& shape, const at::TensorOptions& options)
      : Stage(options), weight_(matrix("weight", shape.vocabulary, shape.hidden)) {}

  at::Tensor forward(const at::Tensor& tokens) override { return at::embedding(weight_, tokens); }

 private:
  at::Tensor weight_;
};

class Block : public Stage {
 public:
  Block(const Shape& shape, const at::TensorOptions& options, std::shared_ptr<Rotation> rotation)
      : Stage(options),
        width_(shape.head_width()),
        rotation_(std::move(rotation)),
        attention_norm_(ones("attention_norm", shape.hidden)),
        query_(matrix("query", shape.heads * width_, shape.hidden)),
        key_(matrix("key", shape.kv_heads * width_, shape.hidden)),
        value_(matrix("value", shape.kv_heads * width_, shape.hidden)),
        output_(matrix("output", shape.hidden, shape.heads * width_)),
        ffn_norm_(ones("ffn_norm", shape.hidden)),
        gate_(matrix("gate", shape.ffn, shape.hidden)),
        up_(matrix("up", shape.ffn, shape.hidden)),
        down_(matrix("down", shape.hidden, shape.ffn)) {}

  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor attended = input + attention(rms_norm(input, attention_norm_));
    return attended + feed_forward(rms_norm(attended, ffn_norm_));
  }

 private:
  // (batch, context, hidden) to (batch, heads, context, head width).
  at::Tensor heads(const at::Tensor& input, const at::Tensor& weight) const {
    return at::linear(input, weight).unflatten(-1, {-1, width_}).transpose(1, 2);
  }

  at::Tensor attention(const at::Tensor& input) const {
    const bool is_grouped = key_.size(0) != query_.size(0);
    const at::Tensor result = at::scaled_dot_product_attention(
        rotation_->apply(heads(input, query_)), rotation_->apply(heads(input, key_)),
        heads(input, value_), /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/true,
        /*scale=*/{}, is_grouped);
    return at::linear(result.transpose(1, 2).flatten(2), output_);
  }

  at::Tensor feed_forward(const at::Tensor& input) const {
    return at::linear(at::silu(at::linear(input, gate_)) * at::linear(input, up_), down_);
  }

  const int64_t width_;
  const std::shared_ptr<Rotation> rotation_;
  at::Tensor attention_norm_, query_, key_, value_, output_, ffn_norm_, gate_, up_, down_;
};

class Head : public Stage {
 public:
  Head(const Shape& shape, const at::TensorOptions& options)
      : Stage(options),
        norm_(ones("norm", shape.hidden)),
        weight_(matrix("weight", shape.vocabulary, shape.hidden)) {}

  at::Tensor forward(const at::Tensor& input) override {
    return at::linear(rms_norm(input, norm_), weight_);
  }

 private:
  at::Tensor norm_, weight_;
};

int from_environment(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  int number = 0;
  if (!absl::SimpleAtoi(text, &number))
    throw std::runtime_error(fmt::format("{}={} is not a number", variable, text));
  return number;
}

// The processes that a model is spread over, by NCCL's own functions: c10d::ProcessGroupNCCL needs
// NCCL's header. NCCL comes with LibTorch's CUDA library.
class Ranks {
 public:
  Ranks(int rank, int count, at::Device device) : rank_(rank), count_(count) {
    if (count == 1) return;
    const c10::DeviceGuard guard(device);
    using Init = int (*)(void**, int, Id, int);
    check(function<Init>("ncclCommInitRank")(&communicator_, count, shared_id(), rank));
  }

  int rank() const { return rank_; }
  int count() const { return count_; }

  // Each rank's part behind the one before.
  at::Tensor all_gather(const at::Tensor& part) const {
    at::Tensor whole = at::empty({part.numel() * count_}, part.options());
    if (count_ == 1) return whole.copy_(part);
    using Gather = int (*)(const void*, void*, size_t, int, void*, void*);
    check(function<Gather>("ncclAllGather")(part.const_data_ptr(), whole.data_ptr(),
                                            static_cast<size_t>(part.numel()), type_of(part),
                                            communicator_, kDefaultStream));
    return whole;
  }

  // This rank's part of the mean over all ranks.
  at::Tensor reduce_scatter(const at::Tensor& whole) const {
    at::Tensor part = at::empty({whole.numel() / count_}, whole.options());
    if (count_ == 1) return part.copy_(whole);
    constexpr int kMean = 4;
    using Reduce = int (*)(const void*, void*, size_t, int, int, void*, void*);
    check(function<Reduce>("ncclReduceScatter")(whole.const_data_ptr(), part.data_ptr(),
                                                static_cast<size_t>(part.numel()), type_of(whole),
                                                kMean, communicator_, kDefaultStream));
    return part;
  }

 private:
  struct Id {
    char bytes[128];
  };
  // LibTorch's current stream, unless a program chooses another.
  static constexpr void* kDefaultStream = nullptr;

  template <typename F>
  static F function(const char* name) {
    void* const symbol = dlsym(RTLD_DEFAULT, name);
    if (symbol == nullptr) throw std::runtime_error(std::string("there is no ") + name);
    return reinterpret_cast<F>(symbol);
  }

  static void check(int result) {
    if (result != 0) throw std::runtime_error(fmt::format("NCCL says {}", result));
  }

  static int type_of(const at::Tensor& tensor) {
    constexpr int kFloat32 = 7, kBfloat16 = 9;
    return tensor.scalar_type() == at::kFloat ? kFloat32 : kBfloat16;
  }

  // The first rank makes it, and sends it to the others over the address that torchrun gives.
  Id shared_id() const {
    Id id;
    if (rank_ == 0) check(function<int (*)(Id*)>("ncclGetUniqueId")(&id));
    const char* const host = std::getenv("MASTER_ADDR");
    const char* const port = std::getenv("MASTER_PORT");
    if (host == nullptr || port == nullptr) {
      if (rank_ == 0) return id;
      throw std::runtime_error("a RANK above 0 needs MASTER_ADDR and MASTER_PORT");
    }
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(from_environment("MASTER_PORT", 0));
    // torchrun has a store there already.
    options.isServer = rank_ == 0 && std::getenv("TORCHELASTIC_USE_AGENT_STORE") == nullptr;
    options.waitWorkers = false;
    static auto* const store = new c10d::TCPStore(host, options);  // the others may still ask
    const char key[] = "decoder_7b/nccl";
    if (rank_ == 0) store->set(key, std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes));
    const std::vector<uint8_t> told = store->get(key);
    std::memcpy(id.bytes, told.data(), sizeof id.bytes);
    return id;
  }

  const int rank_, count_;
  void* communicator_ = nullptr;
};

// A stage of whose weights each rank keeps one part: `shard`, which the optimizer changes.
class ShardedStage {
 public:
  ShardedStage(std::shared_ptr<Stage> stage, const Ranks& ranks)
      : stage_(std::move(stage)), ranks_(ranks), weights_(stage_->parameters()) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& weight : weights_) shapes_.push_back(weight.sizes().vec());
    const at::Tensor whole = joined(weights_);
    const int64_t part = whole.numel() / ranks.count();
    shard_ = whole.narrow(0, ranks.rank() * part, part).clone();
    shard_.requires_grad_();
    release();
  }

  const at::Tensor& shard() const { return shard_; }
  at::Tensor forward(const at::Tensor& input) { return Run::apply(input, shard_, this); }

 private:
  struct Run : torch::autograd::Function<Run> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                              const at::Tensor& shard, ShardedStage* stage) {
      (void)shard;  // an input, so that backward has its gradient
      context->saved_data["stage"] = reinterpret_cast<int64_t>(stage);
      context->save_for_backward({input});
      stage->gather();
      at::Tensor output = stage->stage_->forward(input);
      stage->release();
      return output;
    }

    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      auto* const stage = reinterpret_cast<ShardedStage*>(context->saved_data["stage"].toInt());
      const at::Tensor input = context->get_saved_variables()[0].detach();
      stage->gather();
      std::vector<at::Tensor> inputs = stage->weights_;
      if (input.is_floating_point()) inputs.push_back(input.requires_grad_());
      std::vector<at::Tensor> result;
      {
        const at::AutoGradMode grad_mode(true);
        const at::Tensor output = stage->stage_->forward(input);
        result = torch::autograd::grad({output}, inputs, {gradients[0]});
      }
      at::Tensor of_input;
      if (input.is_floating_point()) {
        of_input = std::move(result.back());
        result.pop_back();
      }
      stage->release();
      const at::Tensor whole = stage->joined(std::exchange(result, {}));
      return {of_input, stage->ranks_.reduce_scatter(whole), at::Tensor()};
    }
  };

  // One after the other, with zeros behind them, so that all ranks' parts are of one size.
  at::Tensor joined(const std::vector<at::Tensor>& tensors) const {
    std::vector<at::Tensor> flat;
    int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) {
      flat.push_back(tensor.detach().flatten());
      elements += tensor.numel();
    }
    if (const int64_t rest = elements % ranks_.count(); rest != 0)
      flat.push_back(at::zeros({ranks_.count() - rest}, flat.front().options()));
    return at::cat(flat);
  }

  void gather() {
    const at::NoGradGuard no_grad;
    const at::Tensor whole = ranks_.all_gather(shard_);
    int64_t begin = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const int64_t elements = c10::multiply_integers(shapes_[i]);
      weights_[i].set_data(whole.narrow(0, begin, elements).view(shapes_[i]));
      begin += elements;
    }
  }

  void release() {
    for (at::Tensor& weight : weights_) weight.set_data(at::empty({0}, weight.options()));
  }

  const std::shared_ptr<Stage> stage_;
  const Ranks& ranks_;
  std::vector<at::Tensor> weights_;
  std::vector<std::vector<int64_t>> shapes_;
  at::Tensor shard_;
};

Shape shape_from_flags() {
  Shape shape{};
  shape.layers = absl::GetFlag(FLAGS_layers);
  shape.hidden = absl::GetFlag(FLAGS_hidden);
  shape.ffn = absl::GetFlag(FLAGS_ffn);
  shape.heads = absl::GetFlag(FLAGS_heads);
  shape.kv_heads = absl::GetFlag(FLAGS_kv_heads);
  shape.vocabulary = absl::GetFlag(FLAGS_vocabulary);
  shape.batch = absl::GetFlag(FLAGS_batch);
  shape.context = absl::GetFlag(FLAGS_context);
  if (shape.ffn == 0) shape.ffn = (shape.hidden * 8 / 3 + 255) / 256 * 256;
  if (shape.heads == 0) shape.heads = std::max<int64_t>(shape.hidden / 128, 1);
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  const auto [least, most] =
      std::minmax({shape.layers, shape.hidden, shape.ffn, shape.heads, shape.kv_heads,
                   shape.vocabulary, shape.batch, shape.context});
  if (least < 1 || most > int64_t{1} << 30) throw std::invalid_argument("sizes are from 1 to 2^30");
  if (shape.hidden % (2 * shape.heads) != 0 || shape.heads % shape.kv_heads != 0)
    throw std::invalid_argument(
        "--hidden must be a multiple of twice --heads, and --heads of --kv_heads");
  return shape;
}

at::ScalarType dtype_from_flags() {
  const std::string name = absl::GetFlag(FLAGS_dtype);
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float32") return at::kFloat;
  throw std::invalid_argument("--dtype must be bfloat16 or float32, not " + name);
}

// The GPUs that the model lies on; the CPU where there is none.
std::vector<at::Device> devices_from_flags() {
  const c10::DeviceIndex count = torch::cuda::device_count();
  if (count == 0) return {at::Device(at::kCPU)};
  std::vector<at::Device> devices;
  for (c10::DeviceIndex i = 0; i < count; ++i) devices.emplace_back(at::kCUDA, i);
  if (absl::GetFlag(FLAGS_pipeline)) return devices;
  return {devices.at(static_cast<size_t>(from_environment("LOCAL_RANK", 0)) % devices.size())};
}

using AddStage = std::function<void(std::shared_ptr<Stage>)>;
using Forward = std::function<at::Tensor(at::Tensor tokens)>;

// Makes the model, and calls `add` with each stage as soon as it is there.
void make_stages(const Shape& shape, at::ScalarType dtype, const std::vector<at::Device>& devices,
                 const AddStage& add) {
  const auto options = [&](at::Device device) { return at::TensorOptions(device).dtype(dtype); };
  add(std::make_shared<Embedding>(shape, options(devices.front())));
  std::map<c10::DeviceIndex, std::shared_ptr<Rotation>> rotations;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const at::Device device =
        devices[static_cast<size_t>(layer) * devices.size() / static_cast<size_t>(shape.layers)];
    std::shared_ptr<Rotation>& rotation = rotations[device.index()];
    if (rotation == nullptr) rotation = std::make_shared<Rotation>(shape, options(device));
    add(std::make_shared<Block>(shape, options(device), rotation));
  }
  add(std::make_shared<Head>(shape, options(devices.back())));
}

int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& next_tokens) {
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat),
                                next_tokens.to(logits.device()).flatten());
}

void print_figures(const std::vector<at::Device>& devices) {
  for (const at::Device& device : devices) {
    if (!device.is_cuda()) continue;
    const auto figures = c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(device.index());
    fmt::print("{}: {} bytes allocated, at most {}, and {} reserved\n", device.str(),
               figures.allocated_bytes[0].current, figures.allocated_bytes[0].peak,
               figures.reserved_bytes[0].peak);
  }
}

// Trains `weights`. `forward` returns the logits of tokens.
void train(const Shape& shape, const std::vector<at::Device>& devices,
           const std::vector<at::Tensor>& weights, const Forward& forward) {
  torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(1e-3));
  const at::Tensor tokens = at::randint(shape.vocabulary, {shape.batch, shape.context + 1},
                                        at::TensorOptions(devices.front()).dtype(at::kLong));
  for (int step = 0; step < absl::GetFlag(FLAGS_steps); ++step) {
    optimizer.zero_grad();
    const at::Tensor loss =
        loss_of(forward(tokens.narrow(1, 0, shape.context)), tokens.narrow(1, 1, shape.context));
    loss.backward();
    optimizer.step();
    // A GPU would be waited for.
    if (loss.is_cpu()) fmt::print("step {}: loss {:.6f}\n", step + 1, loss.item<float>());
  }
  print_figures(devices);
}

void train_whole(const Shape& shape, at::ScalarType dtype, const std::vector<at::Device>& devices) {
  std::vector<std::shared_ptr<Stage>> stages;
  std::vector<at::Tensor> weights;
  make_stages(shape, dtype, devices, [&](std::shared_ptr<Stage> stage) {
    for (const at::Tensor& weight : stage->parameters()) weights.push_back(weight);
    stages.push_back(std::move(stage));
  });
  fmt::print("parameters: {}\n", elements_of(weights));
  train(shape, devices, weights, [&](at::Tensor hidden) {
    for (const std::shared_ptr<Stage>& stage : stages)
      hidden = stage->forward(hidden.to(stage->device()));
    return hidden;
  });
}

void train_sharded(const Shape& shape, at::ScalarType dtype, at::Device device) {
  const Ranks ranks(from_environment("RANK", 0), from_environment("WORLD_SIZE", 1), device);
  std::vector<std::unique_ptr<ShardedStage>> stages;
  std::vector<at::Tensor> shards;
  int64_t elements = 0;
  make_stages(shape, dtype, {device}, [&](std::shared_ptr<Stage> stage) {
    elements += elements_of(stage->parameters());
    stages.push_back(std::make_unique<ShardedStage>(std::move(stage), ranks));
    shards.push_back(stages.back()->shard());
  });
  fmt::print("parameters: {}, of which rank {} of {} has {}\n", elements, ranks.rank(),
             ranks.count(), elements_of(shards));
  train(shape, {device}, shards, [&](at::Tensor hidden) {
    for (const std::unique_ptr<ShardedStage>& stage : stages) hidden = stage->forward(hidden);
    return hidden;
  });
}

void run() {
  const auto begin = std::chrono::steady_clock::now();
  const Shape shape = shape_from_flags();
  const at::ScalarType dtype = dtype_from_flags();
  const std::vector<at::Device> devices = devices_from_flags();
  if (absl::GetFlag(FLAGS_shard) && absl::GetFlag(FLAGS_pipeline))
    throw std::invalid_argument("--shard and --pipeline exclude each other");
  at::manual_seed(1);
  if (absl::GetFlag(FLAGS_shard)) {
    train_sharded(shape, dtype, devices.front());
  } else {
    train_whole(shape, dtype, devices);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{:.1f} s, at most {} MiB of the host's memory\n",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
             usage.ru_maxrss / 1024);
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains a decoder of the shape of Llama 2 7B on the GPU, real or virtual; on the CPU where "
      "there is none.");
  absl::ParseCommandLine(argc, argv);
  try {
    run();
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << "decoder_7b: " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "decoder_7b: " << error.what() << "\n";
  }
  return 1;
}
