#include "tests/gpu/training_step.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <chrono>

#include "examples/models/models.h"

// ATen/cuda/CUDAContextLight.h has it, and needs headers of cuBLAS and cuSPARSE that LibTorch does
// not bring.
namespace at::cuda {
TORCH_CUDA_CPP_API void clearCublasWorkspaces();
}

namespace memledger::testing {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

template <class Holder>
Training make_training(Holder net, c10::Device device,
                       std::vector<std::pair<std::string, at::Tensor>> inputs,
                       std::function<at::Tensor()> forward) {
  net->to(device);
  Training training;
  training.net = net.ptr();
  training.inputs = std::move(inputs);
  training.forward = std::move(forward);
  training.adam = std::make_unique<torch::optim::Adam>(net->parameters());
  return training;
}

template <class Holder>
Training make_classifier(Holder net, c10::Device device) {
  constexpr int64_t kBatch = 16;
  const at::Tensor images = at::randn({kBatch, 3, 224, 224}, device);
  const at::Tensor classes = at::zeros({kBatch}, at::device(device).dtype(at::kLong));
  return make_training(net, device, {{"images", images}, {"classes", classes}}, [=]() mutable {
    return at::cross_entropy_loss(net->forward(images), classes);
  });
}

// On (time steps or positions, batch, features).
template <class Holder>
Training make_sequence_net(Holder net, c10::Device device, at::IntArrayRef sizes) {
  const at::Tensor sequence = at::randn(sizes, device);
  return make_training(net, device, {{"sequence", sequence}},
                       [=]() mutable { return net->forward(sequence).sum(); });
}

Training make_neumf(c10::Device device) {
  constexpr int64_t kBatch = 4096;
  const models::NeuMfOptions options;
  models::NeuMf net(options);
  const auto ids = at::device(device).dtype(at::kLong);
  const at::Tensor users = at::randint(options.num_users, {kBatch}, ids);
  const at::Tensor items = at::randint(options.num_items, {kBatch}, ids);
  const at::Tensor seen = at::ones({kBatch, 1}, device);
  return make_training(
      net, device, {{"users", users}, {"items", items}, {"seen", seen}}, [=]() mutable {
        return at::binary_cross_entropy_with_logits(net->forward(users, items), seen);
      });
}

Training make_mlp(c10::Device device) {
  models::Mlp net;
  const at::Tensor rows = at::randn({64, 256}, device);
  return make_training(net, device, {{"rows", rows}},
                       [=]() mutable { return net->forward(rows).sum(); });
}

Figure figure(const c10::CachingAllocator::StatArray& statistic) {
  const auto& all_blocks =
      statistic[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {all_blocks.current, all_blocks.peak};
}

}  // namespace

const std::vector<StandardModel>& standard_models() {
  static const std::vector<StandardModel>& models = *new std::vector<StandardModel>{
      {"ResNet-50", "16 x 3 x 224 x 224",
       [](c10::Device device) { return make_classifier(models::resnet50(), device); }},
      {"VGG-19", "16 x 3 x 224 x 224",
       [](c10::Device device) { return make_classifier(models::Vgg19(), device); }},
      {"LSTM", "128 x 32 x 1024",
       [](c10::Device device) {
         return make_sequence_net(models::Lstm(), device, {128, 32, 1024});
       }},
      {"GRU", "128 x 32 x 1024",
       [](c10::Device device) {
         return make_sequence_net(models::Gru(), device, {128, 32, 1024});
       }},
      {"Transformer", "128 x 32 x 512",
       [](c10::Device device) {
         return make_sequence_net(models::TransformerEncoder(), device, {128, 32, 512});
       }},
      {"NeuMF", "4096", make_neumf},
      {"MLP", "64 x 256", make_mlp},
  };
  return models;
}

void start_clean(c10::Device device) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  c10::cuda::device_synchronize();
  at::cuda::clearCublasWorkspaces();
  allocator::emptyCache();
  allocator::resetPeakStats(device.index());
}

std::vector<PhaseFigures> train(const StandardModel& model, c10::Device device,
                                const AfterPhase& after) {
  Training training;
  std::vector<PhaseFigures> phases;
  const auto run = [&](const char* phase, const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    c10::cuda::device_synchronize();
    PhaseFigures& figures = phases.emplace_back();
    figures.phase = phase;
    figures.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto statistics = allocator::getDeviceStats(device.index());
    figures.requested = figure(statistics.requested_bytes);
    figures.allocated = figure(statistics.allocated_bytes);
    figures.reserved = figure(statistics.reserved_bytes);
    if (after) after(training, figures);
    allocator::resetPeakStats(device.index());
  };
  at::manual_seed(1);
  run("build", [&] { training = model.make(device); });
  run("forward", [&] { training.loss = training.forward(); });
  run("backward", [&] { training.loss.backward(); });
  run("step", [&] { training.adam->step(); });
  run("again", [&] {
    training.adam->zero_grad();
    training.loss = training.forward();
    training.loss.backward();
    training.adam->step();
  });
  return phases;
}

}  // namespace memledger::testing
