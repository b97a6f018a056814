// cuDNN: handles, versions, errors, and the descriptors of the older interface.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "virtual_gpu/answers/cudnn.h"
#include "virtual_gpu/cudnn_planner_client.h"
#include "virtual_gpu/machine.h"
#include "virtual_gpu/unconsidered_functions.h"

namespace memledger::virtual_gpu::cudnn {
namespace {

constexpr size_t kLongestMessage = 256;
thread_local std::array<char, kLongestMessage> last_message{};

}  // namespace

int fail(int status, std::string_view why) {
  const size_t n = std::min(why.size(), kLongestMessage - 1);
  std::memcpy(last_message.data(), why.data(), n);
  last_message[n] = '\0';
  return status;
}

DeviceFacts device_facts() {
  const Profile& profile = Machine::get().profile(current_device());
  return {profile.compute_capability(), profile.multiprocessors,
          profile.max_threads_per_multiprocessor};
}

const WorkspaceChoice& convolution_choice() {
  static const WorkspaceChoice choice = [] {
    const char* const text = std::getenv(kConvolutionWorkspaceVariable);
    const WorkspaceEnd end = Machine::get().specification().workspaces;
    const char* const otherwise = end == WorkspaceEnd::kUpper   ? "upper"
                                  : end == WorkspaceEnd::kLeast ? "least"
                                                                : "";
    const auto parsed = parse_workspace_choice(text == nullptr ? otherwise : text);
    if (!parsed.has_value()) {
      say("%s=%s is neither model, least, upper, none nor a number of bytes: taken as model",
          kConvolutionWorkspaceVariable, text);
      return WorkspaceChoice{};
    }
    return *parsed;
  }();
  return choice;
}

std::optional<uint64_t> calibrated_convolution_bytes(const Convolution& convolution) {
  const std::optional<Calibration>& calibration = Machine::get().specification().calibration;
  return calibration ? calibration->workspace_of(convolution) : std::nullopt;
}

uint64_t modelled_convolution_bytes(const Convolution& convolution, bool tensor_cores) {
  const DeviceFacts device = device_facts();
  switch (convolution_choice().kind) {
    case WorkspaceChoice::Kind::kUpper:
      return convolution_workspace_upper_bytes(convolution, device, tensor_cores);
    case WorkspaceChoice::Kind::kLeast:
      return least_workspace_bytes(convolution,
                                   convolution_workspace_bytes(convolution, device, tensor_cores));
    default:
      return convolution_workspace_bytes(convolution, device, tensor_cores);
  }
}

uint64_t modelled_largest_bytes(const Convolution& convolution, bool tensor_cores) {
  const DeviceFacts device = device_facts();
  return convolution_choice().kind == WorkspaceChoice::Kind::kUpper
             ? largest_convolution_workspace_upper_bytes(convolution, device, tensor_cores)
             : largest_convolution_workspace_bytes(convolution, device, tensor_cores);
}

uint64_t chosen_convolution_bytes(const Convolution& convolution, bool tensor_cores) {
  const std::optional<uint64_t> calibrated = calibrated_convolution_bytes(convolution);
  return convolution_choice().apply(
      calibrated ? *calibrated : modelled_convolution_bytes(convolution, tensor_cores));
}

uint64_t attention_bytes(WorkspaceKind kind) {
  return kind == WorkspaceKind::kAttention ? attention_workspace_bytes(device_facts()) : 0;
}

WorkspaceKind workspace_kind(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::kBackwardData:
      return WorkspaceKind::kConvolutionBackwardData;
    case ConvolutionPass::kBackwardFilter:
      return WorkspaceKind::kConvolutionBackwardFilter;
    case ConvolutionPass::kForward:
      break;
  }
  return WorkspaceKind::kConvolutionForward;
}

}  // namespace memledger::virtual_gpu::cudnn

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::cudnn;

