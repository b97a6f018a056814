"""Whether TrackingCudaAllocator forwards every virtual function of the LibTorch in use.

Many of them are not pure: one that is forgotten compiles, and silently does what the base class
does. The compiler checks the other direction (`override`).

Usage: cuda_allocator_virtuals_test.py OUR_HEADER LIBTORCH_HEADER..., LibTorch's version.h among them
"""

import re
import sys

CLASSES = ["Allocator", "DeviceAllocator", "CUDAAllocator"]


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)


def closing(text, start, pair):
    """Where the bracket that opens at `start` is closed."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i
    raise ValueError("no end to: " + text[start:start + 80])


def class_bodies(text, name):
    for found in re.finditer(r"\b(?:class|struct)\s+(?:[A-Z0-9_]+\s+)?%s\b[^;{}()]*\{" % name, text):
        yield text[found.end():closing(text, found.end() - 1, "{}")]


def declarations(body):
    """The declarations of a class, without the bodies of functions."""
    result, start, i = [], 0, 0
    while i < len(body):
        if body[i] in "({":
            end = closing(body, i, "()" if body[i] == "(" else "{}")
            if body[i] == "{":
                result.append(body[start:i])
                start = end + 1
            i = end
        elif body[i] == ";":
            result.append(body[start:i])
            start = i + 1
        i += 1
    return [" ".join(one.split()) for one in result]


def split_parameters(text):
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "<({") - (char in ">)}")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def type_of(parameter):
    """The type without default, name, namespaces and qualifiers: enough to tell overloads apart."""
    text = re.sub(r"=.*", "", parameter)
    text = re.sub(r"\b(?:\w+::)+", "", text)
    text = re.sub(r"\bconst\b|[&*]", " ", text).strip()
    return re.sub(r"\s", "", text[:text.rindex(">") + 1]) if ">" in text else text.split()[0]


def signature(declaration):
    """Returns (name, parameter types) of a function's declaration, None for anything else."""
    # A macro or access specifier may stand before it.
    found = re.search(r"(~?\b\w+)\s*\(", declaration)
    if not found or found.group(1).startswith("~"):
        return None
    end = closing(declaration, found.end() - 1, "()")
    return found.group(1), tuple(type_of(one) for one in split_parameters(declaration[found.end():end]))


def preprocess(text, minor):
    """Keeps what is compiled for LibTorch 2.minor."""
    lines, kept = [], [True]
    for line in text.splitlines():
        at_least = re.match(r"#if MEMLEDGER_TORCH_AT_LEAST\((\d+)\)", line)
        if at_least:
            kept.append(minor >= int(at_least.group(1)))
        elif re.match(r"#if", line):
            kept.append(True)
        elif re.match(r"#else", line):
            kept[-1] = not kept[-1]
        elif re.match(r"#endif", line):
            kept.pop()
        elif all(kept):
            lines.append(line)
    return "\n".join(lines)


def main():
    ours_path, *headers = sys.argv[1:]
    theirs_paths = [path for path in headers if not path.endswith("/version.h")]
    with open(next(path for path in headers if path.endswith("/version.h"))) as file:
        minor = int(re.search(r"#define TORCH_VERSION_MINOR (\d+)", file.read()).group(1))

    theirs = {}
    for path in theirs_paths:
        with open(path) as file:
            text = without_comments(file.read())
        for name in CLASSES:
            for body in class_bodies(text, name):
                for one in declarations(body):
                    if re.search(r"\bvirtual\b", one) or re.search(r"\boverride\b", one):
                        key = signature(one)
                        if key:
                            theirs[key] = name
    for name in CLASSES:
        if name not in theirs.values():
            sys.exit("no virtual function of %s found: has the header changed its form?" % name)

    with open(ours_path) as file:
        ours_text = preprocess(without_comments(file.read()), minor)
    ours = set()
    for body in class_bodies(ours_text, "TrackingCudaAllocator"):
        for one in declarations(body):
            if re.search(r"\boverride\b", one):
                key = signature(one)
                if key:
                    ours.add(key)

    missing = sorted(set(theirs) - ours)
    for name, types in missing:
        print("not forwarded: %s::%s(%s)" % (theirs[name, types], name, ", ".join(types)))
    unknown = sorted(ours - set(theirs))
    for name, types in unknown:
        # It compiles, so this script has misread a header.
        print("not found in LibTorch's headers: %s(%s)" % (name, ", ".join(types)))
    print("LibTorch 2.%d: %d virtual functions, %d forwarded" % (minor, len(theirs), len(set(theirs) & ours)))
    sys.exit(1 if missing or unknown else 0)


if __name__ == "__main__":
    main()
