// The example of pytorch_mem_profiler's README, in C++: NeuMF, profiled every 5 iterations, on
// cuda:0 if LibTorch sees one.
//
//   ./bazelw build //:memledger_cli //examples:mem_profiler_readme
//   bazel-bin/runner/memledger run -q --virtual-gpu=h200 -- bazel-bin/examples/mem_profiler_readme
//
// The weights are the original's: 35, 7, 71 and 14 MB in the four embeddings, 127 MB in all, and as
// much in gradients. What differs:
// - The original does not give its batch, on which feature maps and cache depend; here it is
// 131072.
// - Feature maps are also shown by layer.
// - Intermediate gradients are measured; in the original they are what a peak leaves unexplained.
// - On the CPU there is no cache: the registry's bytes stand in its place.

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <iostream>

#include "examples/models/models.h"
#include "memledger.h"

int main() {
  const c10::Device device = memledger::default_device();
  std::cout << "on " << device
            << (device.is_cuda() ? "\n\n" : ": LibTorch sees no CUDA device\n\n");
  constexpr int64_t kBatch = 131072;

  memledger::models::NeuMf model;
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));

  memledger::MemoryProfiler profiler(model, {/*print_period=*/5, /*csv=*/true});

  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int batch = 0; batch < 5; ++batch) {
      const torch::Tensor users =
          torch::randint(138493, {kBatch}, torch::dtype(torch::kLong).device(device));
      const torch::Tensor items =
          torch::randint(26744, {kBatch}, torch::dtype(torch::kLong).device(device));
      const torch::Tensor liked = torch::ones({kBatch, 1}, device);
      optimizer.zero_grad();
      torch::nn::functional::binary_cross_entropy_with_logits(model->forward(users, items), liked)
          .backward();
      optimizer.step();

      profiler.record_stats();
    }
    profiler.epoch_end();
  }
  std::cout << profiler.csv_path() << "\n";
}
