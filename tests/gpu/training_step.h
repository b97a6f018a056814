#pragma once

// Training steps of the networks in examples/models, each at a standard batch on one CUDA device,
// and what LibTorch's own statistics say after each phase. Nothing here knows of memledger: the
// figures are those of a user's program.
//
//   start_clean(device);
//   for (const PhaseFigures& phase : train(model, device)) std::cout << phase.allocated.peak;
//
// Units: bytes and seconds. One thread; the device is the caller's alone.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace memledger::testing {

// A network on its device, with all that a step of it needs.
struct Training {
  std::shared_ptr<torch::nn::Module> net;
  std::vector<std::pair<std::string, at::Tensor>> inputs;  // with their names; the targets, too
  std::function<at::Tensor()> forward;                     // the loss
  std::unique_ptr<torch::optim::Adam> adam;
  at::Tensor loss;  // of the last forward pass
};

struct StandardModel {
  std::string name;    // ResNet-50
  std::string inputs;  // 16 x 3 x 224 x 224
  std::function<Training(c10::Device)> make;
};

// ResNet-50, VGG-19, LSTM, GRU, Transformer, NeuMF, MLP.
const std::vector<StandardModel>& standard_models();

struct Figure {
  int64_t current = 0;  // at the end of the phase
  int64_t peak = 0;     // in the phase
};

struct PhaseFigures {
  std::string phase;   // build, forward, backward, step; then `again`, a second step of all three
  double seconds = 0;  // until the device has done it
  Figure requested, allocated, reserved;
};

// Gives the device's cache and LibTorch's cuBLAS workspaces back and resets the peaks, so that a
// model's figures do not depend on the one before it. Starts CUDA where it has not been.
void start_clean(c10::Device device);

using AfterPhase = std::function<void(const Training&, const PhaseFigures&)>;

// Runs one model through its phases and resets the peaks after each. What `after` does is in no
// figure, if it leaves nothing on the device.
std::vector<PhaseFigures> train(const StandardModel& model, c10::Device device,
                                const AfterPhase& after = nullptr);

}  // namespace memledger::testing
