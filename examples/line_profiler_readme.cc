// The Line Profiler example of pytorch_memlab's README, in C++. Nothing of memledger is in it: the
// command profiles it as it is, given debug information (-g).
//
//   ./bazelw build //examples:line_profiler_readme
//   memledger run --virtual-gpu=h200 -f outer -f inner -- bazel-bin/examples/line_profiler_readme
//
// The original's tables:
//
//   ## outer
//
//   active_bytes reserved_bytes line  code
//            all            all
//           peak           peak
//          0.00B          0.00B    7  def outer():
//         40.00K          2.00M    8      linear = …
//         80.00K          2.00M    9      linear2 = …
//        120.00K          2.00M   10      inner()
//
//   ## inner
//
//   active_bytes reserved_bytes line  code
//            all            all
//           peak           peak
//         80.00K          2.00M    4  def inner():
//        120.00K          2.00M    5      torch.nn.Linear(…
//
// Here the same, and a row for each closing brace, where C++ frees what Python frees after the
// function.
#include <torch/torch.h>

static torch::nn::Linear on_gpu(torch::nn::Linear linear) {
  linear->to(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  return linear;
}

static void inner() {
  // Freed at the brace.
  const torch::nn::Linear linear = on_gpu(torch::nn::Linear(100, 100));
}

static void outer() {
  const torch::nn::Linear linear = on_gpu(torch::nn::Linear(100, 100));
  const torch::nn::Linear linear2 = on_gpu(torch::nn::Linear(100, 100));
  inner();
}

int main() { outer(); }
