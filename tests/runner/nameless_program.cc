// Trains as programs do that have never heard of memledger: a net of modules within modules, with a
// buffer, an optimizer, and all of it gone when main ends. Prints what memledger has to find out:
// `NAME BYTES` for each parameter and buffer.
//
//   nameless_program lenet|gan|stack|many [cuda]
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <string_view>

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t in, int64_t out) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 5)));
    norm = register_module("norm", torch::nn::BatchNorm2d(out));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::relu(torch::max_pool2d(norm->forward(conv->forward(x)), 2));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(Block);

struct LeNetImpl : torch::nn::Module {
  LeNetImpl() {
    first = register_module("first", Block(1, 16));
    second = register_module("second", Block(16, 32));
    classifier = register_module(
        "classifier", torch::nn::Sequential(torch::nn::Linear(512, 256), torch::nn::ReLU(),
                                            torch::nn::Linear(256, 10)));
    scale = register_buffer("scale", torch::ones({28, 28}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return classifier->forward(second->forward(first->forward(x * scale)).flatten(1));
  }
  Block first{nullptr}, second{nullptr};
  torch::nn::Sequential classifier{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(LeNet);

struct CriticImpl : torch::nn::Module {
  CriticImpl() { fc = register_module("fc", torch::nn::Linear(784, 512)); }
  at::Tensor forward(const at::Tensor& x) { return fc->forward(x.flatten(1)).mean(); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Critic);

void tell(const std::string& prefix, const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters())
    std::cout << prefix << parameter.key() << ' ' << parameter.value().nbytes() << '\n';
  for (const auto& buffer : module.named_buffers())
    std::cout << prefix << buffer.key() << ' ' << buffer.value().nbytes() << '\n';
}

template <typename Net, typename Optimizer>
void train(Net& net, Optimizer& optimizer, c10::Device device, int64_t batch) {
  const auto images = torch::randn({batch, 1, 28, 28}, device);
  optimizer.zero_grad();
  net.forward(images).square().mean().backward();
  optimizer.step();
}

void lenet(c10::Device device) {
  LeNet net;
  net->to(device);
  torch::optim::Adam adam(net->parameters(), 1e-3);
  for (int step = 0; step < 4; ++step) train(*net, adam, device, 256);
  tell("", *net);
}

void gan(c10::Device device) {
  LeNet generator;
  Critic critic;
  generator->to(device);
  critic->to(device);
  torch::optim::Adam adam(generator->parameters(), 1e-3);
  torch::optim::SGD sgd(critic->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    train(*generator, adam, device, 64);
    train(*critic, sgd, device, 64);
  }
  tell("LeNet.", *generator);
  tell("Critic.", *critic);
}

// A module that no shared_ptr holds, and a part of it that is asked before the whole.
void stack(c10::Device device) {
  LeNetImpl net;
  net.classifier->to(device);
  net.to(device);
  torch::optim::RMSprop rmsprop(net.parameters());
  for (int step = 0; step < 3; ++step) train(net, rmsprop, device, 64);
  tell("", net);
}

// Models that come and go.
void many(c10::Device device) {
  for (int model = 0; model < 1000; ++model) {
    Critic net;
    net->to(device);
    torch::optim::Adam adam(net->parameters(), 1e-3);
    if (model % 100 == 0) train(*net, adam, device, 2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "lenet";
  const c10::Device device(argc > 2 ? c10::kCUDA : c10::kCPU);
  if (what == "lenet") lenet(device);
  if (what == "gan") gan(device);
  if (what == "stack") stack(device);
  if (what == "many") many(device);
}
