#include "runner/inside/calibrate.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "registry/device_statistics.h"
#include "registry/hooks/block_observer.h"
#include "registry/libtorch/driver_memory.h"
#include "runner/environment.h"
#include "runner/inside/real_devices.h"
#include "text/output.h"
#include "virtual_gpu/calibration.h"

namespace memledger::inside {
namespace {

using virtual_gpu::CalibratedConvolution;
using virtual_gpu::Calibration;
using virtual_gpu::Convolution;
using virtual_gpu::ConvolutionPass;
using virtual_gpu::ElementType;

// A block that was made inside a convolution.
struct Block {
  uint64_t id = 0;
  int64_t nbytes = 0;
  bool is_own = false;    // made by the operator itself, not by one that it calls
  bool is_freed = false;  // before the operator ended
};

// An operator that runs.
struct Scope {
  std::optional<Convolution> convolution;  // its x, w, y; the pass is open
  bool is_backward = false;
  bool gives_data = false, gives_filter = false;
  std::vector<Block> blocks;
};

struct State {
  std::string file;
  std::mutex lock;
  Calibration calibration;
  std::atomic<bool> has_context{false};
  std::atomic<bool> is_written{false};
};

// Never destroyed: operators may run while the process goes down.
State& state() {
  static auto* const state = new State;
  return *state;
}

thread_local std::vector<Scope> scopes;

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

// The first block of the program shows the context before libraries have taken anything.
void note_context(c10::Device device) {
  if (device.index() != 0 || state().has_context.exchange(true)) return;
  note_device_in_use(device.index());
  const auto statistics = device_statistics(device);
  const RealUse use = real_use(0);
  if (!statistics) return;
  const std::lock_guard<std::mutex> hold(state().lock);
  state().calibration.device = use.name;
  state().calibration.is_of_process = use.is_of_process;
  state().calibration.context_bytes = static_cast<uint64_t>(
      std::max<int64_t>(0, use.process_bytes - statistics->reserved_bytes.current));
}

void on_block(const BlockEvent& event) noexcept {
  if (event.device.type() != kCuda) return;
  try {
    if (event.birth) note_context(event.device);
    // The innermost convolution that runs.
    const auto innermost = std::find_if(scopes.rbegin(), scopes.rend(),
                                        [](const Scope& scope) { return !!scope.convolution; });
    if (innermost == scopes.rend()) return;
    if (event.birth) {
      innermost->blocks.push_back({event.id, event.nbytes, innermost == scopes.rbegin(), false});
      return;
    }
    for (Block& block : innermost->blocks) {
      if (block.id == event.id) block.is_freed = true;
    }
  } catch (const std::exception&) {
    // One that is missing is modelled.
  }
}

ElementType element_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return ElementType::kFloat;
    case c10::ScalarType::Double:
      return ElementType::kDouble;
    case c10::ScalarType::Half:
      return ElementType::kHalf;
    case c10::ScalarType::BFloat16:
      return ElementType::kBfloat16;
    default:
      return ElementType::kOther;
  }
}

// cuDNN sees a one-dimensional convolution as one of two dimensions.
std::vector<int64_t> sizes_of(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  if (sizes.size() == 3) sizes.insert(sizes.begin() + 2, 1);
  return sizes;
}

std::vector<int64_t> steps_of(const c10::IValue& value, size_t dimensions) {
  std::vector<int64_t> steps = value.toIntVector();
  if (steps.size() == 1) steps.insert(steps.begin(), dimensions - 1, steps[0]);
  if (steps.size() == 1) steps.insert(steps.begin(), 1);
  return steps;
}

bool is_channels_last(const at::Tensor& x, const at::Tensor& w) {
  const auto is_last = [](const at::Tensor& tensor) {
    return tensor.suggest_memory_format() != at::MemoryFormat::Contiguous;
  };
  return is_last(x) || is_last(w);
}

Convolution convolution_of(const at::Tensor& x, const at::Tensor& w, const c10::IValue& stride,
                           const c10::IValue& dilation) {
  Convolution result;
  const size_t dimensions = static_cast<size_t>(x.dim()) - 2;
  result.type = element_type(x.scalar_type());
  result.x = sizes_of(x);
  result.w = sizes_of(w);
  result.strides = steps_of(stride, dimensions);
  result.dilations = steps_of(dilation, dimensions);
  result.channels_last = is_channels_last(x, w);
  return result;
}

// aten::cudnn_convolution(self, weight, padding, stride, dilation, …)
void begin_forward(c10::ArrayRef<const c10::IValue> in, Scope& scope) {
  constexpr size_t kLeastInputs = 5;
  if (in.size() < kLeastInputs || !in[0].isTensor() || !in[1].isTensor()) return;
  scope.convolution = convolution_of(in[0].toTensor(), in[1].toTensor(), in[3], in[4]);
}

