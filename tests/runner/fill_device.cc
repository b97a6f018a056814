// A user's LibTorch program, which knows nothing of memledger: allocates COUNT tensors of 1 GiB on
// the GPU, or without COUNT as many as it takes to die.
//
//   fill_device [COUNT [catch]]     catch: print the error and exit with 1

#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

namespace {
// Never destroyed, so that they are still there when the process ends.
std::vector<at::Tensor>* const held = new std::vector<at::Tensor>;
}  // namespace

int main(int argc, char** argv) {
  const size_t wanted = argc > 1 ? static_cast<size_t>(std::atoi(argv[1])) : 1000000;
  try {
    while (held->size() < wanted)
      held->push_back(at::zeros({1 << 28}, at::TensorOptions(at::kCUDA).dtype(at::kFloat)));
  } catch (const std::exception& error) {
    if (argc < 3) throw;
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 5;
}
