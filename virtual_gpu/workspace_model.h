#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "virtual_gpu/convolution.h"

// What cuDNN would ask for besides the tensors. Every rule, where it comes from and how far it was
// found from cuDNN's own answers is in docs/virtual_gpu_workspaces.md. Pure functions: no device,
// no environment.
namespace memledger::virtual_gpu {

struct DeviceFacts {
  int compute_capability = 90;  // major * 10 + minor
  int multiprocessors = 132;
  int threads_per_multiprocessor = 2048;
};

// Whether cuDNN has an engine for these elements at all.
bool convolution_supported(const Convolution& convolution, const DeviceFacts& device);
// Whether the first choice computes on tensor cores; for float that is TF32, which the program can
// forbid.
bool convolution_on_tensor_cores(const Convolution& convolution, const DeviceFacts& device);
uint64_t convolution_workspace_bytes(const Convolution& convolution, const DeviceFacts& device,
                                     bool tensor_cores);

// The minimum and the maximum that cuDNN may ask for on the device, if it named plans for a device
// that was only described to it. `bytes` is one plan's workspace, or that of the largest plan.
// Measured on an H200 (cuDNN 9.19, float, channels first), 94 convolutions of VGG-19 and ResNet-50:
// A filter of one element needs no workspace, but its gradient has 16 partial sums. Others need at
// least 0.93 of the first plan described, and at most 1.27 times the largest.
uint64_t least_workspace_bytes(const Convolution& convolution, uint64_t bytes);
uint64_t largest_workspace_on_device_bytes(const Convolution& convolution, uint64_t bytes);

// Never less than cuDNN's own first plan, as far as was found.
uint64_t convolution_workspace_upper_bytes(const Convolution& convolution,
                                           const DeviceFacts& device, bool tensor_cores);
// The largest of all plans that cuDNN offers, which a program that tries them all allocates.
uint64_t largest_convolution_workspace_bytes(const Convolution& convolution,
                                             const DeviceFacts& device, bool tensor_cores);
uint64_t largest_convolution_workspace_upper_bytes(const Convolution& convolution,
                                                   const DeviceFacts& device, bool tensor_cores);

// A plan for attention needs this, forward and backward.
uint64_t attention_workspace_bytes(const DeviceFacts& device);

struct BatchNorm {
  ElementType type = ElementType::kFloat;
  int64_t elements = 0;
  bool channels_last = false;
  bool persistent = false;
};
uint64_t batch_norm_forward_workspace_bytes(const BatchNorm& norm);
uint64_t batch_norm_backward_workspace_bytes(const BatchNorm& norm);

// `labels` of all batch entries together, `longest_label` of one.
uint64_t ctc_workspace_bytes(int64_t steps, int64_t batch, int64_t classes, int64_t labels,
                             int64_t longest_label);
uint64_t ctc_v8_workspace_bytes(int64_t steps, int64_t batch, int64_t classes,
                                int64_t longest_label);

uint64_t dropout_states_bytes(const DeviceFacts& device);

// The minimum and the maximum bytes of cuFFT's work area for one plan, whose input, output or both
// are complex. The minimum was measured on an H200. The maximum is what NVIDIA's manual says for
// lengths with a prime factor above 127, and twice the measured bytes for others.
struct FftWork {
  uint64_t least_bytes, most_bytes;
};
FftWork fft_work(const std::vector<int64_t>& signal, int64_t batch, bool is_real,
                 size_t complex_element_bytes);

// How the program's convolutions get their size: the environment variable, and what it may hold.
inline constexpr char kConvolutionWorkspaceVariable[] = "MEMLEDGER_VIRTUAL_GPU_CUDNN_WORKSPACE";
struct WorkspaceChoice {
  enum class Kind { kModel, kLeast, kUpper, kNone, kFixed } kind = Kind::kModel;
  uint64_t fixed_bytes = 0;

  uint64_t apply(uint64_t modelled) const {
    return kind == Kind::kNone ? 0 : kind == Kind::kFixed ? fixed_bytes : modelled;
  }
};
// `model`, `least`, `upper` (its bounds), `none` or a number of bytes; nothing for anything else.
std::optional<WorkspaceChoice> parse_workspace_choice(std::string_view text);

}  // namespace memledger::virtual_gpu
