// A network is deleted and the cache emptied; the device still shows hundreds of MiB in use.
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <torch/torch.h>
#include <cstdio>
#include <memory>

static double used_mib() {  // what cudaMemGetInfo says
  using Get = int (*)(size_t*, size_t*);
  static const auto get = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "cudaMemGetInfo"));
  size_t free = 0, total = 0;
  if (get) get(&free, &total);
  return static_cast<double>(total - free) / (1 << 20);
}

struct Dense : torch::nn::Module {
  torch::nn::Linear layer{nullptr};
  explicit Dense(int width) { layer = register_module("layer", torch::nn::Linear(width, width)); }
  torch::Tensor forward(const torch::Tensor& x) { return layer->forward(x); }
};

int main() {
  const int width = 10000;
  auto input = torch::ones({width, width}, torch::kCUDA);
  std::printf("input made      %8.0f MiB\n", used_mib());
  auto net = std::make_unique<Dense>(width);
  net->to(torch::kCUDA);
  std::printf("network made    %8.0f MiB\n", used_mib());
  torch::Tensor result;
  {
    torch::NoGradGuard no_grad;
    result = net->forward(input);
  }
  std::printf("after forward   %8.0f MiB\n", used_mib());
  net.reset();
  std::printf("network deleted %8.0f MiB\n", used_mib());
  c10::cuda::CUDACachingAllocator::emptyCache();
  std::printf("cache emptied   %8.0f MiB\n", used_mib());
  std::fflush(stdout);
  std::quick_exit(0);  // the process lives on in the report; look at what is held here
}
// Source: https://github.com/pytorch/pytorch/issues/128033
