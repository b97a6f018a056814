// On which GPUs a step of VGG-19's features fits, asked on a machine that has none of them:
//
//   ./bazelw run //examples:will_it_fit
//
// For each GPU the program starts itself again, up to the call that asks. In a test,
// CHECK(memledger::fits_on("l4", step)) fails when a change makes the network too large.

#include <torch/types.h>

#include <iostream>
#include <string>

#include "examples/models/models.h"
#include "memledger.h"

int main() {
  memledger::models::Vgg19Options features_only;
  features_only.with_classifier = false;
  memledger::models::Vgg19 vgg(features_only);
  vgg->to(torch::kCUDA);
  const torch::Tensor images = torch::zeros({160, 3, 224, 224}, torch::kCUDA);
  const auto step = [&] { vgg->features->forward(images).sum().backward(); };

  for (const std::string gpu : {"rtx3060", "a100"}) {
    const auto prediction = memledger::predict(step, {gpu});
    if (!prediction.ok()) {
      std::cerr << prediction.status() << '\n';
      return 1;
    }
    std::cout << gpu << ": " << prediction->sentence() << '\n';
  }
}
