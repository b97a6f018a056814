// Trains on cuda:0, for dry_run_test.sh:
//
//   dry_run_program STEPS
//   [fail|catch|wait|conv|open|alone|grow|pieces|batch=N|epochs=N|lengths|slow|masks[=N]|
//    evaluate=N|share=N|batch=N huge=M]
//
// Prints LibTorch's own peaks and failed allocations after each step. `fail` ends with 3 in the
// end, `catch` tries an allocation of 1 TiB and goes on, `wait` waits for input, `conv` trains
// convolutions, `open FILE` needs a file, `alone FOLDER` fails while another does the same. `grow`
// and `pieces` leave much in LibTorch's cache. `batch=N` has 64 N rows in a batch instead of 256.
// `epochs=N` trains another net with batches of N rows for STEPS epochs of 4096, the last batch of
// which has the rows that remain. `lengths` has other rows in each batch. `slow` waits in its
// third step. `masks` sends rows through the net that only the device knows, `masks=N` so many that
// the host knows, by a series of numbers that N begins. `evaluate=N` ends with N rows without
// gradients. `share=N` allocates N thousandths of the device's memory and trains nothing. `huge=M`
// reads the loss, which only the device knows; where it is huge, M such batches or more take
// another GiB.
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <sys/stat.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::chrono::milliseconds kAlone{300};
constexpr std::chrono::seconds kSlow{4};  // progress is reported after two

// Says what a program says whose file is not there.
bool can_open(const char* path) {
  std::FILE* const file = std::fopen(path, "r");
  if (file == nullptr) std::perror(path);
  return file != nullptr;
}

// Whether no other process made the folder while this one had it.
bool was_alone(const char* folder) {
  if (mkdir(folder, 0700) != 0) return false;
  std::this_thread::sleep_for(kAlone);
  return rmdir(folder) == 0;
}

at::Tensor megabytes(int64_t count) {
  return at::empty({count << 20}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
}

// Each is a little larger than what the ones before left behind.
void grow() {
  for (int64_t size = 40; size <= 120; size += 10) megabytes(size);
}

// 120 MiB lie in segments of 200 MiB whose free parts are too small for the 130 MiB at the end.
void hold_pieces() {
  std::vector<at::Tensor> whole, pieces;
  for (int i = 0; i < 4; ++i) whole.push_back(megabytes(50));
  whole.clear();
  for (int i = 0; i < 4; ++i) pieces.push_back(megabytes(30));
  megabytes(130);
}

torch::nn::Sequential make_net(bool has_convolutions) {
  using torch::nn::Conv2dOptions;
  if (!has_convolutions) {
    return torch::nn::Sequential(torch::nn::Linear(1024, 4096), torch::nn::ReLU(),
                                 torch::nn::Linear(4096, 1024));
  }
  return torch::nn::Sequential(torch::nn::Conv2d(Conv2dOptions(3, 64, 3).padding(1)),
                               torch::nn::ReLU(),
                               torch::nn::Conv2d(Conv2dOptions(64, 64, 3).padding(1)));
}

void print_peaks(int step) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  std::printf("%d %lld %lld %lld\n", step, static_cast<long long>(stats.allocated_bytes[0].peak),
              static_cast<long long>(stats.reserved_bytes[0].peak),
              static_cast<long long>(stats.num_ooms));
  std::fflush(stdout);
}

// Each layer has half the width of the one before it. Input, output and loss live until the next
// step's replace them, as a Python loop's variables do.
void train_epochs(int epochs, int64_t batch) {
  constexpr int64_t kRows = 4096, kLeast = 514;
  torch::nn::Sequential net;
  int64_t width = 3199;
  const int64_t first = width;
  for (int layer = 0; layer < 7; ++layer) {
    const int64_t next = std::max(width / 2, kLeast);
    net->push_back(torch::nn::Linear(width, next));
    net->push_back(torch::nn::ReLU());
    width = next;
  }
  net->push_back(torch::nn::Linear(width, kLeast));
  net->to(at::kCUDA);
  torch::optim::Adam adam(net->parameters());
  at::Tensor input, output, loss;
  int step = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int64_t begin = 0; begin < kRows; begin += batch) {
      input = at::zeros({std::min(batch, kRows - begin), first}).to(at::kCUDA);
      adam.zero_grad();
      output = net->forward(input);
      loss = output.square().mean();
      loss.backward();
      adam.step();
      print_peaks(++step);
    }
  }
}

void read_loss(const at::Tensor& loss, bool may_take_more) {
  constexpr float kHuge = 1e20f;
  if (loss.item<float>() > kHuge && may_take_more) megabytes(1024);
}

