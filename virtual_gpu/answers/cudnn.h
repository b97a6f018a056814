#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "virtual_gpu/answer_macros.h"
#include "virtual_gpu/answers/objects.h"
#include "virtual_gpu/rnn_layout.h"
#include "virtual_gpu/workspace_model.h"
#include "virtual_gpu/workspaces.h"

// What the parts of cuDNN here share: the objects behind its opaque pointers, and its numbers. The
// types lie in a named namespace, as the functions that take them are C functions of several files.
namespace memledger::virtual_gpu::cudnn {

constexpr int kSuccess = 0;
constexpr int kBadParam = 2000;
constexpr int kNullPointer = 2002;
constexpr int kNotFinalized = 2004;
constexpr int kNotSupported = 3000;
constexpr int kNoHostMemory = 4003;

constexpr int kFloat = 0;
constexpr int kDouble = 1;
constexpr int kHalf = 2;
constexpr int kBfloat16 = 9;

inline size_t size_of(int data_type) {
  switch (data_type) {
    case kDouble:
    case 10:  // int64
    case 20:  // complex float
      return 8;
    case kHalf:
    case kBfloat16:
      return 2;
    case 21:  // complex double
      return 16;
    case kFloat:
    case 4:   // int32
    case 19:  // uint32
      return 4;
    default:
      return 1;
  }
}

inline ElementType element_type(int data_type) {
  switch (data_type) {
    case kFloat:
      return ElementType::kFloat;
    case kDouble:
      return ElementType::kDouble;
    case kHalf:
      return ElementType::kHalf;
    case kBfloat16:
      return ElementType::kBfloat16;
    default:
      return ElementType::kOther;
  }
}

inline bool is_channels_last(const std::vector<int64_t>& extents,
                             const std::vector<int64_t>& strides) {
  if (extents.size() < 3 || strides.size() != extents.size()) return false;
  // With one channel, or one element in space, both layouts are the same.
  return strides[1] == 1 && extents[1] > 1 && strides.back() != 1;
}

// Sets the text that cudnnGetLastErrorString gives on this thread.
int fail(int status, std::string_view why);

struct Handle {
  void* stream = nullptr;
};

struct Tensor {
  int data_type = kFloat;
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;
};

struct Filter {
  int data_type = kFloat;
  int format = 0;
  std::vector<int64_t> extents;
};

struct ConvolutionShape {
  std::vector<int64_t> paddings, strides, dilations;
  int mode = 0;
  int compute_type = kFloat;
  int groups = 1;
  int math_type = 0;
};

struct Dropout {
  float probability = 0;
};

struct Rnn {
  RnnShape shape;
  int data_type = kFloat;
};

struct RnnData {
  int data_type = kFloat;
  int64_t longest = 0;
  int64_t batch = 0;
  int64_t vector_size = 0;
};

struct CtcLoss {
  int64_t longest_label = 0;
};

// Nothing of these is read back.
struct Activation {};
struct Pooling {};
struct SpatialTransformer {};

DeviceFacts device_facts();
// The user's choice of workspaces for convolutions.
const WorkspaceChoice& convolution_choice();
// What a real device's cuDNN asked for, if the user's calibration has it.
std::optional<uint64_t> calibrated_convolution_bytes(const Convolution& convolution);
// The model's size for the first plan: the expected one, or the upper bound if that is chosen.
uint64_t modelled_convolution_bytes(const Convolution& convolution, bool tensor_cores);
// The same of the largest of all plans.
uint64_t modelled_largest_bytes(const Convolution& convolution, bool tensor_cores);
// The first plan has that, or the program's own figure.
uint64_t chosen_convolution_bytes(const Convolution& convolution, bool tensor_cores);
// The plan of an attention graph, by its kind; 0 for others.
uint64_t attention_bytes(WorkspaceKind kind);
WorkspaceKind workspace_kind(ConvolutionPass pass);

}  // namespace memledger::virtual_gpu::cudnn
