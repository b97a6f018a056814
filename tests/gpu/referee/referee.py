#!/usr/bin/env python3
"""Holds the virtual GPU against programs that were measured on real ones.

  ./bazelw run //tests/gpu:referee                         # 40 judged rows of each published set
  ./bazelw run //tests/gpu:referee -- --rows=all --calibrate   # all; hours
  ./bazelw run //tests/gpu:referee -- --set=cnn --rows=100 --peers
  ./bazelw run //tests/gpu:referee -- --set=h200 --python=VENV/bin/python

Prints tables in Markdown: real figures inside, above and below the interval, its width, and verdicts beside what really
happened. --peers installs other estimators from PyPI and prints theirs. Rows that are done are not run again: they are in
a file of results, another one for each build of memledger. Ends with 1 if what docs/referee.md promises does not hold.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import peers
import runs
import sets
import tables

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
PUBLISHED_SETS = ("mlp", "transformers", "liger", "cnn")


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", choices=sorted(sets.SETS), help="without it all published ones")
    parser.add_argument("--rows", default="40", help="of each set that many judged ones, evenly spread, or `all`")
    parser.add_argument("--slice", action="store_true", help="40 rows that take a minute, in the place of --rows")
    parser.add_argument("--only", action="append", default=[], help="rows whose name holds this")
    parser.add_argument("--calibrate", action="store_true", help="run the rows that give nvidia-smi's constant, too")
    parser.add_argument("--peers", action="store_true", help="compare peers from PyPI, too")
    parser.add_argument("--results", help="file of rows that are done; without it one of this build, in the cache")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one run")
    parser.add_argument("--within", type=int, help="seconds; no further row is begun then, and those that are done judged")
    parser.add_argument("--details", action="store_true", help="print each row, too")
    parser.add_argument("--memledger", required=True)
    parser.add_argument("--published-case", required=True)
    parser.add_argument("--libtorch", default="", help="folder lib of the LibTorch of this build")
    parser.add_argument("--python", help="with this build's torch; without it the one that bazelw laid beside LibTorch")
    return parser.parse_args(words)


class Tools:
    """Paths of what rows are run with. Makes the Python when it is first needed."""

    def __init__(self, arguments):
        # As `bazel run` is called in another folder than the user stands in.
        here = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
        self.memledger = os.path.abspath(arguments.memledger)
        self.published_case = os.path.abspath(arguments.published_case)
        self.libtorch = arguments.libtorch and os.path.abspath(arguments.libtorch)
        self.timeout = arguments.timeout
        self.python = str(here / arguments.python) if arguments.python else None

    def words(self, program):
        places = {"{published_case}": self.published_case, "{python}": self.python}
        return [places.get(word, word) for word in program]

    def python_packages(self):
        """The folder with this build's torch, or None."""
        finder = ROOT / "third_party" / "fetch_libtorch.py"
        libtorch = pathlib.Path(self.libtorch).resolve().parent
        found = subprocess.run(
            [sys.executable, finder, "--find-python", libtorch], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() if found.returncode == 0 else None

    def find_python(self, folder):
        """Makes a virtual environment with this build's torch. False: there is none."""
        if self.python:
            return True
        packages = self.python_packages()
        if not packages:
            return False
        self.python = peers.environment(folder, packages)
        return True


def sample(rows, wanted, only):
    rows = [row for row in rows if all(word in row.name for word in only)]
    if wanted == "all" or int(wanted) >= len(rows):
        return rows
    return [rows[i * len(rows) // int(wanted)] for i in range(int(wanted))]


def show_progress(title):
    def show(count, of):
        print(f"\r{title}: {count} of {of} rows", end="\n" if count == of else "", file=sys.stderr, flush=True)

    return show


def main():
    arguments = arguments_of(sys.argv[1:])
    tools = Tools(arguments)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "memledger" / "referee"
    build = runs.fingerprint(tools.memledger, [tools.published_case, *sorted(HERE.glob("*program*.py"))])
    results = runs.Results(arguments.results or cache / f"{build}.jsonl")
    print(f"{time.strftime('%Y-%m-%d')}, results in {results.path.name}\n", flush=True)

    end = time.monotonic() + arguments.within if arguments.within is not None else None

    def run_rows(way, rows, progress):
        runs.run_rows(tools, results, way, rows, arguments.jobs, end, progress)

    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        chosen = {}
        for name in arguments.set or PUBLISHED_SETS:
            one = sets.SETS[name]
            rows = list(one.rows(one.rest_mib))
            if any("{python}" in row.program for row in rows) and not tools.find_python(pathlib.Path(scratch) / "python"):
                print(f"{one.title}: not run, there is no Python with this build's torch", flush=True)
                continue
            judged = sample([row for row in rows if row.judged], arguments.rows, arguments.only)
            if arguments.slice:
                judged = [row for row in rows if row.number in one.slice and row.judged]
            if arguments.calibrate:
                first = [row for row in rows if row.calibrates]
                run_rows("expected", first, show_progress(f"{one.title}, constant"))
            if not judged:
                continue
            run_rows(one.way, judged, show_progress(one.title))
            left = [row for row in judged if row.key not in results.done]
            if left:
                print(f"{one.title}: {len(left)} rows are left for a further run, which goes on with them", flush=True)
                judged = [row for row in judged if row.key in results.done]
            chosen[name] = (one, rows, judged)
        print(tables.figures_heading())
        for one, rows, judged in chosen.values():
            failures += tables.print_figures(one, rows, judged, results.done)
        print(tables.verdicts_heading())
        for one, _, judged in chosen.values():
            failures += tables.print_verdicts(one, judged, results.done)
        if arguments.details:
            for one, _, judged in chosen.values():
                tables.print_rows(one, judged, results.done)
        tables.print_not_compared([rows for _, rows, _ in chosen.values()], results.done)
        if arguments.peers:
            peers.compare(tools, cache, [(one, judged) for one, _, judged in chosen.values()], results.done, results.add)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
