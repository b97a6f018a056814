#!/usr/bin/env python3
"""Downloads wheels with pip, checks their SHA-256 and unpacks what LibTorch programs need.

Usage: fetch_libtorch.py DEST [REQUIREMENT PLATFORM SHA256]...

SHA256 may be `-`: then only pip's own check against the index holds, and the script says so.
Run by the repository rule in libtorch.bzl; standard library only, Python 3.8 or newer.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# What a C++ program uses of the wheels. The rest (Python files, licences of the Python side) stays packed.
KEEP = ("torch/include/", "torch/lib/", "torch/share/", "nvidia/")
# Reads the pickles that timelines are written to; //tests/tracker:timeline_test runs it. It needs nothing else of torch.
KEEP_FILE = "torch/cuda/_memory_viz.py"
# The wheels are tagged for one CPython, but nothing of CPython is used: name one that has a wheel in every release.
PYTHON_VERSION = "3.11"


def download(requirement, platform, folder):
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--python-version", PYTHON_VERSION, "--platform", platform,
        "--dest", str(folder), requirement,
    ]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit(f"pip could not download {requirement} for {platform}:\n{result.stdout}\n"
                 "Set LIBTORCH=/path/to/an/unpacked/LibTorch to use one that is already here.")
    name = requirement.split("==")[0].replace("-", "_")
    wheels = sorted(folder.glob(f"{name}-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"expected one wheel of {requirement}, found {[w.name for w in wheels]}")
    return wheels[0]


def check(wheel, expected):
    if expected == "-":
        print(f"{wheel.name}: no pinned checksum, only the index's own was verified", file=sys.stderr)
        return
    digest = hashlib.sha256()
    with wheel.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != expected:
        sys.exit(f"{wheel.name}: SHA-256 is {digest.hexdigest()}, expected {expected}; refusing to use it")


def unpack(wheel, dest):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename
            if name == KEEP_FILE or (name.startswith(KEEP) and not name.endswith(".py")):
                archive.extract(member, dest)


def main():
    dest = pathlib.Path(sys.argv[1])
    wheels = sys.argv[2:]
    if not wheels or len(wheels) % 3:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(dir=dest) as scratch:
        for requirement, platform, sha256 in zip(*[iter(wheels)] * 3):
            wheel = download(requirement, platform, pathlib.Path(scratch))
            check(wheel, sha256)
            unpack(wheel, dest)
            wheel.unlink()


if __name__ == "__main__":
    main()
