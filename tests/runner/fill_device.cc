// A stranger's LibTorch program, which knows nothing of memledger: takes 1 GiB after the other of
// its GPU, as many as it is told, or until it dies of it.
//
//   fill_device [COUNT [catch]]    catch: as a program that says why it cannot go on, and ends with
//   1

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
