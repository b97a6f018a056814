// A 4x super-resolution network, used for one picture, the way the first version of a C++ port
// often looks.
#include <torch/torch.h>
#include <iostream>
#include <string>

struct BlockImpl : torch::nn::Module {
  torch::nn::Conv2d a{nullptr}, b{nullptr}, c{nullptr};
  explicit BlockImpl(int w) {
    a = register_module("a", torch::nn::Conv2d(torch::nn::Conv2dOptions(w, 32, 3).padding(1)));
    b = register_module("b", torch::nn::Conv2d(torch::nn::Conv2dOptions(w + 32, 32, 3).padding(1)));
    c = register_module("c", torch::nn::Conv2d(torch::nn::Conv2dOptions(w + 64, w, 3).padding(1)));
  }
  torch::Tensor forward(torch::Tensor x) {
    auto y = torch::leaky_relu(a(x), 0.2);
    auto z = torch::leaky_relu(b(torch::cat({x, y}, 1)), 0.2);
    return x + 0.2 * c(torch::cat({x, y, z}, 1));
  }
};
TORCH_MODULE(Block);

struct UpscalerImpl : torch::nn::Module {
  torch::nn::Conv2d head{nullptr}, tail{nullptr};
  torch::nn::Sequential body;
  UpscalerImpl() {
    head =
        register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)));
    for (int i = 0; i < 23; ++i) body->push_back(Block(64));
    register_module("body", body);
    tail = register_module("tail",
                           torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 3 * 16, 3).padding(1)));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::pixel_shuffle(tail(body->forward(head(x))), 4);
  }
};
TORCH_MODULE(Upscaler);

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "fixed") torch::GradMode::set_enabled(false);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  Upscaler net;
  net->to(device);
  net->eval();  // "eval" is thought to be enough
  const auto image = torch::rand({2, 3, 200, 200}).to(device);
  const auto big = net->forward(image);
  std::cout << big.sizes() << std::endl;
}
// Source: https://github.com/pytorch/pytorch/issues/40133
