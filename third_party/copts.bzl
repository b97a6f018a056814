"""Compiler flags of memledger's own code, in one place."""

# Warnings are errors for our code only: external headers come in as system headers.
MEMLEDGER_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wnon-virtual-dtor",
]

# LibTorch is built with NDEBUG. Its RecordFunction has a member that exists only without NDEBUG,
# so a file that reads an operator's inputs must be built the same way whatever the Bazel mode is.
SEES_LIBTORCH_INLINES_COPTS = MEMLEDGER_COPTS + ["-DNDEBUG"]
