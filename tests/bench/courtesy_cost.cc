// courtesy_cost [TENSORS]: small tensors to a file (on a CUDA device: to host memory) and back, the
// whole of yield_memory() and restore(). 100 000 without an argument.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "absl/status/status.h"
#include "registry/registry.h"
#include "tracker/courtesy.h"

int main(int argc, char** argv) {
  memledger::Registry::global().activate().IgnoreError();
  const int count = argc > 1 ? std::atoi(argv[1]) : 100000;
  memledger::CourtesyOptions options;
  const bool cuda = at::detail::getCUDAHooks().hasCUDA();
  const c10::Device device = cuda ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
  if (!cuda) {
    options.place = memledger::CourtesyOptions::Place::kFile;
    options.device = device;
  }
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i)
    tensors.push_back(at::full({64}, i, at::TensorOptions(device).dtype(at::kInt)));
  for (int round = 0; round < 3; ++round) {
    memledger::Courtesy courtesy(options);
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status yielded = courtesy.yield_memory();
    const auto between = std::chrono::steady_clock::now();
    const int64_t bytes = courtesy.yielded_bytes();
    const absl::Status restored = courtesy.restore();
    const auto end = std::chrono::steady_clock::now();
    if (!yielded.ok() || !restored.ok()) {
      fmt::print(stderr, "{}{}\n", std::string(yielded.message()), std::string(restored.message()));
      return EXIT_FAILURE;
    }
    fmt::print("{} tensors, {} bytes on {}: yield {:.3f} s, restore {:.3f} s\n", count, bytes,
               device.str(), std::chrono::duration<double>(between - begin).count(),
               std::chrono::duration<double>(end - between).count());
  }
  for (int i = 0; i < count; ++i) {
    if (!cuda && tensors[static_cast<size_t>(i)].data_ptr<int>()[63] != i) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
