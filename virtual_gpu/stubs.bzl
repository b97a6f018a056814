"""The folder of libraries that a program is started with to have a virtual GPU."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _virtual_gpu_libraries_impl(ctx):
    folder = ctx.actions.declare_directory(ctx.attr.folder)
    result = [DefaultInfo(files = depset([folder]), runfiles = ctx.runfiles(files = [folder]))]
    if not ctx.attr.has_cuda:
        ctx.actions.run_shell(outputs = [folder], command = "mkdir \"$1/driver\" && : > \"$1/preload.txt\" && : > \"$1/driver/preload.txt\"", arguments = [folder.path])
        return result
    arguments = ctx.actions.args()
    arguments.add("--libtorch", ctx.attr.libtorch_lib)
    arguments.add("--answers", ctx.file.answers)
    arguments.add("--driver", ctx.file.driver)
    arguments.add("--cc", find_cpp_toolchain(ctx).compiler_executable)
    if ctx.files.cuda_headers:
        arguments.add("--headers", ctx.files.cuda_headers[0].dirname)
    arguments.add("--out", folder.path)
    ctx.actions.run_shell(
        outputs = [folder],
        inputs = [ctx.file.answers, ctx.file.driver, ctx.file.generator, ctx.file.libtorch_libraries] + ctx.files.planner + ctx.files.cuda_headers,
        command = "python3 %s \"$@\" && cp %s %s/" % (ctx.file.generator.path, " ".join([file.path for file in ctx.files.planner]), folder.path),
        arguments = [arguments],
        mnemonic = "VirtualGpuLibraries",
        progress_message = "Making stand-ins for NVIDIA's libraries",
        use_default_shell_env = True,
    )
    return result

virtual_gpu_libraries = rule(
    implementation = _virtual_gpu_libraries_impl,
    attrs = {
        "answers": attr.label(allow_single_file = True, mandatory = True, doc = "the library of considered functions"),
        "cuda_headers": attr.label_list(allow_files = True, doc = "cuda_runtime_api.h and cuda.h"),
        "driver": attr.label(allow_single_file = True, mandatory = True, doc = "the same, of which the driver, NVML and NCCL are shown"),
        "folder": attr.string(mandatory = True, doc = "its name"),
        "generator": attr.label(allow_single_file = True, default = "//virtual_gpu:generate_stubs.py"),
        "has_cuda": attr.bool(mandatory = True, doc = "whether there is anything to stand in for"),
        "libtorch_lib": attr.string(mandatory = True, doc = "absolute path of LibTorch's libraries"),
        "libtorch_libraries": attr.label(allow_single_file = True, mandatory = True, doc = "changes when they do"),
        "planner": attr.label_list(allow_files = True, mandatory = True, doc = "the program that asks cuDNN, what it needs, and nvidia-smi"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "Makes a folder with a stand-in for each of NVIDIA's libraries, the answers library, and preload.txt, the order to preload them in.",
)