// Returns N of a mode `NAME=N`; 0 for other modes.
int64_t number_of(const std::string& mode, const std::string& name) {
  return mode.rfind(name + "=", 0) == 0 ? std::stoll(mode.substr(name.size() + 1)) : 0;
}

// Six nets, one after the other, each with the rows of a mask. Which those are, only the device
// knows; or, where a series of numbers begins with `first`, the host, too.
void train_with_masks(int steps, int64_t first) {
  constexpr int64_t kRows = 2048;
  std::mt19937 numbers(static_cast<uint32_t>(first));
  const auto make_mask = [&](const at::Tensor& x) {
    if (first == 0) return x.select(1, 0) > 0;
    at::Tensor mask = at::zeros({kRows}, at::kBool);
    mask.narrow(0, 0, static_cast<int64_t>(1 + numbers() % kRows)).fill_(true);
    return mask.to(at::kCUDA);
  };
  torch::nn::Sequential nets[6];
  std::vector<at::Tensor> parameters;
  for (torch::nn::Sequential& net : nets) {
    net = make_net(/*has_convolutions=*/false);
    net->to(at::kCUDA);
    for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter);
  }
  torch::optim::SGD sgd(parameters, 0.1);
  for (int step = 0; step < steps; ++step) {
    at::Tensor x = at::empty({kRows, 1024}, at::kCUDA).requires_grad_();
    for (torch::nn::Sequential& net : nets) {
      const at::Tensor mask = make_mask(x);
      x = x.index_put({mask}, net->forward(x.index({mask})));
    }
    x.sum().backward();
    sgd.step();
    sgd.zero_grad();
    print_peaks(step + 1);
  }
}

}  // namespace

// Takes a share of the device's memory, as programs do that leave little to others.
void take_share(int64_t thousandths) {
  const size_t total = c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(0).second;
  at::empty({static_cast<int64_t>(total) / 1000 * thousandths},
            at::TensorOptions(at::kCUDA).dtype(at::kByte));
}

int main(int argc, char** argv) {
  const int steps = argc > 1 ? static_cast<int>(std::strtol(argv[1], nullptr, 10)) : 1;
  const std::string mode = argc > 2 ? argv[2] : "";
  std::string line;
  if (mode == "wait" && !std::getline(std::cin, line)) return 4;
  if (mode == "open" && (argc < 4 || !can_open(argv[3]))) return 5;
  if (mode == "alone" && (argc < 4 || !was_alone(argv[3]))) return 6;
  if (mode == "grow") grow();
  if (mode == "pieces") hold_pieces();
  if (const int64_t thousandths = number_of(mode, "share")) take_share(thousandths);
  if (steps == 0) return 0;
  if (const int64_t rows = number_of(mode, "epochs")) {
    train_epochs(steps, rows);
    return 0;
  }
  if (mode.rfind("masks", 0) == 0) {
    train_with_masks(steps, number_of(mode, "masks"));
    return 0;
  }
  const bool has_convolutions = mode == "conv";
  torch::nn::Sequential net = make_net(has_convolutions);
  net->to(at::kCUDA);
  torch::optim::Adam adam(net->parameters());
  const int64_t batch = number_of(mode, "batch");
  const int64_t rows = batch > 0 ? 64 * batch : 256;
  const int64_t huge_from = argc > 3 ? number_of(argv[3], "huge") : 0;
  const at::Tensor input =
      has_convolutions ? at::ones({16, 3, 64, 64}, at::kCUDA) : at::ones({rows, 1024}, at::kCUDA);
  for (int i = 0; i < steps; ++i) {
    adam.zero_grad();
    // 191 lengths, one after the other, the longest after 79 steps.
    const int64_t length = mode == "lengths" ? 64 + i * 29 % 191 : input.size(0);
    const at::Tensor loss = net->forward(input.narrow(0, 0, length)).square().sum();
    if (mode == "slow" && i == 2) std::this_thread::sleep_for(kSlow);
    loss.backward();
    adam.step();
    if (huge_from > 0) read_loss(loss, batch >= huge_from);
    print_peaks(i + 1);
  }
  if (const int64_t evaluated = number_of(mode, "evaluate")) {
    const at::NoGradGuard no_grad;
    net->forward(at::ones({evaluated, 1024}, at::kCUDA));
    print_peaks(steps);
  }
  if (mode == "catch") {
    try {
      at::empty({int64_t{1} << 40}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    } catch (const c10::Error&) {
    }
  }
  return mode == "fail" ? 3 : 0;
}
