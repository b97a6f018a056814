// Pytorch-Memory-Utils' modelsize() in C++: what VGG-19's features take at 1x3x512x512.
//
//   ./bazelw run //examples:model_size
//
// On cuda:0 if LibTorch sees one, else on the CPU; the figures are the same.
//
// The first three lines follow the original's rule. The fourth is what autograd really keeps: with
// the int64 indices of the pools, and without the result itself.

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
