#pragma once

// A residual network as TorchScript, without Python: the shape of torchvision's ResNet, its
// modules' and parameters' names.

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <vector>

namespace memledger::testing {

// ResNet-50 with {3, 4, 6, 3} bottleneck blocks and 64 base channels: 25 557 032 parameters. In
// training mode.
torch::jit::Module script_resnet(const std::vector<int64_t>& blocks = {3, 4, 6, 3},
                                 int64_t base_channels = 64, int64_t classes = 1000);

}  // namespace memledger::testing
