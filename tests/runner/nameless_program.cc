// Trains as programs do that have never heard of memledger: a net of modules within modules, with a
// buffer, an optimizer, and all of it gone when main ends. Prints what memledger has to find out:
// `NAME BYTES` for each parameter and buffer.
//
// Layers run in user scopes of their names, so that the layers found can be held against them.
//
//   nameless_program lenet|mnist|gan|dcgan|stack|eval|unasked|frozen|script|storage|many|losses
//                    [cuda]
//   nameless_program compiled MODEL.so
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t in, int64_t out, std::string its_path) : path(std::move(its_path)) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 5)));
    norm = register_module("norm", torch::nn::BatchNorm2d(out));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::relu(torch::max_pool2d(forward_norm(forward_conv(x)), 2));
  }
  at::Tensor forward_conv(const at::Tensor& x) {
    RECORD_USER_SCOPE(path + ".conv");
    return conv->forward(x);
  }
  at::Tensor forward_norm(const at::Tensor& x) {
    RECORD_USER_SCOPE(path + ".norm");
    return norm->forward(x);
  }
  std::string path;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(Block);

struct LeNetImpl : torch::nn::Module {
  LeNetImpl() {
    first = register_module("first", Block(1, 16, "first"));
    second = register_module("second", Block(16, 32, "second"));
    const torch::nn::Linear hidden(512, 256), last(256, 10);
    classifier =
        register_module("classifier", torch::nn::Sequential(hidden, torch::nn::ReLU(), last));
    scale = register_buffer("scale", torch::ones({28, 28}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor features = second->forward(first->forward(x * scale)).flatten(1);
    RECORD_USER_SCOPE("classifier");
    return classifier->forward(features);
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

// The generator of the DCGAN in PyTorch's examples.
struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl() {
    using Options = torch::nn::ConvTranspose2dOptions;
    conv1 = register_module("conv1", torch::nn::ConvTranspose2d(Options(100, 256, 4).bias(false)));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(256));
    conv2 = register_module(
        "conv2", torch::nn::ConvTranspose2d(Options(256, 128, 3).stride(2).padding(1).bias(false)));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(128));
    conv3 = register_module(
        "conv3", torch::nn::ConvTranspose2d(Options(128, 64, 4).stride(2).padding(1).bias(false)));
    norm3 = register_module("norm3", torch::nn::BatchNorm2d(64));
    conv4 = register_module(
        "conv4", torch::nn::ConvTranspose2d(Options(64, 1, 4).stride(2).padding(1).bias(false)));
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(norm1->forward(conv1->forward(x)));
    x = torch::relu(norm2->forward(conv2->forward(x)));
    x = torch::relu(norm3->forward(conv3->forward(x)));
    return torch::tanh(conv4->forward(x));
  }
  torch::nn::ConvTranspose2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr}, conv4{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr}, norm3{nullptr};
};
TORCH_MODULE(Generator);

torch::nn::Sequential discriminator() {
  using torch::nn::BatchNorm2d;
  using torch::nn::Conv2d;
  using torch::nn::LeakyReLU;
  using Options = torch::nn::Conv2dOptions;
  const auto leaky = torch::nn::LeakyReLUOptions().negative_slope(0.2);
  return torch::nn::Sequential(
      Conv2d(Options(1, 64, 4).stride(2).padding(1).bias(false)), LeakyReLU(leaky),
      Conv2d(Options(64, 128, 4).stride(2).padding(1).bias(false)), BatchNorm2d(128),
      LeakyReLU(leaky), Conv2d(Options(128, 256, 4).stride(2).padding(1).bias(false)),
      BatchNorm2d(256), LeakyReLU(leaky),
      Conv2d(Options(256, 1, 3).stride(1).padding(0).bias(false)), torch::nn::Sigmoid());
}

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

// Writes a file of MNIST's: big-endian numbers, then as many zeros.
void save_zeros(const std::string& path, std::initializer_list<uint32_t> numbers, size_t zeros) {
  std::ofstream out(path, std::ios::binary);
  for (const uint32_t number : numbers) {
    for (const int shift : {24, 16, 8, 0}) out.put(static_cast<char>(number >> shift & 0xff));
  }
  out << std::string(zeros, '\0');
}

