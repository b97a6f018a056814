#pragma once

#include <c10/core/Allocator.h>
#include <dlfcn.h>

#include <cstring>

namespace memledger {

// Returns whether LibTorch's allocator of pinned host memory took this memory: a function of
// LibTorch's CUDA library frees what is on the CPU. Asks CUDA nothing, which gives no answers in a
// copy of the process. Takes the loader's lock.
inline bool is_freed_as_pinned(const c10::DataPtr& data) noexcept {
  if (!data.device().is_cpu() || data.get_deleter() == nullptr) return false;
  Dl_info library{};
  return dladdr(reinterpret_cast<void*>(data.get_deleter()), &library) != 0 &&
         library.dli_fname != nullptr && std::strstr(library.dli_fname, "libtorch_cuda") != nullptr;
}

}  // namespace memledger