// aten::convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
// transposed, output_padding, groups, output_mask)
void begin_backward(c10::ArrayRef<const c10::IValue> in, Scope& scope) {
  constexpr size_t kInputs = 11;
  if (in.size() != kInputs || in[7].toBool() || !in[0].isTensor() || !in[0].toTensor().is_cuda())
    return;
  scope.convolution = convolution_of(in[1].toTensor(), in[2].toTensor(), in[4], in[6]);
  scope.convolution->y = sizes_of(in[0].toTensor());
  scope.is_backward = true;
  const auto mask = in[10].toBoolList();
  scope.gives_data = mask.get(0);
  scope.gives_filter = mask.get(1);
}

// Pushed for every operator, so that blocks of those which a convolution calls are told apart.
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& fn) {
  Scope scope;
  try {
    const std::string_view name = fn.name();
    const c10::ArrayRef<const c10::IValue> in = fn.inputs();
    if (name == "aten::cudnn_convolution") begin_forward(in, scope);
    if (name == "aten::convolution_backward") begin_backward(in, scope);
  } catch (const std::exception&) {
    scope.convolution.reset();
  }
  scopes.push_back(std::move(scope));
  return nullptr;
}

int64_t bytes_of(const std::vector<int64_t>& sizes, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t size : sizes) bytes *= size;
  return bytes;
}

int64_t element_bytes(ElementType type) {
  return type == ElementType::kDouble ? 8 : type == ElementType::kFloat ? 4 : 2;
}

// Which of the two convolutions a workspace of the backward operator is for: that of the filter
// comes after the filter's gradient has been made, which is made after the input's.
ConvolutionPass pass_of(const Scope& scope, size_t workspace) {
  if (!scope.gives_data) return ConvolutionPass::kBackwardFilter;
  if (!scope.gives_filter) return ConvolutionPass::kBackwardData;
  const Convolution& convolution = *scope.convolution;
  const int64_t filter = bytes_of(convolution.w, element_bytes(convolution.type));
  const int64_t data = bytes_of(convolution.x, element_bytes(convolution.type));
  int gradients = filter == data ? -1 : 0;
  for (size_t i = 0; i < workspace; ++i) {
    const Block& block = scope.blocks[i];
    if (!block.is_freed && block.nbytes == filter) ++gradients;
  }
  return gradients > 0 ? ConvolutionPass::kBackwardFilter : ConvolutionPass::kBackwardData;
}

// What the operator made itself and freed was a workspace.
void note_workspaces(const Scope& scope) {
  CalibratedConvolution forward{*scope.convolution, 0}, data = forward, filter = forward;
  data.convolution.pass = ConvolutionPass::kBackwardData;
  filter.convolution.pass = ConvolutionPass::kBackwardFilter;
  for (size_t i = 0; i < scope.blocks.size(); ++i) {
    const Block& block = scope.blocks[i];
    if (!block.is_own || !block.is_freed) continue;
    CalibratedConvolution& whose = !scope.is_backward                                      ? forward
                                   : pass_of(scope, i) == ConvolutionPass::kBackwardFilter ? filter
                                                                                           : data;
    whose.workspace_bytes = std::max(whose.workspace_bytes, static_cast<uint64_t>(block.nbytes));
  }
  const std::lock_guard<std::mutex> hold(state().lock);
  if (!scope.is_backward) state().calibration.add(forward);
  if (scope.gives_data) state().calibration.add(data);
  if (scope.gives_filter) state().calibration.add(filter);
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* /*context*/) {
  if (scopes.empty()) return;
  const Scope scope = std::move(scopes.back());
  scopes.pop_back();
  if (!scope.convolution) return;
  try {
    Scope ended = scope;
    if (!ended.is_backward) {
      if (fn.outputs().empty() || !fn.outputs()[0].isTensor()) return;
      ended.convolution->y = sizes_of(fn.outputs()[0].toTensor());
    }
    note_workspaces(ended);
  } catch (const std::exception&) {
    // One that is missing is modelled.
  }
}

}  // namespace

void calibrate_if_asked() {
  const char* const file = secure_getenv(environment::kCalibration);
  if (file == nullptr || *file == '\0') return;
  state().file = file;
  set_block_observer(&on_block);
  at::addGlobalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
}

void write_calibration() {
  if (state().file.empty() || !state().has_context || state().is_written.exchange(true)) return;
  const auto statistics = device_statistics(c10::Device(kCuda, 0));
  const RealUse use = real_use(0);
  const std::lock_guard<std::mutex> hold(state().lock);
  Calibration& calibration = state().calibration;
  if (statistics) {
    const int64_t beyond = use.process_bytes - statistics->reserved_bytes.current -
                           static_cast<int64_t>(calibration.context_bytes);
    calibration.libraries_bytes = static_cast<uint64_t>(std::max<int64_t>(0, beyond));
  }
  const absl::Status status = write_file(state().file + "." + std::to_string(getpid()),
                                         "calibration", virtual_gpu::calibration_json(calibration));
  if (!status.ok()) tell({std::string(status.message())});
}

}  // namespace memledger::inside