// Reads its images with LibTorch's own data set.
void mnist(c10::Device device) {
  constexpr uint32_t kImages = 10000;
  save_zeros("t10k-images-idx3-ubyte", {2051, kImages, 28, 28}, size_t{kImages} * 28 * 28);
  save_zeros("t10k-labels-idx1-ubyte", {2049, kImages}, kImages);
  using torch::data::datasets::MNIST;
  const auto images = torch::data::make_data_loader(
      MNIST(".", MNIST::Mode::kTest).map(torch::data::transforms::Stack<>()), 64);
  LeNet net;
  net->to(device);
  torch::optim::Adam adam(net->parameters(), 1e-3);
  int steps = 0;
  for (auto& batch : *images) {
    adam.zero_grad();
    net->forward(batch.data.to(device)).square().mean().backward();
    adam.step();
    if (++steps == 3) break;
  }
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

void dcgan(c10::Device device) {
  constexpr int64_t kBatch = 16;
  Generator generator;
  torch::nn::Sequential critic = discriminator();
  generator->to(device);
  critic->to(device);
  torch::optim::Adam adam(generator->parameters(), torch::optim::AdamOptions(2e-4));
  torch::optim::Adam its_adam(critic->parameters(), torch::optim::AdamOptions(2e-4));
  for (int step = 0; step < 3; ++step) {
    critic->zero_grad();
    const auto images = torch::rand({kBatch, 1, 28, 28}, device);
    const auto real = torch::empty(kBatch, device).uniform_(0.8, 1.0);
    torch::binary_cross_entropy(critic->forward(images).reshape(real.sizes()), real).backward();
    const auto noise = torch::randn({kBatch, 100, 1, 1}, device);
    const auto made = generator->forward(noise);
    const auto fake = torch::zeros(kBatch, device);
    torch::binary_cross_entropy(critic->forward(made.detach()).reshape(fake.sizes()), fake)
        .backward();
    its_adam.step();
    generator->zero_grad();
    torch::binary_cross_entropy(critic->forward(made).reshape(real.sizes()), fake.fill_(1))
        .backward();
    adam.step();
  }
  tell("Generator.", *generator);
  tell("Sequential.", *critic);
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

at::Tensor infer(LeNet& net, c10::Device device) {
  const torch::NoGradGuard no_grad;
  const auto images = torch::randn({64, 1, 28, 28}, device);
  return net->forward(images);
}

// Asked for nothing but evaluation.
void eval(c10::Device device) {
  LeNet net;
  net->to(device);
  net->eval();
  infer(net, device);
  tell("", *net);
}

// Asked for nothing at all: only the types of the layers are known.
void unasked(c10::Device device) {
  LeNet net;
  infer(net, device);
  const auto tell_layer = [](const std::string& name, const auto& layer) {
    std::cout << name << ".weight " << layer->weight.nbytes() << '\n'
              << name << ".bias " << layer->bias.nbytes() << '\n';
  };
  const auto tell_norm = [&](const std::string& name, const torch::nn::BatchNorm2d& norm) {
    tell_layer(name, norm);
    std::cout << name << ".running_mean " << norm->running_mean.nbytes() << '\n'
              << name << ".running_var " << norm->running_var.nbytes() << '\n'
              << name << ".num_batches_tracked " << norm->num_batches_tracked.nbytes() << '\n';
  };
  tell_layer("Conv2d", net->first->conv);
  tell_norm("BatchNorm2d", net->first->norm);
  tell_layer("Conv2d#2", net->second->conv);
  tell_norm("BatchNorm2d#2", net->second->norm);
  tell_layer("Linear", net->classifier[0]->as<torch::nn::Linear>());
  tell_layer("Linear#2", net->classifier[2]->as<torch::nn::Linear>());
  std::cout << "LeNet.scale " << net->scale.nbytes() << '\n';
}

// Only the classifier is trained.
void frozen(c10::Device device) {
  LeNet net;
  net->to(device);
  for (at::Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
  for (at::Tensor& parameter : net->classifier->parameters()) parameter.set_requires_grad(true);
  torch::optim::SGD sgd(net->classifier->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 3; ++step) train(*net, sgd, device, 64);
  tell("", *net);
}

void save_script(const std::string& path) {
  torch::jit::Module fc("Dense"), net("Scripted");
  const auto trained = torch::requires_grad();
  fc.register_parameter("weight", torch::randn({256, 784}, trained), /*is_buffer=*/false);
  fc.register_parameter("bias", torch::zeros(256, trained), /*is_buffer=*/false);
  fc.define("def forward(self, x):\n  return torch.addmm(self.bias, x, self.weight.t())\n");
  net.register_module("fc", fc);
  net.register_parameter("gain", torch::ones(256, trained), /*is_buffer=*/false);
  net.register_buffer("scale", torch::ones({1, 784}));
  net.define(
      "def forward(self, x):\n  return torch.relu(self.fc.forward(x * self.scale)) * self.gain\n");
  net.save(path);
}

// A TorchScript module from a file, trained.
void script(c10::Device device) {
  save_script("scripted.pt");
  torch::jit::Module net = torch::jit::load("scripted.pt", device);
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    const auto images = torch::randn({64, 784}, device);
    sgd.zero_grad();
    net.forward({images}).toTensor().square().mean().backward();
    sgd.step();
  }
  for (const auto& parameter : net.named_parameters())
    std::cout << parameter.name << ' ' << parameter.value.nbytes() << '\n';
  for (const auto& buffer : net.named_buffers())
    std::cout << buffer.name << ' ' << buffer.value.nbytes() << '\n';
}

// A storage made as torch.UntypedStorage(64 << 20) does, and read by an operator later.
void storage(c10::Device /*device*/) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const auto made = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                          kBytes, c10::GetDefaultCPUAllocator(),
                                                          /*resizable=*/true);
  const at::Tensor view = torch::empty({0}, torch::kByte).set_(c10::Storage(made));
  view.zero_();
}

