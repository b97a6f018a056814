"""Compiler flags of memledger's own code, in one place."""

load("@libtorch//:version.bzl", "LIBTORCH_VERSION")

# LibTorch's headers need C++20 from 2.14 on; before, the workspace's C++17 is enough.
_STANDARD = ["-std=c++20"] if LIBTORCH_VERSION >= (2, 14) else []

# A user's compiler may know warnings that ours does not: they are errors only with
# `--config=werror`, as in one of CI's builds.
_WARNINGS_ARE_ERRORS = select({
    "//third_party:werror": ["-Werror"],
    "//conditions:default": [],
})

_CHECK_LOCKS = select({
    "//third_party:debug": ["-DMEMLEDGER_CHECK_LOCKS"],
    "//conditions:default": [],
}) + select({
    "//third_party:check_locks": ["-DMEMLEDGER_CHECK_LOCKS"],
    "//conditions:default": [],
})

# For our code only: external headers are system headers.
MEMLEDGER_COPTS = [
    "-Wall",
    "-Wextra",
    "-Wnon-virtual-dtor",
] + _STANDARD + _WARNINGS_ARE_ERRORS + _CHECK_LOCKS

# LibTorch is built with NDEBUG. Its RecordFunction has a member that exists only without NDEBUG,
# so a file that reads an operator's inputs must be built the same way whatever the Bazel mode is.
SEES_LIBTORCH_INLINES_COPTS = MEMLEDGER_COPTS + ["-DNDEBUG"]

# For files that include torch/nn/module.h or as much, which take five times as long to parse as the
# rest. They must depend on //third_party/precompiled:torch_module, too.
PRECOMPILED_MODULE_COPTS = SEES_LIBTORCH_INLINES_COPTS + ["-include", "third_party/precompiled/torch_module.h"]

# Tests spend their time in LibTorch; optimising them would take a third of their compile time.
TEST_COPTS = SEES_LIBTORCH_INLINES_COPTS + ["-O0"]

# For tests that include torch/torch.h or nearly as much. They must depend on
# //third_party/precompiled:torch_in_tests, too.
PRECOMPILED_TEST_COPTS = TEST_COPTS + ["-include", "third_party/precompiled/torch_in_tests.h"]

# Programs as people ship them, with lines. They must depend on
# //third_party/precompiled:torch_in_programs, too.
OPTIMIZED_COPTS = SEES_LIBTORCH_INLINES_COPTS + ["-O2", "-g"]
OPTIMIZED_PROGRAM_COPTS = OPTIMIZED_COPTS + ["-include", "third_party/precompiled/torch_in_programs.h"]

# In addition to those, for tests of what differs between LibTorch's releases.
LIBTORCH_MINOR_COPTS = ["-DLIBTORCH_MINOR=%d" % LIBTORCH_VERSION[1]]

# For tests of stacks: a tail call would remove the caller's frame, inlining the function's line.
EXACT_STACKS_COPTS = MEMLEDGER_COPTS + [
    "-g",
    "-fno-inline",
    "-fno-optimize-sibling-calls",
]
