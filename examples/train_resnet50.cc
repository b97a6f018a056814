// Trains a ResNet-50 on cuda:0, as any LibTorch program would: it knows nothing of memledger.
//
//   ./bazelw build //:memledger_cli //examples:train_resnet50
//   bazel-bin/runner/memledger fit --gpu=l4 --arg='--batch={}' -- bazel-bin/examples/train_resnet50
//
// The images are zeros: no value of theirs changes how much memory a step takes.

#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <exception>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "examples/models/models.h"

ABSL_FLAG(int, batch, 32, "Images in the batch.");
ABSL_FLAG(int, size, 224, "Height and width of an image, in pixels.");
ABSL_FLAG(int, steps, 10, "Steps of the optimizer.");

namespace {

void train(int batch, int size, int steps) {
  const at::Device device("cuda:0");
  memledger::models::ResNet net = memledger::models::resnet50();
  net->to(device);
  torch::optim::Adam adam(net->parameters());
  const at::Tensor images = at::zeros({batch, 3, size, size}, device);
  const at::Tensor classes = at::zeros({batch}, at::device(device).dtype(at::kLong));
  for (int step = 0; step < steps; ++step) {
    adam.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(net->forward(images), classes);
    loss.backward();
    adam.step();
    std::cout << "step " << step + 1 << ": loss " << loss.item<float>() << '\n' << std::flush;
  }
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Trains a ResNet-50 on images of zeros, on cuda:0.");
  absl::ParseCommandLine(argc, argv);
  const int batch = absl::GetFlag(FLAGS_batch), size = absl::GetFlag(FLAGS_size);
  if (batch < 1 || size < 64) {
    std::cerr << "train_resnet50: --batch must be at least 1 and --size at least 64; got --batch="
              << batch << " --size=" << size << "\n";
    return 1;
  }
  try {
    train(batch, size, absl::GetFlag(FLAGS_steps));
  } catch (const std::exception& error) {
    std::cerr << "train_resnet50: " << error.what() << "\n";
    return 1;
  }
}
