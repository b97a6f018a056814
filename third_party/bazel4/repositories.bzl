"""Bazel 4 loads four repositories for its own use and would download them.

The stand-ins beside this file hold all that it uses of them. Newer Bazels bring or find their own.
"""

_STAND_INS = ["rules_cc", "rules_java", "rules_proto", "remote_coverage_tools"]

def _stand_in_impl(ctx):
    folder = ctx.path(Label("//third_party/bazel4/%s:WORKSPACE" % ctx.name)).dirname
    for entry in folder.readdir():
        ctx.symlink(entry, entry.basename)

_stand_in = repository_rule(implementation = _stand_in_impl, local = True)

def bazel4_repositories():
    version = native.bazel_version or ""

    # Debian's bazel-bootstrap (4.2.3) says "no_version", with and without a suffix.
    if version and version[0].isdigit() and not version.startswith("4."):
        return
    declared = native.existing_rules()
    for name in _STAND_INS:
        if name not in declared:
            _stand_in(name = name)
