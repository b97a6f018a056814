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

cc_library(
    name = "torch_cuda",
    hdrs = glob(%{cuda_headers}, allow_empty = True),
    defines = %{cuda_defines},
    includes = %{cuda_includes},
    linkopts = %{cuda_link},
    deps = [":torch"],
)

filegroup(
    name = "autograd_functions_header",
    srcs = ["torch/include/torch/csrc/autograd/generated/Functions.h"],
)

exports_files(["version.bzl"])
