// Programs whose memory has a cause with a name, for causes_test.sh:
//
//   causes_program MODE
//
// MODE fixed-NAME is the same program without the cause.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

at::TensorOptions on_cuda() { return at::TensorOptions(at::kCUDA); }

torch::nn::Linear linear(int64_t in, int64_t out) {
  torch::nn::Linear net(in, out);
  net->to(at::kCUDA);
  return net;
}

// Keeps each layer's input and result for a backward pass: 64 MiB each.
void infer(bool with_graph) {
  std::vector<torch::nn::Linear> layers;
  for (int i = 0; i < 4; ++i) layers.push_back(linear(1024, 1024));
  const at::AutoGradMode mode(with_graph);
  at::Tensor x = at::ones({16384, 1024}, on_cuda());
  for (torch::nn::Linear& layer : layers) x = at::gelu(layer->forward(x));
  std::printf("%ld\n", static_cast<long>(x.size(0)));
}

// A state that carries its graph from block to block: 4 MiB each.
void serve(bool with_graph) {
  torch::nn::Linear net = linear(256, 256);
  const at::AutoGradMode mode(with_graph);
  at::Tensor state = at::zeros({4096, 256}, on_cuda());
  for (int block = 0; block < 40; ++block) state = at::tanh(net->forward(state));
}

// Results that a container keeps, without a graph: 4 MiB each.
void keep(bool all) {
  const at::NoGradGuard no_grad;
  static auto* const kept = new std::vector<at::Tensor>;
  for (int call = 0; call < 40; ++call) {
    if (!all) kept->clear();
    kept->push_back(at::ones({1024, 1024}, on_cuda()).mul(2));
  }
}

// Each thread that is alive has a handle of its own.
void multiply_in_threads(int count) {
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  const at::Tensor weight = at::ones({256, 256}, on_cuda());
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      const at::NoGradGuard no_grad;
      at::mm(weight, weight);
      ++done;
      while (done.load() < count) std::this_thread::yield();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::quick_exit(0);  // handles go when the process goes down in order
}

// Large results that grow, next to small ones that stay.
void fragment(int64_t growth) {
  const at::NoGradGuard no_grad;
  std::deque<at::Tensor> waiting;
  for (int64_t batch = 0; batch < 8; ++batch) {
    const int64_t rows = 256 + growth * batch;
    const at::Tensor scores = at::ones({rows, 1024, 1024}, on_cuda());
    waiting.push_back(scores.slice(1, 0, 32).clone());
    if (waiting.size() > 2) waiting.pop_front();
  }
}

// Forward without a graph, and again within backward.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static torch::nn::Linear* layer;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return at::gelu((*layer)->forward(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    {
      const at::AutoGradMode with_grad(true);
      at::gelu((*layer)->forward(x)).backward(gradients[0]);
    }
    return {x.grad()};
  }
};
torch::nn::Linear* Checkpoint::layer = nullptr;

void train(bool with_checkpoint) {
  torch::nn::Linear net = linear(512, 16384);
  Checkpoint::layer = &net;
  for (int i = 0; i < 2; ++i) {
    const at::Tensor x = at::ones({1024, 512}, on_cuda()).requires_grad_();
    (with_checkpoint ? Checkpoint::apply(x) : at::gelu(net->forward(x))).sum().backward();
  }
}

// Irregular rounds of several sizes, each of which leaves something.
void keep_irregularly(bool all) {
  const at::NoGradGuard no_grad;
  static auto* const kept = new std::vector<at::Tensor>;
  for (int call = 0; call < 40; ++call) {
    at::Tensor x = at::ones({1024, 1024 + 256 * (call % 3)}, on_cuda());
    for (int i = 0; i < call * call % 7; ++i) x.add_(1);
    if (!all) kept->clear();
    kept->push_back(x.mul(2));
  }
}

// A frozen layer and two factors of its shape.
struct Adapted : torch::nn::Module {
  explicit Adapted(bool is_frozen) {
    base = register_module("base", linear(1024, 4096));
    const torch::nn::LinearOptions down = torch::nn::LinearOptions(1024, 8).bias(false);
    const torch::nn::LinearOptions up = torch::nn::LinearOptions(8, 4096).bias(false);
    a = register_module("a", torch::nn::Linear(down));
    b = register_module("b", torch::nn::Linear(up));
    // Not base again, which is there: LibTorch would read it as if it trained.
    a->to(at::kCUDA);
    b->to(at::kCUDA);
    for (at::Tensor& parameter : base->parameters()) parameter.set_requires_grad(!is_frozen);
  }
  at::Tensor forward(const at::Tensor& x) { return base(x) + b(a(x)); }
  torch::nn::Linear base{nullptr}, a{nullptr}, b{nullptr};
};
struct Outer : torch::nn::Module {
  explicit Outer(bool is_frozen) {
    adapted = register_module("q", std::make_shared<Adapted>(is_frozen));
  }
  std::shared_ptr<Adapted> adapted;
};

