#pragma once

#include <cstddef>
#include <string_view>

namespace memledger::virtual_gpu {

// The cuDNN that the wheel of a LibTorch, "2.11.0", was compiled with, as cudnnGetVersion gives it.
// For a newer LibTorch than is known it is the newest, and so for a text that is no release.
size_t cudnn_version_of(std::string_view libtorch);

// That of the LibTorch which this library was built for.
size_t default_cudnn_version();

}  // namespace memledger::virtual_gpu
