#!/usr/bin/env python3
"""Puts the C++ snippets of the documentation, and the examples of the public headers, into one C++ file.

Usage: extract_snippets.py FILE.md… FILE.h…, C++ on standard output.

A ```cpp block with a main() or a test case is a program; every other block, and every header's
example, is the body of a function that has these arguments:

  model   torch::nn::Sequential        input, target, output, loss   torch::Tensor
  optimizer   torch::optim::Adam

The example of a header is what begins with "//" and three spaces or more above its first include.
"""

import re
import sys

MAX_COMMENT_LINES = 10
# Headers may still lack an example: they are listed, and the test passes.
ALLOW_MISSING_EXAMPLES = False

# Headers that users do not include themselves.
NEEDS_NO_EXAMPLE = (
    "prediction/measurement.h",
    "prediction/prediction.h",
    "registry/version.h",
    "tracker/layers/model_size_run.h",
)

ARGUMENTS = (
    "[[maybe_unused]] torch::nn::Sequential model, [[maybe_unused]] torch::optim::Adam& optimizer, "
    "[[maybe_unused]] torch::Tensor input, [[maybe_unused]] torch::Tensor target, "
    "[[maybe_unused]] torch::Tensor output, [[maybe_unused]] torch::Tensor loss"
)

# No googletest is needed to compile what is said about it.
GTEST_STAND_IN = """\
#define ADD_FAILURE_AT(file, line) std::cerr << (file) << ':' << (line) << ' '
#define TEST(suite, name) void suite##_##name()
#define EXPECT_TRUE(verdict) static_cast<void>(verdict)
"""


class Snippet:
    def __init__(self, path, line, lines):
        self.path = path
        self.line = line  # of its first line
        self.lines = lines

    def includes(self):
        pattern = re.compile(r"\s*#include\s+([<\"][^>\"]+[>\"])")
        own = ['"%s"' % self.path] if self.path.endswith(".h") else []
        return [match.group(1) for match in map(pattern.match, self.lines) if match] + own

    def is_program(self):
        return any(re.match(r"(int main|TEST_CASE|TEST)\s*\(", line) for line in self.lines)

    def code(self):
        """Its lines; includes are blank, as the file begins with them, and so the numbers stay right."""
        return "\n".join("" if re.match(r"\s*#include\b", line) else line for line in self.lines)


def markdown_snippets(path, lines):
    snippets, inside = [], None
    for number, line in enumerate(lines, 1):
        if inside is not None and line.strip() == "```":
            snippets.append(inside)
            inside = None
        elif inside is not None:
            inside.lines.append(line)
        elif line.strip() == "```cpp":
            inside = Snippet(path, number + 1, [])
    if inside is not None:
        sys.exit("%s:%d: this block has no end" % (path, inside.line - 1))
    return snippets


def opening_comments(lines):
    """(number, text) of each comment line above the first include or the first line of code."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("//"):
            yield number, text
        elif text and not text.startswith("#pragma"):
            return


def header_example(path, lines):
    code = [(number, text) for number, text in opening_comments(lines) if text.startswith("//   ")]
    if not code:
        return None
    first, last = code[0][0], code[-1][0]
    texts = dict(code)
    return Snippet(path, first, [texts.get(number, "//")[2:].strip() for number in range(first, last + 1)])


def quoted(text):
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def cpp_file(snippets, problems, missing):
    wanted = dict.fromkeys(include for snippet in snippets for include in snippet.includes())
    wanted.pop("<doctest/doctest.h>", None)
    wanted.pop("<gtest/gtest.h>", None)
    adaptors = [include for include in wanted if "/expectations_" in include]
    print("// Made by extract_snippets.py.")
    print("#include <torch/torch.h>\n\n#include <iostream>")
    for include in wanted:
        if include not in adaptors:
            print("#include %s" % include)
    print('#include "memledger.h"')
    print("#undef CHECK  // of LibTorch's logging\n#define DOCTEST_CONFIG_IMPLEMENT\n#include <doctest/doctest.h>")
    print(GTEST_STAND_IN, end="")
    for include in adaptors:
        print("#include %s" % include)
    print('\n#pragma GCC diagnostic ignored "-Wreturn-type"  // main() in a namespace is as any function')
    for warning in ("unused-variable", "unused-but-set-variable", "unused-function"):
        print('#pragma GCC diagnostic ignored "-W%s"' % warning)
    for number, snippet in enumerate(snippets):
        print("\nnamespace snippet_%d {" % number)
        if not snippet.is_program():
            print("void run(%s) {" % ARGUMENTS)
        print("#line %d %s\n%s" % (snippet.line, quoted(snippet.path), snippet.code()))
        if not snippet.is_program():
            print("}")
        print("}  // namespace snippet_%d" % number)
    print("\n#line 1 \"snippets_test\"\nconst void* const kBodies[] = {")
    for number, snippet in enumerate(snippets):
        if not snippet.is_program():
            print("    reinterpret_cast<const void*>(&snippet_%d::run)," % number)
        elif any(line.startswith("int main") for line in snippet.lines):
            print("    reinterpret_cast<const void*>(&snippet_%d::main)," % number)
    print("};")
    headers = sum(snippet.path.endswith(".h") for snippet in snippets)
    print("const char* const kProblems[] = {%s};" % "".join(quoted(text) + ",\n" for text in problems + [""]))
    print("const char* const kWithoutExample[] = {%s};" % "".join(quoted(text) + ",\n" for text in missing + [""]))
    print("""
int main() {
  std::cout << "%d snippets: %d of headers\\n";
  for (const char* header : kWithoutExample) {
    if (*header != 0) std::cout << "no example: " << header << '\\n';
  }
  int problems = 0;
  for (const char* problem : kProblems) {
    if (*problem == 0) continue;
    ++problems;
    std::cout << "FAILED: " << problem << '\\n';
  }
  for (const void* body : kBodies) problems += body == nullptr;
  return problems == 0 ? 0 : 1;
}""" % (len(snippets), headers))


def main():
    snippets, problems, missing = [], [], []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        if path.endswith(".md"):
            snippets += markdown_snippets(path, lines)
            continue
        comments = len(list(opening_comments(lines)))
        if comments > MAX_COMMENT_LINES:
            problems.append("%s: %d comment lines above the first include, %d are allowed"
                            % (path, comments, MAX_COMMENT_LINES))
        example = header_example(path, lines)
        if example:
            snippets.append(example)
        elif not path.endswith(NEEDS_NO_EXAMPLE):
            missing.append(path)
    if not ALLOW_MISSING_EXAMPLES:
        problems += ["%s: no example above the first include" % path for path in missing]
    if not any(snippet.path.endswith(".md") for snippet in snippets):
        problems.append("no snippet was found in any page")
    cpp_file(snippets, problems, missing)


if __name__ == "__main__":
    main()