void adapt(bool is_frozen) {
  static auto* const kept = new Outer(is_frozen);  // until the report
  Outer& net = *kept;
  torch::optim::SGD sgd(net.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    net.adapted->forward(at::ones({16, 1024}, on_cuda())).sum().backward();
    sgd.step();
    sgd.zero_grad();
  }
}

// 64 MiB that a library makes for the line that calls it.
void call_library() {
  void* const library = dlopen(std::getenv("CAUSES_LIBRARY"), RTLD_NOW);
  const auto add_to = reinterpret_cast<void (*)(at::Tensor&, int64_t)>(dlsym(library, "add_to"));
  at::Tensor sum;
  add_to(sum, 1 << 24);  // the user's line
}

// Puts its result where it closes a cycle, or where it does not.
struct Gate : torch::autograd::Function<Gate> {
  static bool closes_cycle;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    at::Tensor result = at::sigmoid(x);
    if (closes_cycle) {
      context->saved_data["result"] = result;
      context->save_for_backward({at::neg(x.narrow(0, 0, 512))});
    } else {
      context->save_for_backward({result});
    }
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return gradients;
  }
};
bool Gate::closes_cycle = false;

// Results of 4 MiB that nobody has a use for.
void gate(bool closes_cycle) {
  Gate::closes_cycle = closes_cycle;
  const at::Tensor x = at::ones({1024, 1024}, on_cuda()).requires_grad_();
  for (int call = 0; call < 20; ++call) Gate::apply(x);
}

// Outputs that are kept with their graphs, each of which has saved its input.
void keep_outputs() {
  static auto* const net = new torch::nn::Linear(linear(1024, 8));
  static auto* const outputs = new std::vector<at::Tensor>;
  for (int call = 0; call < 2000; ++call) {
    const at::Tensor x = at::ones({64, 1024}, on_cuda());
    outputs->push_back((*net)->forward(x));
  }
}

// Losses that are kept with their graphs, which have saved 4 MiB each.
void keep_losses(bool with_graph) {
  static auto* const losses = new std::vector<at::Tensor>;
  const at::Tensor x = at::ones({1024, 1024}, on_cuda()).requires_grad_();
  for (int call = 0; call < 20; ++call) {
    const at::Tensor loss = at::exp(x).sum();
    losses->push_back(with_graph ? loss : loss.detach());
  }
}

void pin(std::initializer_list<int64_t> sizes) {
  static auto* const kept = new std::vector<at::Tensor>;
  for (const int64_t mebibytes : sizes)
    kept->push_back(at::zeros({mebibytes << 20}, at::kByte).pin_memory());
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> modes = {
      {"infer", [] { infer(true); }},
      {"fixed-infer", [] { infer(false); }},
      {"serve", [] { serve(true); }},
      {"fixed-serve", [] { serve(false); }},
      {"keep", [] { keep(true); }},
      {"fixed-keep", [] { keep(false); }},
      {"irregular", [] { keep_irregularly(true); }},
      {"fixed-irregular", [] { keep_irregularly(false); }},
      {"adapt", [] { adapt(true); }},
      {"fixed-adapt", [] { adapt(false); }},
      {"library", &call_library},
      {"threads", [] { multiply_in_threads(3); }},
      {"fixed-threads", [] { multiply_in_threads(1); }},
      {"fragment", [] { fragment(64); }},
      {"fixed-fragment", [] { fragment(0); }},
      {"checkpoint", [] { train(true); }},
      {"fixed-checkpoint", [] { train(false); }},
      {"cycle", [] { gate(true); }},
      {"fixed-cycle", [] { gate(false); }},
      {"outputs", &keep_outputs},
      {"losses", [] { keep_losses(true); }},
      {"fixed-losses", [] { keep_losses(false); }},
      {"pin",
       [] {
         pin({33, 33});
       }},
      {"fixed-pin",
       [] {
         pin({32, 32});
       }},
  };
  const auto mode = modes.find(argc > 1 ? argv[1] : "");
  if (mode == modes.end()) return 2;
  mode->second();
  return 0;
}
