// Requests are served by many threads; the network is tiny, yet the device fills by a constant for
// each thread that ran at once.
#include <torch/torch.h>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 8;
  torch::nn::Linear layer(10, 20);
  layer->to(torch::kCUDA);
  std::atomic<int> waiting{0};
  const auto serve = [&] {
    torch::NoGradGuard no_grad;
    const auto in = torch::ones({1, 10}, torch::kCUDA);
    for (int i = 0; i < 50; ++i) layer->forward(in);
    ++waiting;
    while (waiting < threads)
      std::this_thread::yield();  // all of them are alive at once, as in a pool
  };
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back(serve);
  for (auto& thread : pool) thread.join();
  std::printf("served by %d threads\n", threads);
  std::fflush(stdout);
  std::quick_exit(0);
}
// Source: https://github.com/dotnet/TorchSharp/issues/1445