// Models and optimizers that come and go.
void many(c10::Device device) {
  for (int model = 0; model < 1000; ++model) {
    Critic net;
    net->to(device);
    if (model % 2 == 0) {
      torch::optim::Adam adam(net->parameters(), 1e-3);
      train(*net, adam, device, 2);
    } else {
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      train(*net, sgd, device, 2);
    }
  }
}

// Keeps each loss, whose graph keeps what the step made.
void losses(c10::Device device) {
  std::vector<at::Tensor> kept;
  torch::nn::Linear net(64, 256);
  net->to(device);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    sgd.zero_grad();
    const at::Tensor loss = net->forward(torch::randn({128, 64}, device)).square().mean();
    loss.backward({}, /*retain_graph=*/true);
    sgd.step();
    kept.push_back(loss);
  }
}

// Infers with what AOTInductor has compiled.
void compiled(const std::string& model) {
  auto& runner = *new torch::inductor::AOTIModelContainerRunnerCpu(model);  // lives at the end
  at::Tensor result;
  for (int i = 0; i < 3; ++i) result = runner.run({torch::randn({1 << 16})}).front();
  std::cout << "encoder.weight 4096\ninput0 " << (4 << 16) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "lenet";
  const c10::Device device(argc > 2 && what != "compiled" ? c10::kCUDA : c10::kCPU);
  if (what == "lenet") lenet(device);
  if (what == "mnist") mnist(device);
  if (what == "gan") gan(device);
  if (what == "dcgan") dcgan(device);
  if (what == "stack") stack(device);
  if (what == "eval") eval(device);
  if (what == "unasked") unasked(device);
  if (what == "frozen") frozen(device);
  if (what == "script") script(device);
  if (what == "storage") storage(device);
  if (what == "many") many(device);
  if (what == "losses") losses(device);
  if (what == "compiled") compiled(argv[2]);
}
