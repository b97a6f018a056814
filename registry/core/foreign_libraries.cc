#include "registry/core/foreign_libraries.h"

#include <string_view>

namespace memledger::core {
namespace {

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

std::string_view file_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

// Prefixes are long enough to spare users' libraries, such as libcustom_ops.so and
// libtorchvision.so.
bool is_foreign_library(std::string_view path) {
  const std::string_view file = file_name(path);
  for (const std::string_view name : {"libtorch.so",
                                      "libtorch_cpu",
                                      "libtorch_cuda",
                                      "libtorch_python",
                                      "libtorch_global_deps",
                                      "libtorch_nvshmem",
                                      "libc10.so",
                                      "libc10_cuda",
                                      "libshm.so",
                                      "libcuda.so",
                                      "libcudart",
                                      "libcublas",
                                      "libcudnn",
                                      "libcufft",
                                      "libcufile",
                                      "libcupti",
                                      "libcurand",
                                      "libcusolver",
                                      "libcusparse",
                                      "libcudss",
                                      "libnvrtc",
                                      "libnvJitLink",
                                      "libnvToolsExt",
                                      "libnvshmem",
                                      "libnvidia",
                                      "libnccl",
                                      "libstdc++",
                                      "libc.so",
                                      "libm.so",
                                      "libgcc_s",
                                      "libgomp",
                                      "libdl.so",
                                      "librt.so",
                                      "libpthread",
                                      "libmemledger",
                                      "ld-linux",
                                      "linux-vdso",
                                      "libpython",
                                      "libz.so",
                                      "libasan",
                                      "libubsan",
                                      "libtsan"}) {
    if (starts_with(file, name)) return true;
  }
  return false;
}

}  // namespace memledger::core
