"""A benchmark: the program, and a test that it runs at all."""

load("//third_party:copts.bzl", "PRECOMPILED_MODULE_COPTS")

def benchmark(name, deps):
    """Makes NAME from NAME.cc, and NAME_smoke_test, which runs it with --smoke."""
    native.cc_library(
        name = name + "_main",
        testonly = True,
        srcs = [name + ".cc"],
        copts = PRECOMPILED_MODULE_COPTS,
        deps = deps + ["//third_party/precompiled:torch_module"],
    )
    native.cc_binary(
        name = name,
        testonly = True,
        deps = [":%s_main" % name],
    )
    native.cc_test(
        name = name + "_smoke_test",
        args = ["--smoke"],
        # Threads that wait for each other take minutes on a machine that builds something
        # meanwhile.
        env = {"OMP_NUM_THREADS": "1"},
        deps = [":%s_main" % name],
    )
