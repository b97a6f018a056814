// Programs whose measurement measure_test.sh knows: measure_program MODE [ARGUMENT]
#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

at::TensorOptions on_cuda(at::ScalarType type) { return at::TensorOptions(at::kCUDA).dtype(type); }

// Nobody knows what was in the memory before; random numbers would be known.
at::Tensor unknown(at::IntArrayRef sizes) { return at::empty(sizes, on_cuda(at::kFloat)); }
at::Tensor unknown_mask(at::IntArrayRef sizes) { return at::gt(unknown(sizes), 0.5); }
at::Tensor unknown_integers(at::IntArrayRef sizes) { return at::empty(sizes, on_cuda(at::kLong)); }

struct Net {
  torch::nn::Sequential layers{torch::nn::Linear(256, 1024), torch::nn::ReLU(),
                               torch::nn::Linear(1024, 256)};
  Net() { layers->to(at::kCUDA); }
  at::Tensor loss(int64_t batch = 64) {
    return layers->forward(at::ones({batch, 256}, at::kCUDA)).square().mean();
  }
};

// LibTorch's own peak, which the measurement must have, after each step.
void print_peak(int step) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  std::printf("%d %lld\n", step, static_cast<long long>(stats.allocated_bytes[0].peak));
  std::fflush(stdout);
}

// More than dry-run looks at.
constexpr int kSteps = 800;

template <typename Optimizer>
void train(Optimizer&& optimizer, Net& net, const std::function<void(int)>& between = nullptr) {
  for (int step = 1; step <= kSteps; ++step) {
    optimizer.zero_grad();
    net.loss().backward();
    optimizer.step();
    print_peak(step);
    if (between) between(step);
  }
}

void sgd() {
  Net net;
  train(torch::optim::SGD(net.layers->parameters(), 0.1), net);
}

void adam() {
  Net net;
  train(torch::optim::Adam(net.layers->parameters()), net);
}

void accumulate() {
  Net net;
  torch::optim::Adam optimizer(net.layers->parameters());
  for (int step = 1; step <= kSteps; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < 4; ++part) net.loss().backward();
    optimizer.step();
    print_peak(step);
  }
}

// A generator that is trained every fifth step of its critic, with a state as large as its own.
void gan() {
  Net generator, critic;
  torch::optim::SGD of_critic(critic.layers->parameters(), 0.1);
  torch::optim::Adam of_generator(generator.layers->parameters());
  for (int step = 1; step <= kSteps; ++step) {
    of_critic.zero_grad();
    const at::Tensor made = generator.layers->forward(at::ones({64, 256}, at::kCUDA));
    critic.layers->forward(made.detach()).mean().backward();
    of_critic.step();
    if (step % 5 == 0) {
      of_generator.zero_grad();
      critic.layers->forward(generator.layers->forward(at::ones({256, 256}, at::kCUDA)))
          .mean()
          .backward();
      of_generator.step();
    }
    print_peak(step);
  }
}

// Copies of the parameters that follow them, written under no_grad and never trained.
void ema() {
  Net net;
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : net.layers->parameters())
    copies.push_back(parameter.detach().clone());
  train(torch::optim::Adam(net.layers->parameters()), net, [&](int) {
    const at::NoGradGuard no_grad;
    size_t i = 0;
    for (const at::Tensor& parameter : net.layers->parameters())
      copies[i++].mul_(0.9).add_(parameter, 0.1);
  });
}

void lbfgs() {
  Net net;
  torch::optim::LBFGS optimizer(net.layers->parameters(),
                                torch::optim::LBFGSOptions(0.1).max_iter(4).history_size(5));
  for (int step = 1; step <= 20; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor loss = net.loss();
      loss.backward();
      return loss;
    });
    print_peak(step);
  }
}

// A forward pass under no_grad that takes most, between the first steps.
void evaluate() {
  Net net;
  train(torch::optim::SGD(net.layers->parameters(), 0.1), net, [&](int) {
    const at::NoGradGuard no_grad;
    net.loss(4096);
  });
}

// Only after the third step: not seen by who ends a program earlier.
void evaluate_later() {
  Net net;
  train(torch::optim::SGD(net.layers->parameters(), 0.1), net, [&](int step) {
    const at::NoGradGuard no_grad;
    if (step == 10) net.loss(4096);
  });
}

// Something is kept at each step, below the peak.
void grow() {
  Net net;
  std::vector<at::Tensor> kept;
  net.loss(8192).backward();
  train(torch::optim::SGD(net.layers->parameters(), 0.1), net, [&](int step) {
    if (step <= 10) kept.push_back(at::empty({1 << 18}, at::kCUDA));
  });
}

