#pragma once

#include <dlfcn.h>

namespace memledger::testing {

using AsksForKeptWorkspaces = bool (*)();

// Null up to 2.14, which has no such choice.
inline AsksForKeptWorkspaces asks_for_kept_workspaces() {
  return reinterpret_cast<AsksForKeptWorkspaces>(
      dlsym(RTLD_DEFAULT, "_ZN2at4cuda33isCUDABlasWorkspaceCachingEnabledEv"));
}

// Returns whether LibTorch keeps cuBLAS's workspaces between operations. From 2.15 on it gives each
// back with its operation, unless TORCH_CUBLAS_WORKSPACE_CACHE=1 is set.
inline bool keeps_workspaces() {
  const AsksForKeptWorkspaces asked = asks_for_kept_workspaces();
  return asked == nullptr || asked();
}

}  // namespace memledger::testing
