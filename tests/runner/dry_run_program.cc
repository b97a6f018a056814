// Trains on cuda:0, for dry_run_test.sh:
//
//   dry_run_program STEPS [fail|catch|wait|batch=N]
//
// Prints LibTorch's own peaks after each step. `fail` ends with 3 in the end, `catch` tries an
// allocation of 1 TiB and goes on, `wait` waits for input, `batch=N` has N rows in a batch instead
// of 256.
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  const int steps = argc > 1 ? static_cast<int>(std::strtol(argv[1], nullptr, 10)) : 1;
  const std::string mode = argc > 2 ? argv[2] : "";
  std::string line;
  if (mode == "wait" && !std::getline(std::cin, line)) return 4;
  torch::nn::Sequential net(torch::nn::Linear(1024, 4096), torch::nn::ReLU(),
                            torch::nn::Linear(4096, 1024));
  net->to(at::kCUDA);
  torch::optim::Adam adam(net->parameters());
  const int64_t batch = mode.rfind("batch=", 0) == 0 ? std::stoll(mode.substr(6)) : 256;
  const at::Tensor input = at::ones({batch, 1024}, at::kCUDA);
  for (int i = 0; i < steps; ++i) {
    adam.zero_grad();
    net->forward(input).square().sum().backward();
    adam.step();
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    std::printf("%d %lld %lld\n", i + 1, static_cast<long long>(stats.allocated_bytes[0].peak),
                static_cast<long long>(stats.reserved_bytes[0].peak));
    std::fflush(stdout);
  }
  if (mode == "catch") {
    try {
      at::empty({int64_t{1} << 40}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    } catch (const c10::Error&) {
    }
  }
  return mode == "fail" ? 3 : 0;
}
