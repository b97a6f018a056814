// A stranger's LibTorch program, which knows nothing of memledger: takes 1 GiB after the other of its GPU, until it dies of it.

#include <ATen/ops/zeros.h>

#include <vector>

int main() {
  std::vector<at::Tensor> held;
  for (;;) held.push_back(at::zeros({1 << 28}, at::TensorOptions(at::kCUDA).dtype(at::kFloat)));
}
