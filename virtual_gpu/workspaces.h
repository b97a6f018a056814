#pragma once

#include <cstddef>
#include <cstdint>

// What the program's math libraries asked for besides its tensors, for reporters: they are the one
// part of a peak that is a model here, see docs/virtual_gpu_workspaces.md. LibTorch takes these
// bytes from its allocator, so they are in its statistics, too.
extern "C" {

struct memledger_virtual_gpu_workspace {
  const char* name;        // "cuDNN convolution forward"; lives as long as the process
  uint64_t largest_bytes;  // the largest one that was asked for
  uint64_t asked;          // how often one was asked for, those of 0 bytes included
  uint64_t used;           // how often an operation with one ran
};

// Writes up to `capacity` rows, those that were asked for at least once, and returns how many there
// are. Counts since the start of the process. Found by name (dlsym): nullptr where no virtual GPU
// is there.
__attribute__((visibility("default"))) size_t memledger_virtual_gpu_workspaces(
    memledger_virtual_gpu_workspace* rows, size_t capacity);

}  // extern "C"

namespace memledger::virtual_gpu {

enum class WorkspaceKind {
  kConvolutionForward,
  kConvolutionBackwardData,
  kConvolutionBackwardFilter,
  kAttention,
  kOtherGraph,
  kBatchNorm,
  kRnnWorkspace,
  kRnnReserve,
  kCtcLoss,
  kDropoutStates,
  kCublas,
  kCufft,
  kCusolver,
  kCusparse,
  kCusparseLt,
  kCount,
};

// `1` prints the rows to stderr at exit.
inline constexpr char kPrintWorkspacesVariable[] = "MEMLEDGER_VIRTUAL_GPU_PRINT_WORKSPACES";

void note_workspace_asked(WorkspaceKind kind, uint64_t bytes);
void note_workspace_used(WorkspaceKind kind);

}  // namespace memledger::virtual_gpu
