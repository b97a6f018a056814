#!/usr/bin/env python3
"""CMake builds memledger from the same files as Bazel, with the same warnings and the same interface hash."""

import pathlib
import re
import sys

failures = []


def check(what, cmake, bazel):
    if cmake == bazel:
        return
    failures.append(what)
    for name, here, there in [("Bazel", bazel, cmake), ("CMake", cmake, bazel)]:
        for line in [line for line in here if line not in there]:
            print(f"{what}: only {name} has {line}")
    if sorted(cmake) == sorted(bazel):
        print(f"{what}: the orders differ")


def cmake_lists(path):
    text = re.sub(r"#.*", "", pathlib.Path(path).read_text())
    return {name: files.split() for name, files in re.findall(r"set\((\w+)\s([^)]*)\)", text)}


def sources(labels):
    """Files of this repository that are compiled; those of tests are none of them."""
    files = []
    for label in pathlib.Path(labels).read_text().split():
        if label.startswith("//") and label.endswith(".cc"):
            files.append(label[2:].lstrip(":").replace(":", "/"))
    return sorted(files)


def starlark_lists(path):
    """The lists of a .bzl file that need no Bazel."""
    names = {"load": lambda *_: None, "select": lambda _: [], "LIBTORCH_VERSION": (2, 11)}
    exec(pathlib.Path(path).read_text(), names)  # Starlark's syntax is Python's
    return names


def check_interface_hash(lists):
    import hashlib

    content = b"".join(pathlib.Path(header).read_bytes() for header in lists["MEMLEDGER_INTERFACE_HEADERS"])
    made = pathlib.Path("registry/interface_hash.h").read_text().split('"')[1]
    check("the interface hash", [hashlib.sha256(content).hexdigest()[:12]], [made])


def check_groups(lists):
    """A file that cmake/unity.cmake names is one of the library's."""
    named = re.findall(r"\b([\w/]+\.cc)\b", pathlib.Path("cmake/unity.cmake").read_text().replace("MEMLEDGER_GROUP_OF_", " "))
    library = lists["MEMLEDGER_LIBRARY_SOURCES"] + lists["MEMLEDGER_INSIDE_SOURCES"]
    check("the groups of cmake/unity.cmake", sorted(named), sorted(file for file in named if file in library))
    if len(named) < 5:
        failures.append("groups")


def check_newest_libtorch():
    """The newest release that the code knows is the newest that is pinned."""
    header = pathlib.Path("registry/libtorch/newest_libtorch.h").read_text()
    minor = re.search(r"#define MEMLEDGER_NEWEST_LIBTORCH_MINOR (\d+)", header)[1]
    pins = starlark_lists("third_party/libtorch_versions.bzl")["LIBTORCH_WHEELS"]
    newest = max(tuple(map(int, pin.split(".")[:2])) for pin in pins)
    check("the newest LibTorch", [f"2.{minor}"], [f"{newest[0]}.{newest[1]}"])


def main():
    lists = cmake_lists("cmake/sources.cmake")
    compared = set()
    for labels in sorted(pathlib.Path("tests/cmake").glob("*.labels")):
        name = f"MEMLEDGER_{labels.stem}_SOURCES"
        compared.add(name)
        bazel = sources(labels)
        if name == "MEMLEDGER_HIDDEN_SOURCES":
            bazel = [file for file in bazel if file in lists["MEMLEDGER_LIBRARY_SOURCES"]]
        if not bazel:
            failures.append(name)
            print(f"{name}: Bazel has no file: a query of tests/cmake/BUILD is wrong")
        check(name, sorted(lists.get(name, [])), bazel)
    check("the lists", sorted(name for name in lists if name.endswith("_SOURCES")), sorted(compared))
    flags = cmake_lists("CMakeLists.txt")
    check("the warnings", flags["MEMLEDGER_WARNINGS"], starlark_lists("third_party/copts.bzl")["MEMLEDGER_COPTS"])
    check_interface_hash(lists)
    check_groups(lists)
    check_newest_libtorch()
    print(f"{len(compared)} lists compared, {sum(len(lists[name]) for name in compared if name in lists)} files")
    return 1 if failures else 0


sys.exit(main())
