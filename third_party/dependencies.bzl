"""Declares what memledger depends on, for a workspace that uses it and for its own.

    local_repository(name = "memledger", path = "…")   # or git_repository, http_archive
    load("@memledger//third_party:dependencies.bzl", "memledger_dependencies")
    memledger_dependencies()

A repository of the same name that the workspace has declared before is used instead.
"""

load(":libtorch.bzl", "libtorch_repository")
load(":system_libraries.bzl", "memledger_system_libraries")
load("//third_party/bazel4:repositories.bzl", "bazel4_repositories")

def memledger_dependencies():
    bazel4_repositories()
    if "libtorch" not in native.existing_rules():
        libtorch_repository(name = "libtorch")
    memledger_system_libraries()
