// The Memory Reporter examples of pytorch_memlab's README, in C++: on cuda:0 if LibTorch sees one,
// else on the CPU.
//
//   ./bazelw build //:memledger_cli //examples:memlab_readme
//   bazel-bin/runner/memledger run -q --virtual-gpu=h200 -- bazel-bin/examples/memlab_readme
//
// Above each example stands what the original's README shows, and what differs here. In all of
// them:
// - Rows are sorted by bytes, and an anonymous row names the operator that made it.
// - LibTorch keeps workspaces for cuBLAS and cuBLASLt from the first matrix product on: 32.00M and
//   1.00M on an H200. The autograd thread has a cuBLAS handle of its own, so the first backward
//   pass adds another 32.00M. They stay until the program ends. `The allocated memory` includes
//   them, and the line `library workspaces` tells them apart. When the original's README was
//   written, cuBLAS took its own memory, past LibTorch's allocator.
// - A scalar takes 512.00B, as there: 4 bytes in a block of 512. The line `rounding` has the rest.
// - On the CPU nothing is rounded and nothing is kept for cuBLAS: a scalar is 4.00B.

#include <torch/torch.h>

#include <iostream>
#include <string_view>

#include "memledger.h"

namespace {

void headline(std::string_view text) { std::cout << "\n== " << text << " ==\n"; }

// Parameter0  (1024, 1024)  4.00M
// Parameter1       (1024,)  4.00K
// Total Tensors: 1049600, used 4.00M, allocated 4.00M
//
// Here `Tensor0` and `Tensor1`: Python has a type for parameters. In C++ they are tensors like
// others, which only a module calls its parameters, and this reporter knows of no module.
void linear_without_names(c10::Device device) {
  torch::nn::Linear linear(1024, 1024);
  linear->to(device);
  headline("Linear, without names");
  memledger::MemReporter().report(/*verbose=*/false, device);
}

//              before backward          after backward
// weight       (1024, 1024)    4.00M    4.00M
// weight.grad  (1024, 1024)             4.00M
// bias              (1024,)    4.00K    4.00K
// bias.grad         (1024,)             4.00K
// Tensor0       (512, 1024)    2.00M    2.00M    the input
// Tensor1              (1,)  512.00B  512.00B    the mean
// Total Tensors                1573889  2623489
// used, and allocated            6.00M   10.01M
//
// Here the same rows; allocated are 6.00M + 33.00M of workspaces, then 10.01M + 65.00M.
void linear_with_names(c10::Device device) {
  torch::nn::Linear linear(1024, 1024);
  linear->to(device);
  const torch::Tensor input = torch::empty({512, 1024}).to(device);
  memledger::MemReporter reporter(linear);
  const torch::Tensor mean = linear->forward(input).mean();
  headline("Linear, before backward");
  reporter.report(/*verbose=*/false, device);
  mean.backward();
  headline("Linear, after backward");
  reporter.report(/*verbose=*/false, device);
}

// 0.weight, 0.weight.grad                     (1024, 1024)    4.00M each
// 0.bias, 0.bias.grad, 1.bias, 1.bias.grad         (1024,)    4.00K each
// Tensor0                                      (512, 1024)    2.00M
// Tensor1                                             (1,)  512.00B
// Total Tensors: 2625537, used 10.02M, allocated 10.02M
//
// Here the shared weight's row has both names, `0.weight+1.weight`; the original drops the second.
//
// The original shares by `linear2.weight = linear.weight`. In C++ that changes a member of linear2,
// which its forward then uses, but not the parameter that it has registered: the old one would stay
// as `1.weight`, 4.00M for nothing, and no optimizer would know better. So the second layer
// registers the shared tensor itself.
class TiedLinearImpl : public torch::nn::Module {
 public:
  explicit TiedLinearImpl(const torch::Tensor& weight)
      : weight_(register_parameter("weight", weight)),
        bias_(register_parameter("bias", torch::zeros({weight.size(0)}, weight.device()))) {}

  torch::Tensor forward(const torch::Tensor& input) {
    return torch::nn::functional::linear(input, weight_, bias_);
  }

