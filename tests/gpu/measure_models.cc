// What one training step of each network takes on cuda:0, as LibTorch's own statistics say, for
// whoever compares: `memledger validate` and tests/gpu/resnet50_test.sh. Lines of words with tabs
// between them:
//
//   device  NAME  COMPUTE-CAPABILITY  MULTIPROCESSORS  MEMORY
//   figures  MODEL  PHASE  then current and peak of: allocated, reserved, requested
//   seconds  MODEL  PHASE  SECONDS
//
// Arguments: the models, by name; without any, all. Or --addresses, for what
// tests/gpu/address_series.h prints. Ends with 1 and a sentence where there is no
// CUDA device.

#include <ATen/Context.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tests/gpu/address_series.h"
#include "tests/gpu/training_step.h"

namespace {

using memledger::testing::Figure;
using memledger::testing::PhaseFigures;
using memledger::testing::StandardModel;

// Those with the names given, or all; fewer than names where there is none of a name.
std::vector<StandardModel> asked_for(const std::vector<std::string>& names) {
  std::vector<StandardModel> models;
  for (const StandardModel& model : memledger::testing::standard_models()) {
    if (names.empty() || std::count(names.begin(), names.end(), model.name) > 0)
      models.push_back(model);
  }
  return models;
}

void print(const Figure& figure) {
  std::printf("\t%" PRId64 "\t%" PRId64, figure.current, figure.peak);
}

int print_addresses() {
  const int error = memledger::testing::print_address_series();
  if (error == 0) return 0;
  std::fprintf(stderr, "measure_models: %s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  return 1;
}

int run(const std::vector<std::string>& names) {
  if (names == std::vector<std::string>{"--addresses"}) return print_addresses();
  const std::vector<StandardModel> models = asked_for(names);
  if (models.size() < names.size()) {
    std::fprintf(stderr,
                 "measure_models: there are ResNet-50, VGG-19, LSTM, GRU, Transformer, NeuMF and "
                 "MLP, each once\n");
    return 1;
  }
  if (!at::hasCUDA()) {
    std::fprintf(stderr, "measure_models: LibTorch finds no CUDA device\n");
    return 1;
  }
  cudaDeviceProp device{};
  if (const cudaError_t error = cudaGetDeviceProperties(&device, 0); error != cudaSuccess) {
    std::fprintf(stderr, "measure_models: %s\n", cudaGetErrorString(error));
    return 1;
  }
  std::printf("device\t%s\t%d.%d\t%d\t%zu\n", device.name, device.major, device.minor,
              device.multiProcessorCount, device.totalGlobalMem);
  for (const StandardModel& model : models) {
    const c10::Device cuda0(c10::kCUDA, 0);
    memledger::testing::start_clean(cuda0);
    for (const PhaseFigures& phase : memledger::testing::train(model, cuda0)) {
      std::printf("figures\t%s\t%s", model.name.c_str(), phase.phase.c_str());
      print(phase.allocated);
      print(phase.reserved);
      print(phase.requested);
      std::printf("\nseconds\t%s\t%s\t%.3f\n", model.name.c_str(), phase.phase.c_str(),
                  phase.seconds);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "measure_models: %s\n", error.what());
    return 1;
  }
}
