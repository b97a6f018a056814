#include "tests/support/script_resnet.h"

#include <ATen/Functions.h>

#include <string>

namespace memledger::testing {
namespace {

using torch::jit::Module;

std::string pair(int64_t value) {
  return "[" + std::to_string(value) + ", " + std::to_string(value) + "]";
}

at::Tensor parameter(at::IntArrayRef sizes) {
  return at::mul(at::randn(sizes), 0.05).requires_grad_();
}

Module convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  Module module("Conv2d");
  module.register_parameter("weight", parameter({out, in, kernel, kernel}), false);
  module.define(
      "def forward(self, x: Tensor) -> Tensor:\n    return torch.conv2d(x, self.weight, None, " +
      pair(stride) + ", " + pair(kernel / 2) + ")\n");
  return module;
}

Module batch_norm(int64_t channels) {
  Module module("BatchNorm2d");
  module.register_parameter("weight", at::ones({channels}).requires_grad_(), false);
  module.register_parameter("bias", at::zeros({channels}).requires_grad_(), false);
  module.register_buffer("running_mean", at::zeros({channels}));
  module.register_buffer("running_var", at::ones({channels}));
  module.define(
      "def forward(self, x: Tensor) -> Tensor:\n"
      "    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, "
      "True, 0.1, 1e-05, False)\n");
  return module;
}

Module downsample(int64_t in, int64_t out, int64_t stride) {
  Module module("Downsample");
  module.register_module("0", convolution(in, out, 1, stride));
  module.register_module("1", batch_norm(out));
  // Attributes with digits for names cannot be written in TorchScript.
  module.define(
      "def forward(self, x: Tensor) -> Tensor:\n    return getattr(self, "
      "\"1\").forward(getattr(self, \"0\").forward(x))\n");
  return module;
}

Module bottleneck(int64_t in, int64_t width, int64_t stride) {
  Module module("Bottleneck");
  module.register_module("conv1", convolution(in, width, 1, 1));
  module.register_module("bn1", batch_norm(width));
  module.register_module("conv2", convolution(width, width, 3, stride));
  module.register_module("bn2", batch_norm(width));
  module.register_module("conv3", convolution(width, 4 * width, 1, 1));
  module.register_module("bn3", batch_norm(4 * width));
  const bool changes = stride != 1 || in != 4 * width;
  if (changes) module.register_module("downsample", downsample(in, 4 * width, stride));
  module.define(std::string("def forward(self, x: Tensor) -> Tensor:\n"
                            "    y = torch.relu_(self.bn1.forward(self.conv1.forward(x)))\n"
                            "    y = torch.relu_(self.bn2.forward(self.conv2.forward(y)))\n"
                            "    y = self.bn3.forward(self.conv3.forward(y))\n") +
                "    y += " + (changes ? "self.downsample.forward(x)" : "x") +
                "\n    return torch.relu_(y)\n");
  return module;
}

Module layer(int64_t in, int64_t width, int64_t blocks, int64_t stride) {
  Module module("Layer");
  std::string code = "def forward(self, x: Tensor) -> Tensor:\n";
  for (int64_t i = 0; i < blocks; ++i) {
    const std::string name = std::to_string(i);
    module.register_module(name, bottleneck(i == 0 ? in : 4 * width, width, i == 0 ? stride : 1));
    code += "    x = getattr(self, \"" + name + "\").forward(x)\n";
  }
  module.define(code + "    return x\n");
  return module;
}

}  // namespace

Module script_resnet(const std::vector<int64_t>& blocks, int64_t base_channels, int64_t classes) {
  Module module("ResNet");
  module.register_module("conv1", convolution(3, base_channels, 7, 2));
  module.register_module("bn1", batch_norm(base_channels));
  std::string code =
      "def forward(self, x: Tensor) -> Tensor:\n"
      "    x = torch.relu_(self.bn1.forward(self.conv1.forward(x)))\n"
      "    x = torch.max_pool2d(x, [3, 3], [2, 2], [1, 1])\n";
  int64_t in = base_channels, width = base_channels;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string name = "layer" + std::to_string(i + 1);
    module.register_module(name, layer(in, width, blocks[i], i == 0 ? 1 : 2));
    code += "    x = self." + name + ".forward(x)\n";
    in = 4 * width;
    width *= 2;
  }
  Module fc("Linear");
  fc.register_parameter("weight", parameter({classes, in}), false);
  fc.register_parameter("bias", at::zeros({classes}).requires_grad_(), false);
  fc.define(
      "def forward(self, x: Tensor) -> Tensor:\n    return torch.linear(x, self.weight, "
      "self.bias)\n");
  module.register_module("fc", fc);
  module.define(code + "    return self.fc.forward(torch.mean(x, [2, 3]))\n");
  module.train();
  return module;
}

}  // namespace memledger::testing
