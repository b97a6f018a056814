// cuDNN: batch norm.
#include "virtual_gpu/answers/cudnn.h"

namespace memledger::virtual_gpu::cudnn {
namespace {

constexpr int kSpatialPersistent = 2;

BatchNorm batch_norm(int mode, const Tensor& x) {
  BatchNorm result;
  result.type = element_type(x.data_type);
  result.persistent = mode == kSpatialPersistent;
  result.channels_last = is_channels_last(x.extents, x.strides);
  result.elements = 1;
  for (const int64_t extent : x.extents) result.elements *= extent;
  return result;
}

int give(uint64_t value, size_t* bytes) {
  if (bytes == nullptr) return kNullPointer;
  *bytes = value;
  note_workspace_asked(WorkspaceKind::kBatchNorm, value);
  return kSuccess;
}

}  // namespace
}  // namespace memledger::virtual_gpu::cudnn

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::cudnn;

MEMLEDGER_ANSWER int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    Handle*, int mode, int, const cudnn::Tensor* x, const cudnn::Tensor*, const cudnn::Tensor*,
    const cudnn::Tensor*, const Activation*, size_t* bytes) {
  return x == nullptr ? kNullPointer
                      : give(batch_norm_forward_workspace_bytes(batch_norm(mode, *x)), bytes);
}
MEMLEDGER_ANSWER int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    Handle*, int mode, int, const cudnn::Tensor* x, const cudnn::Tensor*, const cudnn::Tensor*,
    const cudnn::Tensor*, const cudnn::Tensor*, const cudnn::Tensor*, const Activation*,
    size_t* bytes) {
  return x == nullptr ? kNullPointer
                      : give(batch_norm_backward_workspace_bytes(batch_norm(mode, *x)), bytes);
}
// Only a fused activation needs to be remembered, and LibTorch fuses none.
MEMLEDGER_ANSWER int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(Handle*, int, int,
                                                                          const Activation*,
                                                                          const cudnn::Tensor*,
                                                                          size_t* bytes) {
  if (bytes == nullptr) return kNullPointer;
  *bytes = 0;
  return kSuccess;
}

MEMLEDGER_ANSWER int cudnnBatchNormalizationForwardTrainingEx() {
  note_workspace_used(WorkspaceKind::kBatchNorm);
  note_library_work();
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnBatchNormalizationBackwardEx() {
  note_workspace_used(WorkspaceKind::kBatchNorm);
  note_library_work();
  return kSuccess;
}
MEMLEDGER_COMPUTES(cudnnBatchNormalizationForwardInference)
