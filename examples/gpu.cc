// Brings LibTorch's CUDA library into an example before main(), where there is a GPU, real or
// virtual.
//
// Linked with it, a program needs all of NVIDIA's libraries to begin at all, on a machine without a
// GPU, too. Here a GPU that cannot be used is reported in a line, and the example goes on without.

#include <dlfcn.h>

#include <cstdio>

namespace {

const bool looked_for_gpu = [] {
  // Without NVIDIA's driver there is no GPU.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) return false;
  // Found along the program's run path, as the libraries it is linked with.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
  std::fprintf(stderr, "The GPU is not used: %s\n", dlerror());
  return false;
}();

}  // namespace
