#!/usr/bin/env python3
"""Prints the value types that memledger's public headers define as a C++ macro, PUBLIC_VALUES(X).

Arguments: the headers. A type counts unless NO_VALUES names it; a name in NO_VALUES that no header
has is an error.
"""

import re
import sys

NO_VALUES = {
    "options, written by the user": [
        "CourtesyOptions", "GrowthOptions", "GrowthRule", "LeakOptions", "LineProfilerOptions", "ModelSizeOptions",
        "MemoryProfilerOptions", "OutOfMemoryOptions", "PredictOptions", "RegistryOptions", "ReportOptions", "SavedTensorOptions", "StackOptions",
        "TimelineOptions", "TrackerOptions", "PythonFunction", "Colour", "GroupBy", "PeakOver", "Rounding", "SortBy"
    ],
    "objects that do something": [
        "CountedHooks", "Courtesy", "Cursor", "GrowthFinder", "GrowthSeries", "LineProfiler", "MemReporter", "MemTracker",
        "MemoryBudget", "MemoryProfiler", "NoLeak", "PeakAtMost", "Recorder", "Registry", "ScopedCourtesy", "ScopedLabel",
        "ScopedPhase", "ScopedTracking", "ScopedTrainingPaused", "Timeline"
    ],
    "means of others": ["StorageGroupHash", "TextFormatter"],
}


def code_of(path):
    """The header without comments, and without what is in namespaces of its own."""
    with open(path, encoding="utf-8") as header:
        text = header.read()
    own = r"\nnamespace (\w*internal|memledger::\w+) \{.*?\n\}  // namespace \1\b"
    text = re.sub(own, "", text, flags=re.DOTALL)
    return re.sub(r"//.*", "", text)


def main():
    found = set()
    for path in sys.argv[1:]:
        # At the start of a line: a nested type is printed with its class. Names with :: are
        # specialisations of others' templates.
        definition = r"^(?:struct|class|enum class|enum)\s+(?:\[\[\w+\]\]\s+)?(\w+)\b(?!::)[^;{}()]*\{"
        code = code_of(path)
        found.update(match.group(1) for match in re.finditer(definition, code, re.MULTILINE))
        # What a header brings into memledger from such a namespace.
        found.update(re.findall(r"^using \w+::(\w+);", code, re.MULTILINE))
    other = {name for names in NO_VALUES.values() for name in names}
    if other - found:
        sys.exit("public_values.py: no header has " + ", ".join(sorted(other - found)))
    values = sorted(found - other)
    if len(values) < 40:
        sys.exit("public_values.py: only %d values were found" % len(values))
    print("#define PUBLIC_VALUES(X) " + " ".join("X(%s)" % name for name in values))


if __name__ == "__main__":
    main()