MEMLEDGER_ANSWER size_t cudnnGetVersion() { return cudnn_version(); }
MEMLEDGER_ANSWER size_t cudnnGetCudartVersion() { return 13000; }
MEMLEDGER_ANSWER size_t cudnnGetMaxDeviceVersion() { return 1210; }
MEMLEDGER_ANSWER int cudnnGetProperty(int type, int* value) {
  const size_t version = cudnn_version();
  const int parts[] = {static_cast<int>(version / 10000), static_cast<int>(version / 100 % 100),
                       static_cast<int>(version % 100)};
  if (type < 0 || type > 2 || value == nullptr)
    return fail(kBadParam, "memledger virtual GPU: no such property");
  *value = parts[type];
  return kSuccess;
}
MEMLEDGER_ANSWER const char* cudnnGetErrorString(int status) {
  switch (status) {
    case kSuccess:
      return "CUDNN_STATUS_SUCCESS";
    case kNotSupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case kNullPointer:
      return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case kNotFinalized:
      return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case kNoHostMemory:
      return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    default:
      return "CUDNN_STATUS_BAD_PARAM";
  }
}
MEMLEDGER_ANSWER void cudnnGetLastErrorString(char* message, size_t bytes) {
  if (message == nullptr || bytes == 0) return;
  std::snprintf(message, bytes, "%s", last_message.data());
  last_message[0] = '\0';
}

MEMLEDGER_ANSWER int cudnnCreate(Handle** handle) {
  return make_object(handle, kNullPointer, kNoHostMemory);
}
MEMLEDGER_ANSWER int cudnnDestroy(Handle* handle) { return drop_object(handle); }
MEMLEDGER_ANSWER int cudnnSetStream(Handle* handle, void* stream) {
  if (handle == nullptr) return kNullPointer;
  handle->stream = stream;
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnGetStream(const Handle* handle, void** stream) {
  if (handle == nullptr || stream == nullptr) return kNullPointer;
  *stream = handle->stream;
  return kSuccess;
}

#define DESCRIPTOR(Name, Type)                                            \
  MEMLEDGER_ANSWER int cudnnCreate##Name##Descriptor(Type** out) {        \
    return make_object(out, kNullPointer, kNoHostMemory);                 \
  }                                                                       \
  MEMLEDGER_ANSWER int cudnnDestroy##Name##Descriptor(Type* descriptor) { \
    return drop_object(descriptor);                                       \
  }
DESCRIPTOR(Tensor, cudnn::Tensor)
DESCRIPTOR(Filter, cudnn::Filter)
DESCRIPTOR(Convolution, cudnn::ConvolutionShape)
DESCRIPTOR(Dropout, cudnn::Dropout)
DESCRIPTOR(RNN, cudnn::Rnn)
DESCRIPTOR(RNNData, cudnn::RnnData)
DESCRIPTOR(CTCLoss, cudnn::CtcLoss)
DESCRIPTOR(Activation, cudnn::Activation)
DESCRIPTOR(Pooling, cudnn::Pooling)
DESCRIPTOR(SpatialTransformer, cudnn::SpatialTransformer)
#undef DESCRIPTOR

