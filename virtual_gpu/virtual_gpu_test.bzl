"""Tests that need a GPU, on a machine that has none."""

load("@libtorch//:version.bzl", "LIBTORCH_HAS_CUDA")

def virtual_gpu_test(name, binary, gpu = "h200", args = [], env = {}, tags = [], libraries = [], **kwargs):
    """Runs a test program as `memledger run --quiet --virtual-gpu=GPU -- binary args`.

    Args:
      name: of the test
      binary: the program, a testonly cc_binary
      gpu: as --virtual-gpu takes it
      args: of the program
      env: set for the program
      libraries: that the program finds at run time
      tags: in addition to those that keep the sanitizers away: their libraries must be loaded before what is preloaded
      **kwargs: of sh_test
    """
    if not LIBTORCH_HAS_CUDA:
        # Nothing to test; a test that passes without running would say otherwise.
        return
    native.sh_test(
        name = name,
        srcs = ["//virtual_gpu:run_test_program.sh"],
        args = ["$(rootpath //:memledger_cli)", gpu, "$(rootpath %s)" % binary] + args,
        data = [binary, "//:memledger_cli"] + libraries,
        env = env,
        tags = ["no_asan", "no_ubsan"] + tags,
        **kwargs
    )
