#pragma once

#include <cstdint>
#include <vector>

namespace memledger::virtual_gpu {

enum class ElementType { kFloat, kDouble, kHalf, kBfloat16, kOther };

enum class ConvolutionPass { kForward, kBackwardData, kBackwardFilter };

// x is the input (or its gradient), y the output, w the filter, each as {batch, channels, spatial
// …}; of w {out, in per group, spatial …}.
struct Convolution {
  ConvolutionPass pass = ConvolutionPass::kForward;
  ElementType type = ElementType::kFloat;
  std::vector<int64_t> x, w, y;
  std::vector<int64_t> strides, dilations;
  bool channels_last = false;

  int64_t groups() const { return w.size() > 1 && x.size() > 1 && w[1] > 0 ? x[1] / w[1] : 1; }
};

inline bool operator==(const Convolution& a, const Convolution& b) {
  return a.pass == b.pass && a.type == b.type && a.x == b.x && a.w == b.w && a.y == b.y &&
         a.strides == b.strides && a.dilations == b.dilations && a.channels_last == b.channels_last;
}

}  // namespace memledger::virtual_gpu
