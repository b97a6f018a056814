// The example of Pytorch-Memory-Utils' README in C++, on cuda:0 if LibTorch sees one, else the CPU.
//
//   ./bazelw build //:memledger_cli //examples:memory_utils_readme
//   bazel-bin/runner/memledger run -q --virtual-gpu=h200 -- bazel-bin/examples/memory_utils_readme
//
// Total Tensor Used Memory and Total Allocated Memory are the original's, after each step:
//   0.0 Mb, 76.4 Mb (VGG-19's features), 466.4 Mb (+ 90 + 120 + 180), 1066.4 Mb (+ 360 + 240),
//   586.4 Mb (- 120 - 360)
// and so are the rows: twelve shapes of parameters, three tensors, two tensors, and two with a
// minus. What differs:
// - Rows are sorted by bytes. Role, dtype and a name or operator replace Python's class and dtype.
// - The weights are random, not trained, and the dummy tensors are made on the device at once: the
//   same memory there, and none on the host before.
// - The original's README calls Total Allocated Memory a peak that clear_cache() lowers. It is what
//   is allocated at that moment: the tensors' blocks, which come to the same with one decimal
//   place. The allocator's cache is in neither total.
// - On the CPU `.cpu()` returns the same tensor: nothing goes away, and the last totals stay
// 1066.4.

#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "examples/models/models.h"
#include "memledger.h"

int main() {
  const c10::Device device = memledger::default_device();
  std::cout << "on " << device
            << (device.is_cuda() ? "\n\n" : ": LibTorch sees no CUDA device\n\n");

  memledger::MemTracker tracker;
  tracker.track();

  memledger::models::Vgg19Options features_only;
  features_only.with_classifier = false;
  memledger::models::Vgg19 cnn(features_only);
  cnn->to(device);
  cnn->eval();
  tracker.add_module("", cnn);
  tracker.track();

  torch::Tensor dummy_tensor_1 = torch::randn({30, 3, 512, 512}, device);  // 90 MiB
  torch::Tensor dummy_tensor_2 = torch::randn({40, 3, 512, 512}, device);  // 120 MiB
  torch::Tensor dummy_tensor_3 = torch::randn({60, 3, 512, 512}, device);  // 180 MiB
  tracker.track();

  torch::Tensor dummy_tensor_4 = torch::randn({120, 3, 512, 512}, device);  // 360 MiB
  torch::Tensor dummy_tensor_5 = torch::randn({80, 3, 512, 512}, device);   // 240 MiB
  tracker.track();

  dummy_tensor_4 = dummy_tensor_4.cpu();
  dummy_tensor_2 = dummy_tensor_2.cpu();
  tracker.clear_cache();
  tracker.track();

  std::cout << std::ifstream(tracker.log_path()).rdbuf() << tracker.log_path() << "\n";
}
