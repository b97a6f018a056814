// What VGG-19's features take at 1x3x512x512, before it is run for real: Pytorch-Memory-Utils'
// modelsize(), in C++.
//
//   ./bazelw run //examples:model_size
//
// On cuda:0 if LibTorch sees one, else on the CPU; the figures are the same.
//
// The first three lines are the original's rule, the fourth is what autograd really keeps: also the
// indices of the pools, which are int64, and not the result itself.

#include <torch/types.h>

#include <iostream>

#include "examples/models/models.h"
#include "memledger.h"

int main() {
  memledger::models::Vgg19Options features_only;
  features_only.with_classifier = false;
  memledger::models::Vgg19 vgg(features_only);
  const c10::Device device = memledger::default_device();
  vgg->to(device);
  std::cout << "on " << device << "\n\n"
            << memledger::modelsize(vgg->features, torch::randn({1, 3, 512, 512}, device));
}