 private:
  torch::Tensor weight_;
  torch::Tensor bias_;
};
TORCH_MODULE(TiedLinear);

void shared_weights(c10::Device device) {
  torch::nn::Linear linear(1024, 1024);
  linear->to(device);
  torch::nn::Sequential container(linear, TiedLinear(linear->weight));
  const torch::Tensor input = torch::empty({512, 1024}).to(device);
  const torch::Tensor mean = container->forward(input).mean();
  mean.backward();
  headline("Shared weights");
  memledger::MemReporter(container).report(/*verbose=*/true, device);
}

// weight_ih_l0                  (4096, 1024)   32.03M
// weight_hh_l0(->weight_ih_l0)  (4096, 1024)    0.00B
// bias_ih_l0(->weight_ih_l0)         (4096,)    0.00B
// bias_hh_l0(->weight_ih_l0)         (4096,)    0.00B
// Tensor0                     (10, 10, 1024)  400.00K
// Total Tensors: 8499200, used 32.42M, allocated 32.52M
//
// and after the backward pass in addition the same four with `.grad`, 32.03M and 0.00B, and
// Tensor1                     (10, 10, 1024)  400.00K    the output
// Tensor2, Tensor3             (1, 10, 1024)   40.00K    the last states
// Total Tensors: 17018880, used 64.92M, allocated 65.11M
//
// Here the same arrows and figures, and they are cuDNN's doing: LibTorch lays an LSTM's weights
// into one storage when it moves to a GPU. On the CPU they are four storages, without arrows. What
// is different:
// - No `Tensor0` in the first table: the input does not exist yet. In the original's session there
//   must have been an older one.
// - The two states are one row, `2 x Tensor2 …`.
// - The original puts the 0.10M and 0.19M between used and allocated down to "matrix alignment".
//   Here only workspaces lie between them: every storage is a multiple of 512 bytes, such as the
//   weights' 33587200.
void lstm(c10::Device device) {
  torch::nn::LSTM lstm(1024, 1024);
  lstm->to(device);
  memledger::MemReporter reporter(lstm);
  headline("LSTM, before forward");
  reporter.report(/*verbose=*/true, device);
  const torch::Tensor input = torch::empty({10, 10, 1024}).to(device);
  const auto [output, states] = lstm->forward(input);
  output.mean().backward();
  headline("LSTM, after backward");
  reporter.report(/*verbose=*/true, device);
}

// weight   (1024, 1024)    4.00M
// bias          (1024,)    4.00K
// Tensor0   (512, 1024)    2.00M
// Tensor1          (1,)  512.00B
// Total Tensors: 1573889, used 6.00M, allocated 8.00M: "invisible gradient buffer tensors"
//
// Here the 2.00M that Python did not show are `Tensor1`, made by aten::mul, and used are 8.00M. The
// second table looks into the graph, too, and says who holds it: it is the first matrix of the
// product that Linear computes, kept for the weight's gradient. The original's README takes it for
// a factor that the multiplication keeps, but the input needs no gradient, so aten::mul keeps
// nothing.
void unseen_by_python(c10::Device device) {
  torch::nn::Linear linear(1024, 1024);
  linear->to(device);
  const torch::Tensor input = torch::empty({512, 1024}).to(device);
  memledger::MemReporter reporter(linear);
  const torch::Tensor mean = linear->forward(input * (input + 2)).mean();
  headline("What Python could not see");
  reporter.report(/*verbose=*/false, device);
  reporter.add_graph(mean);
  headline("What Python could not see, with the graph");
  reporter.report(/*verbose=*/false, device);
}

}  // namespace

int main() {
  const memledger::ScopedTracking tracking;  // first, so that every row names its operator
  const c10::Device device = memledger::default_device();
  std::cout << "on " << device << (device.is_cuda() ? "\n" : ": LibTorch sees no CUDA device\n");
  linear_without_names(device);
  linear_with_names(device);
  shared_weights(device);
  lstm(device);
  unseen_by_python(device);
}
