"""Abseil, fmt, nlohmann-json, CLI11 and doctest from the distribution, under their usual labels.

A workspace with its own copies declares repositories of the same names before it calls these rules.
"""

# canonical package -> {target: pkg-config module}
_ABSEIL = {
    "base": {"base": "absl_base", "core_headers": "absl_core_headers"},
    "cleanup": {"cleanup": "absl_cleanup"},
    "container": {
        "flat_hash_map": "absl_flat_hash_map",
        "flat_hash_set": "absl_flat_hash_set",
        "inlined_vector": "absl_inlined_vector",
        "node_hash_map": "absl_node_hash_map",
    },
    "flags": {"flag": "absl_flags", "parse": "absl_flags_parse", "usage": "absl_flags_usage"},
    "hash": {"hash": "absl_hash"},
    "random": {"random": "absl_random_random"},
    "status": {"status": "absl_status", "statusor": "absl_statusor"},
    "strings": {"strings": "absl_strings", "str_format": "absl_str_format"},
    "synchronization": {"synchronization": "absl_synchronization"},
    "time": {"time": "absl_time"},
    "types": {"span": "absl_span"},
}

_HINT = "Run ./bazelw instead of bazel (it installs what is missing), or: apt-get install %s"

def _pkg_config(ctx, arguments, package):
    tool = ctx.which("pkg-config")
    if not tool:
        fail("pkg-config is missing. " + _HINT % "pkg-config")
    result = ctx.execute([tool] + arguments)
    if result.return_code != 0:
        fail("pkg-config %s: %s%s" % (" ".join(arguments), result.stderr, _HINT % package))
    return result.stdout.strip()

def _abseil_impl(ctx):
    include = _pkg_config(ctx, ["--variable=includedir", "absl_base"], "libabsl-dev")
    ctx.symlink(include + "/absl", "include/absl")
    ctx.file("BUILD", """cc_library(
    name = "headers",
    hdrs = glob(["include/absl/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")
    for package, targets in _ABSEIL.items():
        rules = []
        for target, module in targets.items():
            flags = [f for f in _pkg_config(ctx, ["--libs", module], "libabsl-dev").split(" ") if f]
            rules.append("""cc_library(
    name = "{target}",
    linkopts = {flags},
    visibility = ["//visibility:public"],
    deps = ["//:headers"],
)
""".format(target = target, flags = repr(flags)))
        ctx.file("absl/%s/BUILD" % package, "\n".join(rules))

abseil_repository = repository_rule(implementation = _abseil_impl, local = True)

def _header_only_impl(ctx):
    for include in ["/usr/include", "/usr/local/include"]:
        if ctx.path(include + "/" + ctx.attr.header).exists:
            folder = ctx.attr.header.split("/")[0]
            package = ctx.attr.package + "/" if ctx.attr.package else ""
            ctx.symlink(include + "/" + folder, package + "include/" + folder)
            ctx.file(package + "BUILD", """cc_library(
    name = "{target}",
    hdrs = glob(["include/**"]),
    defines = {defines},
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""".format(target = ctx.attr.target, defines = repr(ctx.attr.defines)))
            return
    fail("<%s> is missing. " % ctx.attr.header + _HINT % ctx.attr.debian_package)

header_only_repository = repository_rule(
    implementation = _header_only_impl,
    attrs = {
        "debian_package": attr.string(mandatory = True),
        "defines": attr.string_list(),
        "header": attr.string(mandatory = True),
        "package": attr.string(),
        "target": attr.string(mandatory = True),
    },
    local = True,
)

def memledger_system_libraries():
    """Declares the libraries that the workspace has not declared itself."""
    declared = native.existing_rules()
    if "com_google_absl" not in declared:
        abseil_repository(name = "com_google_absl")
    if "com_github_fmtlib_fmt" not in declared:
        # Header-only, so that files that see LibTorch's newer copy of fmt can be linked with
        # others.
        header_only_repository(
            name = "com_github_fmtlib_fmt",
            debian_package = "libfmt-dev",
            defines = ["FMT_HEADER_ONLY=1"],
            header = "fmt/format.h",
            target = "fmt",
        )
    if "doctest" not in declared:
        header_only_repository(
            name = "doctest",
            debian_package = "doctest-dev",
            header = "doctest/doctest.h",
            package = "doctest",
            target = "doctest",
        )
    if "nlohmann_json" not in declared:
        header_only_repository(
            name = "nlohmann_json",
            debian_package = "nlohmann-json3-dev",
            header = "nlohmann/json.hpp",
            target = "json",
        )
    if "cli11" not in declared:
        header_only_repository(
            name = "cli11",
            debian_package = "libcli11-dev",
            header = "CLI/CLI.hpp",
            target = "cli11",
        )
