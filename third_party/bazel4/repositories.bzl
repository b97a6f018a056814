"""Bazel 4 loads four repositories for its own use and would download them.

The stand-ins beside this file hold all that it uses of them. Newer Bazels bring or find their own.
"""

def bazel4_repositories():
    version = native.bazel_version or ""

    # Debian's bazel-bootstrap (4.2.3) says "no_version", with and without a suffix.
    if version and version[0].isdigit() and not version.startswith("4."):
        return
    for name in ["rules_cc", "rules_java", "rules_proto", "remote_coverage_tools"]:
        native.local_repository(name = name, path = "third_party/bazel4/" + name)
