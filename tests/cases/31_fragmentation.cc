// A basecaller: each batch makes large scores and a smaller result that waits for the writer.
// Reserved memory is far above what lives.
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/torch.h>
#include <cstdio>
#include <deque>

static torch::Tensor score(const torch::Tensor& chunk) {
  return torch::tanh(chunk.unsqueeze(1) * torch::ones({1, 256, 1}, chunk.device()));
}

int main() {
  torch::NoGradGuard no_grad;
  std::deque<torch::Tensor> waiting;  // for the writer, at most four
  const auto gib = [](const auto& stat) { return stat[0].current / 1073741824.0; };
  for (int batch = 0; batch < 12; ++batch) {
    const int64_t length = 6000 + 500 * (batch % 4);
    const auto chunk = torch::ones({640, length}, torch::kCUDA);
    auto scores = score(chunk);                        // 3.7 to 4.6 GiB
    auto moves = scores.slice(1, 0, 16).contiguous();  // 0.23 to 0.29 GiB, kept
    scores.reset();
    waiting.push_back(moves);
    if (waiting.size() > 4) waiting.pop_front();
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    std::printf("batch %2d: allocated %5.2f GiB, reserved %5.2f GiB\n", batch,
                gib(stats.allocated_bytes), gib(stats.reserved_bytes));
  }
}
// Source: https://github.com/nanoporetech/dorado/issues/1358
