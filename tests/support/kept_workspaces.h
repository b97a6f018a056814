#pragma once

#include <dlfcn.h>

namespace memledger::testing {

// Tells whether LibTorch keeps cuBLAS's workspaces between operations. From 2.15 on it gives each
// back with its operation, unless TORCH_CUBLAS_WORKSPACE_CACHE=1 is set.
inline bool keeps_workspaces() {
  auto* const asked = reinterpret_cast<bool (*)()>(
      dlsym(RTLD_DEFAULT, "_ZN2at4cuda33isCUDABlasWorkspaceCachingEnabledEv"));
  return asked == nullptr || asked();
}

}  // namespace memledger::testing
