// cuDNN: connectionist temporal classification.
#include <algorithm>

#include "virtual_gpu/answers/cudnn.h"

namespace memledger::virtual_gpu::cudnn {
namespace {

int give(uint64_t value, size_t* bytes) {
  *bytes = value;
  note_workspace_asked(WorkspaceKind::kCtcLoss, value);
  return kSuccess;
}

int use() {
  note_workspace_used(WorkspaceKind::kCtcLoss);
  note_library_work();
  return kSuccess;
}

}  // namespace
}  // namespace memledger::virtual_gpu::cudnn

using namespace memledger::virtual_gpu;
using namespace memledger::virtual_gpu::cudnn;

MEMLEDGER_DOES_NOTHING(cudnnSetCTCLossDescriptorEx)
MEMLEDGER_ANSWER int cudnnSetCTCLossDescriptor_v9(CtcLoss* loss, int, int, int, int longest_label) {
  if (loss == nullptr) return kNullPointer;
  loss->longest_label = longest_label;
  return kSuccess;
}
MEMLEDGER_ANSWER int cudnnSetCTCLossDescriptor_v8(CtcLoss* loss, int, int, int, int longest_label) {
  return cudnnSetCTCLossDescriptor_v9(loss, 0, 0, 0, longest_label);
}

// The probabilities are {steps, batch, classes}; lengths are on the host.
MEMLEDGER_ANSWER int cudnnGetCTCLossWorkspaceSize(Handle*, const cudnn::Tensor* probabilities,
                                                  const cudnn::Tensor*, const int*,
                                                  const int* label_lengths, const int*, int,
                                                  const CtcLoss*, size_t* bytes) {
  if (probabilities == nullptr || label_lengths == nullptr || bytes == nullptr) return kNullPointer;
  if (probabilities->extents.size() < 3)
    return fail(kBadParam, "memledger virtual GPU: probabilities need steps, batch and classes");
  const auto& e = probabilities->extents;
  int64_t all = 0, longest = 0;
  for (int64_t i = 0; i < e[1]; ++i) {
    all += label_lengths[i];
    longest = std::max<int64_t>(longest, label_lengths[i]);
  }
  return give(ctc_workspace_bytes(e[0], e[1], e[2], all, longest), bytes);
}
MEMLEDGER_ANSWER int cudnnGetCTCLossWorkspaceSize_v8(Handle*, int, const CtcLoss* loss,
                                                     const cudnn::Tensor* probabilities,
                                                     const cudnn::Tensor*, size_t* bytes) {
  if (loss == nullptr || probabilities == nullptr || bytes == nullptr) return kNullPointer;
  if (probabilities->extents.size() < 3)
    return fail(kBadParam, "memledger virtual GPU: probabilities need steps, batch and classes");
  const auto& e = probabilities->extents;
  return give(ctc_v8_workspace_bytes(e[0], e[1], e[2], loss->longest_label), bytes);
}

MEMLEDGER_ANSWER int cudnnCTCLoss() { return use(); }
MEMLEDGER_ANSWER int cudnnCTCLoss_v8() { return use(); }
