// A server loads a newer script module into the same variable. Must the old one be released first?
#include <torch/script.h>
#include <torch/torch.h>
#include <cstdio>
#include <string>

int main() {
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  const std::string file = "cases_reload.pt";
  {
    torch::jit::Module made("Scorer");
    made.register_parameter("table", torch::ones({4096, 4096}), false);  // 64 MiB
    made.register_parameter("head", torch::ones({4096, 256}), false);    // 4 MiB
    made.define("def forward(self, x):\n    return torch.relu(x @ self.table) @ self.head\n");
    made.save(file);
  }
  torch::NoGradGuard no_grad;
  torch::jit::Module scorer = torch::jit::load(file, device);
  for (int version = 0; version < 5; ++version) {
    scorer = torch::jit::load(file, device);
    const auto scores = scorer.forward({torch::ones({8, 4096}).to(device)}).toTensor();
    std::printf("version %d: %d scores\n", version, static_cast<int>(scores.numel()));
  }
}
// Source: https://github.com/pytorch/pytorch/issues/61448
