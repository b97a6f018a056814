# Written by //third_party:libtorch.bzl.
package(default_visibility = ["//visibility:public"])

# LibTorch's headers include fmt and carry their own copy of it; its compiled part is not exported.
cc_library(
    name = "torch",
    hdrs = glob(["torch/include/**"]),
    defines = ["FMT_HEADER_ONLY=1"],
    includes = %{api_includes},
    linkopts = %{link},
)

# Links nothing.
cc_library(
    name = "torch_cuda_headers",
    hdrs = glob(%{cuda_headers}, allow_empty = True),
    defines = %{cuda_defines},
    includes = %{cuda_includes},
)

cc_library(
    name = "torch_cuda",
    linkopts = %{cuda_link},
    deps = [
        ":torch",
        ":torch_cuda_headers",
    ],
)

# cuda_runtime_api.h and cuda.h, where there is CUDA.
filegroup(
    name = "cuda_runtime_headers",
    srcs = %{cuda_runtime_headers},
)

filegroup(
    name = "autograd_functions_header",
    srcs = ["torch/include/torch/csrc/autograd/generated/Functions.h"],
)

# Where the virtual functions of CUDA's allocator are declared, the version first.
filegroup(
    name = "cuda_allocator_headers",
    srcs = [
        "torch/include/torch/headeronly/version.h",
        "torch/include/c10/core/Allocator.h",
        "torch/include/c10/core/CachingDeviceAllocator.h",
        "torch/include/c10/cuda/CUDACachingAllocator.h",
    ],
)

exports_files([
    "libraries.txt",
    "version.bzl",
])