MEMLEDGER_ANSWER int cudnnSetTensorNdDescriptor(cudnn::Tensor* tensor, int data_type, int n,
                                                const int* extents, const int* strides) {
  if (tensor == nullptr || extents == nullptr || strides == nullptr)
    return fail(kNullPointer, "memledger virtual GPU: a tensor descriptor without extents");
  if (n < 1)
    return fail(kBadParam, "memledger virtual GPU: a tensor descriptor without dimensions");
  tensor->data_type = data_type;
  tensor->extents.assign(extents, extents + n);
  tensor->strides.assign(strides, strides + n);
  return kSuccess;
}
// Copies `asked` dimensions at most; `n` is how many there are.
MEMLEDGER_ANSWER int cudnnGetTensorNdDescriptor(const cudnn::Tensor* tensor, int asked,
                                                int* data_type, int* n, int* extents,
                                                int* strides) {
  if (tensor == nullptr) return kNullPointer;
  const size_t given = std::min<size_t>(asked < 0 ? 0 : asked, tensor->extents.size());
  if (data_type != nullptr) *data_type = tensor->data_type;
  if (n != nullptr) *n = static_cast<int>(tensor->extents.size());
  if (extents != nullptr) std::copy_n(tensor->extents.begin(), given, extents);
  if (strides != nullptr) std::copy_n(tensor->strides.begin(), given, strides);
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnSetFilterNdDescriptor(cudnn::Filter* filter, int data_type, int format,
                                                int n, const int* extents) {
  if (filter == nullptr || extents == nullptr) return kNullPointer;
  if (n < 1)
    return fail(kBadParam, "memledger virtual GPU: a filter descriptor without dimensions");
  filter->data_type = data_type;
  filter->format = format;
  filter->extents.assign(extents, extents + n);
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnGetFilterNdDescriptor(const cudnn::Filter* filter, int asked,
                                                int* data_type, int* format, int* n, int* extents) {
  if (filter == nullptr) return kNullPointer;
  const size_t given = std::min<size_t>(asked < 0 ? 0 : asked, filter->extents.size());
  if (data_type != nullptr) *data_type = filter->data_type;
  if (format != nullptr) *format = filter->format;
  if (n != nullptr) *n = static_cast<int>(filter->extents.size());
  if (extents != nullptr) std::copy_n(filter->extents.begin(), given, extents);
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnSetConvolutionNdDescriptor(ConvolutionShape* shape, int n,
                                                     const int* paddings, const int* strides,
                                                     const int* dilations, int mode,
                                                     int compute_type) {
  if (shape == nullptr || paddings == nullptr || strides == nullptr || dilations == nullptr)
    return kNullPointer;
  if (n < 1) return fail(kBadParam, "memledger virtual GPU: a convolution without dimensions");
  shape->paddings.assign(paddings, paddings + n);
  shape->strides.assign(strides, strides + n);
  shape->dilations.assign(dilations, dilations + n);
  shape->mode = mode;
  shape->compute_type = compute_type;
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnSetConvolutionGroupCount(ConvolutionShape* shape, int groups) {
  if (shape == nullptr) return kNullPointer;
  shape->groups = groups;
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnSetConvolutionMathType(ConvolutionShape* shape, int math_type) {
  if (shape == nullptr) return kNullPointer;
  shape->math_type = math_type;
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnDropoutGetStatesSize(const Handle*, size_t* bytes) {
  if (bytes == nullptr) return kNullPointer;
  *bytes = dropout_states_bytes(device_facts());
  note_workspace_asked(WorkspaceKind::kDropoutStates, *bytes);
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnSetDropoutDescriptor(Dropout* dropout, const Handle*, float probability,
                                               void* states, size_t, unsigned long long) {
  if (dropout == nullptr) return kNullPointer;
  dropout->probability = probability;
  if (states == nullptr) return kSuccess;
  note_workspace_used(WorkspaceKind::kDropoutStates);
  note_library_work();
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnRestoreDropoutDescriptor(Dropout* dropout, const Handle*,
                                                   float probability, void*, size_t,
                                                   unsigned long long) {
  if (dropout == nullptr) return kNullPointer;
  dropout->probability = probability;
  return kSuccess;
}

MEMLEDGER_DOES_NOTHING(cudnnSetActivationDescriptor)
MEMLEDGER_DOES_NOTHING(cudnnSetPooling2dDescriptor)
MEMLEDGER_DOES_NOTHING(cudnnSetSpatialTransformerNdDescriptor)
MEMLEDGER_COMPUTES(cudnnPoolingForward)
MEMLEDGER_COMPUTES(cudnnSpatialTfGridGeneratorForward)
MEMLEDGER_COMPUTES(cudnnSpatialTfGridGeneratorBackward)
MEMLEDGER_COMPUTES(cudnnSpatialTfSamplerForward)
MEMLEDGER_COMPUTES(cudnnSpatialTfSamplerBackward)
