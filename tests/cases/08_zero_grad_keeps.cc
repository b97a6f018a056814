// zero_grad(false) writes zeros; the gradients of the step before are still there at the peak of
// the next forward pass.
#include <torch/torch.h>
#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  const bool to_none = argc > 1 && std::string(argv[1]) == "fixed";
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    net->push_back(torch::nn::Linear(2048, 2048));
    net->push_back(torch::nn::GELU());
  }
  net->to(device);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
  for (int step = 0; step < 4; ++step) {
    net->zero_grad(to_none);
    const auto x = torch::randn({4096, 2048}).to(device);
    auto loss = net->forward(x).square().mean();
    loss.backward();
    sgd.step();
  }
  std::puts("trained");
}
// Source: https://github.com/pytorch/pytorch/issues/68167
