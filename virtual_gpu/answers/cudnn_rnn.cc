// cuDNN: recurrent networks. Where weights lie in the weight space is what makes flatten_parameters
// come out as on a real device.
#include "virtual_gpu/answers/cudnn.h"

namespace memledger::virtual_gpu::cudnn {
namespace {

constexpr int kBidirectional = 1;
constexpr int kDoubleBias = 2;
constexpr int kNoBias = 0;
constexpr int kTraining = 1;
constexpr uint32_t kPaddedIo = 1;

void describe(Tensor* tensor, int data_type, const RnnParameter& parameter) {
  tensor->data_type = data_type;
  tensor->extents = {1, parameter.rows, parameter.columns};
  tensor->strides = {parameter.rows * parameter.columns, parameter.columns, 1};
}

}  // namespace
}  // namespace memledger::virtual_gpu::cudnn

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::cudnn;

MEMLEDGER_ANSWER int cudnnSetRNNDescriptor_v8(Rnn* rnn, int, int cell, int bias_mode, int direction,
                                              int, int data_type, int, int, int32_t input_size,
                                              int32_t hidden_size, int32_t projection_size,
                                              int32_t layers, const Dropout* dropout,
                                              uint32_t flags) {
  if (rnn == nullptr) return kNullPointer;
  if (cell < 0 || cell > static_cast<int>(RnnCell::kGru) || input_size < 1 || hidden_size < 1 ||
      projection_size < 0 || layers < 1) {
    return fail(kBadParam, "memledger virtual GPU: no such recurrent network");
  }
  rnn->data_type = data_type;
  RnnShape& shape = rnn->shape;
  shape.cell = static_cast<RnnCell>(cell);
  shape.input_size = input_size;
  shape.hidden_size = hidden_size;
  shape.projection_size = projection_size == 0 ? hidden_size : projection_size;
  shape.layers = layers;
  shape.bidirectional = direction == kBidirectional;
  shape.biases = bias_mode == kNoBias ? 0 : bias_mode == kDoubleBias ? 2 : 1;
  shape.element_bytes = size_of(data_type);
  shape.padded_io = (flags & kPaddedIo) != 0;
  shape.dropout = dropout != nullptr && dropout->probability > 0;
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnSetRNNDataDescriptor(RnnData* data, int data_type, int, int longest,
                                               int batch, int vector_size, const int*, void*) {
  if (data == nullptr) return kNullPointer;
  data->data_type = data_type;
  data->longest = longest;
  data->batch = batch;
  data->vector_size = vector_size;
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnGetRNNWeightSpaceSize(const Handle*, const Rnn* rnn, size_t* bytes) {
  if (rnn == nullptr || bytes == nullptr) return kNullPointer;
  *bytes = rnn_weight_space_bytes(rnn->shape);
  return kSuccess;
}

// Addresses are offsets into the weight space that the caller names; a parameter that is not there
// has the address 0.
MEMLEDGER_ANSWER int cudnnGetRNNWeightParams(const Handle*, const Rnn* rnn, int32_t pseudo_layer,
                                             size_t, const void* weight_space, int32_t linear,
                                             cudnn::Tensor* matrix, void** matrix_address,
                                             cudnn::Tensor* bias, void** bias_address) {
  if (rnn == nullptr) return kNullPointer;
  const auto begin = reinterpret_cast<uintptr_t>(weight_space);
  const auto found_matrix = rnn_matrix(rnn->shape, pseudo_layer, linear);
  const auto found_bias = rnn_bias(rnn->shape, pseudo_layer, linear);
  if (matrix_address != nullptr) *matrix_address = nullptr;
  if (bias_address != nullptr) *bias_address = nullptr;
  if (!found_matrix.has_value())
    return fail(kBadParam, "memledger virtual GPU: no such matrix of the recurrent network");
  if (matrix != nullptr) describe(matrix, rnn->data_type, *found_matrix);
  if (matrix_address != nullptr)
    *matrix_address = reinterpret_cast<void*>(begin + found_matrix->offset);
  if (found_bias.has_value()) {
    if (bias != nullptr) describe(bias, rnn->data_type, *found_bias);
    if (bias_address != nullptr)
      *bias_address = reinterpret_cast<void*>(begin + found_bias->offset);
  } else if (bias != nullptr) {
    bias->extents.clear();
    bias->strides.clear();
  }
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnGetRNNTempSpaceSizes(const Handle*, const Rnn* rnn, int mode,
                                               const RnnData* x, size_t* workspace,
                                               size_t* reserve) {
  if (rnn == nullptr || x == nullptr) return kNullPointer;
  const RnnTemporaries sizes = rnn_temporaries(rnn->shape, x->longest, x->batch, mode == kTraining);
  if (workspace != nullptr) {
    *workspace = sizes.workspace_bytes;
    note_workspace_asked(WorkspaceKind::kRnnWorkspace, sizes.workspace_bytes);
  }
  if (reserve != nullptr) {
    *reserve = sizes.reserve_bytes;
    if (mode == kTraining) note_workspace_asked(WorkspaceKind::kRnnReserve, sizes.reserve_bytes);
  }
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnRNNForward(Handle*, Rnn*, int mode) {
  note_workspace_used(WorkspaceKind::kRnnWorkspace);
  note_library_work();
  if (mode == kTraining) note_workspace_used(WorkspaceKind::kRnnReserve);
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnRNNBackwardData_v8() {
  note_workspace_used(WorkspaceKind::kRnnWorkspace);
  note_library_work();
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnRNNBackwardWeights_v8() {
  note_workspace_used(WorkspaceKind::kRnnWorkspace);
  note_library_work();
  return kSuccess;
}
