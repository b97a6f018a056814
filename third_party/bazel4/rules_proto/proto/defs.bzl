"""Stands in for @rules_proto, which Bazel 4 loads for its own tools. Nothing here uses it."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