// An attack on the input writes to a leaf under no_grad often before the net trains once.
void attack(int writes) {
  Net net;
  torch::optim::Adam optimizer(net.layers->parameters());
  for (int step = 1; step <= 400; ++step) {
    at::Tensor noise = at::zeros({64, 256}, at::kCUDA).requires_grad_();
    for (int i = 0; i < writes; ++i) {
      net.layers->forward(noise).mean().backward();
      const at::NoGradGuard no_grad;
      noise.add_(noise.grad().sign(), 0.1);
    }
    optimizer.zero_grad();
    net.layers->forward(noise.detach()).mean().backward();
    optimizer.step();
    print_peak(step);
  }
}

void inference() {
  Net net;
  const at::NoGradGuard no_grad;
  for (int i = 1; i <= 5; ++i) {
    net.loss(64 * i);
    print_peak(i);
  }
}

void reset() {
  at::empty({int64_t{64} << 20}, on_cuda(at::kByte));
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  c10::cuda::CUDACachingAllocator::resetAccumulatedStats(0);
  at::empty({int64_t{1} << 20}, on_cuda(at::kByte));
}

void reads() {
  const at::Tensor x = unknown({1000, 20}), mask = unknown_mask({1000, 20});
  at::nonzero(mask);
  at::masked_select(x, mask);
  std::get<0>(at::_unique2(unknown_integers({500})));
  at::one_hot(unknown_integers({100}));
  at::repeat_interleave(unknown_integers({100}));
  at::bincount(unknown_integers({100}));
}

void item_size() { at::empty({unknown_integers({1}).item<int64_t>() * 1000}, at::kCUDA); }

// Numbers that NCCL brings, of a communicator of eight ranks of which this is one.
struct UniqueId {
  char bytes[128];
};
template <typename Function>
Function nccl(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}
constexpr int kInt64 = 4, kSum = 0;
void* communicator() {
  void* result = nullptr;
  nccl<int (*)(void**, int, UniqueId, int)>("ncclCommInitRank")(&result, 8, UniqueId{}, 0);
  return result;
}
// Compares numbers between ranks, as DistributedDataParallel does the shapes of parameters.
void received() {
  void* const ranks = communicator();
  const at::Tensor sent = at::tensor({3, 1000}, at::kLong).to(at::kCUDA);
  nccl<int (*)(const void*, void*, size_t, int, int, void*, void*)>("ncclBroadcast")(
      sent.data_ptr(), sent.data_ptr(), 2, kInt64, 0, ranks, nullptr);
  const at::Tensor read = sent.cpu();
  if (read[0].item<int64_t>() != 3 || read[1].item<int64_t>() != 1000)
    throw std::runtime_error("the shapes of two ranks differ");
  at::empty({read[1].item<int64_t>()}, at::kCUDA);
}
void summed() {
  void* const ranks = communicator();
  const at::Tensor sent = at::tensor({1000}, at::kLong).to(at::kCUDA);
  nccl<int (*)(const void*, void*, size_t, int, int, void*, void*)>("ncclAllReduce")(
      sent.data_ptr(), sent.data_ptr(), 1, kInt64, kSum, ranks, nullptr);
  at::empty({sent.item<int64_t>()}, at::kCUDA);
}
void item_printed() {
  std::printf("%lld\n", static_cast<long long>(unknown_integers({1}).item<int64_t>()));
  at::empty({1000}, at::kCUDA);
}
void copied_counts() {
  const at::Tensor counts = unknown_integers({8}).to(at::kCPU);
  for (int64_t i = 0; i < 8; ++i) at::empty({counts[i].item<int64_t>() + 1}, at::kCUDA);
}
void branches() {
  if (unknown({1}).item<float>() > 2) std::abort();
  if (!unknown_mask({5}).any().item<bool>()) std::abort();
  unknown({5, 5}).to(at::kCPU);
  // A check of LibTorch's own, which reads a whole number.
  at::linalg_inv(unknown({4, 4}));
}
void known() {
  at::nonzero(at::ones({40}, at::TensorOptions(at::kCPU).dtype(at::kBool)).to(at::kCUDA));
}

[[gnu::noinline]] void allocate_too_much() { at::empty({int64_t{1} << 40}, on_cuda(at::kByte)); }
void fail() {
  at::empty({int64_t{64} << 20}, on_cuda(at::kByte));
  const at::Tensor kept = at::empty({int64_t{32} << 20}, on_cuda(at::kByte));
  allocate_too_much();
}
void fail_and_go_on() {
  try {
    allocate_too_much();
  } catch (const c10::Error&) {
  }
}

void take_8_mib() { at::empty({int64_t{8} << 20}, on_cuda(at::kByte)); }
void segv() {
  take_8_mib();
  *static_cast<volatile int*>(nullptr) = 1;
}
void aborts() {
  take_8_mib();
  std::abort();
}
void throws() {
  take_8_mib();
  throw std::runtime_error("no data set here");
}
void exits() {
  take_8_mib();
  _exit(3);
}
void exits_quickly() {
  take_8_mib();
  std::quick_exit(4);
}
void is_terminated() {
  take_8_mib();
  ::kill(getpid(), SIGTERM);
}
void handles_its_segv() {
  take_8_mib();
  signal(SIGSEGV, [](int) { _exit(5); });
  *static_cast<volatile int*>(nullptr) = 1;
}
void is_killed_later() {
  take_8_mib();
  for (;;) unknown({10}).add_(1);
}
void crashes_in_malloc() {
  take_8_mib();
  // Between blocks that nobody frees, as the writer's own free() would look at this one's header.
  std::array<char*, 16> blocks;
  for (char*& one : blocks) one = static_cast<char*>(std::malloc(5000));
  char* const block = blocks[8];
  for (int i = -16; i < 0; ++i) block[i] = 127;
  std::free(block);
}
void forks() {
  if (const pid_t child = fork(); child != 0) {
    waitpid(child, nullptr, 0);
    return;
  }
  take_8_mib();
  _exit(0);
}
void forks_late() {
  take_8_mib();
  if (const pid_t child = fork(); child != 0) {
    waitpid(child, nullptr, 0);
    return;
  }
  std::exit(0);
}

void dies_of_zero() {
  if (unknown_integers({1}).item<int64_t>() == 0) throw std::runtime_error("no rows");
}
// LibTorch's own copies are followed, a program's are not.
void dies_of_copied_zero() {
  const at::Tensor scale = at::empty({1}, on_cuda(at::kFloat));
  const float two = 2;
  const auto copy =
      reinterpret_cast<int (*)(void*, const void*, size_t, int)>(dlsym(RTLD_DEFAULT, "cudaMemcpy"));
  constexpr int kHostToDevice = 1;
  if (copy(scale.data_ptr(), &two, sizeof two, kHostToDevice) != 0) std::abort();
  if (scale.item<float>() == 0) throw std::runtime_error("no scale");
}
void never_steps() {
  at::ones({1024}, at::kCUDA);
  for (;;) pause();
}

void saves() {
  Net net;
  torch::save(net.layers, "net.pt");
  std::ofstream("log.txt") << "one line\n";
  std::ofstream("gone.txt") << "temporary\n";
  unlink("gone.txt");
  if (std::system("echo x > from_shell.txt") != 0) std::abort();
}

const std::map<std::string, void (*)()> kModes = {
    {"sgd", &sgd},
    {"adam", &adam},
    {"accumulate", &accumulate},
    {"gan", &gan},
    {"ema", &ema},
    {"lbfgs", &lbfgs},
    {"evaluate", &evaluate},
    {"evaluate_later", &evaluate_later},
    {"grow", &grow},
    {"attack", [] { attack(7); }},
    {"attack_once", [] { attack(1); }},
    {"inference", &inference},
    {"reset", &reset},
    {"reads", &reads},
    {"item_size", &item_size},
    {"item_printed", &item_printed},
    {"received", &received},
    {"summed", &summed},
    {"copied_counts", &copied_counts},
    {"branches", &branches},
    {"known", &known},
    {"fail", &fail},
    {"fail_and_go_on", &fail_and_go_on},
    {"segv", &segv},
    {"aborts", &aborts},
    {"throws", &throws},
    {"dies_of_zero", &dies_of_zero},
    {"dies_of_copied_zero", &dies_of_copied_zero},
    {"never_steps", &never_steps},
    {"exits", &exits},
    {"exits_quickly", &exits_quickly},
    {"is_terminated", &is_terminated},
    {"handles_its_segv", &handles_its_segv},
    {"is_killed_later", &is_killed_later},
    {"crashes_in_malloc", &crashes_in_malloc},
    {"forks", &forks},
    {"forks_late", &forks_late},
    {"saves", &saves},
};

}  // namespace

int main(int argc, char** argv) {
  const auto mode = kModes.find(argc > 1 ? argv[1] : "");
  if (mode == kModes.end()) return 2;
  mode->second();
  return 0;
}
