#!/usr/bin/env python3
"""Downloads wheels with pip, checks their SHA-256 and unpacks what LibTorch programs need.

Usage: fetch_libtorch.py DEST [REQUIREMENT PLATFORM SHA256]...
       fetch_libtorch.py --shared STORE [VERSION]

SHA256 may be `-`: then only pip's own check against the index holds, and the script says so.
With --shared, unpacks VERSION of libtorch_versions.bzl (or its default) into a folder of STORE named after the
checksums, unless it is there already, and prints the path of its `torch` folder. Processes that ask for the same
release at once wait for the first. STORE keeps the KEEP_RELEASES releases that were used last.
Run by bazelw and by the repository rule in libtorch.bzl; standard library only, Python 3.8 or newer.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

# The parts of the wheels that a C++ program uses. The rest (Python files and their licences) stays
# packed.
KEEP = ("torch/include/", "torch/lib/", "torch/share/", "nvidia/")
# Reads the pickles that timelines are written to; //tests/tracker:timeline_test runs it. It needs
# no other file of torch.
KEEP_FILE = "torch/cuda/_memory_viz.py"
# The wheels are tagged for one CPython, but nothing of CPython is used: this one has a wheel of
# every release.
PYTHON_VERSION = "3.11"
# How many releases --shared keeps, 1.1 GB each.
KEEP_RELEASES = 4


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


def fetch(dest, wheels):
    with tempfile.TemporaryDirectory(dir=dest) as scratch:
        for requirement, platform, sha256 in wheels:
            wheel = download(requirement, platform, pathlib.Path(scratch))
            check(wheel, sha256)
            unpack(wheel, dest)
            wheel.unlink()


def remove_old_releases(store, kept):
    """Removes all releases but `kept` and those used last, by their folders' times."""
    releases = [folder for folder in store.glob("torch-*") if folder.is_dir() and folder != kept]
    releases.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in releases[KEEP_RELEASES - 1:]:
        shutil.rmtree(folder, ignore_errors=True)


def fetch_shared(store, version):
    """Returns the folder of `version` in `store`, unpacked once for all clones on this machine."""
    pinned = {}
    exec((pathlib.Path(__file__).parent / "libtorch_versions.bzl").read_text(), pinned)
    version = version or pinned["DEFAULT_LIBTORCH_VERSION"]
    wheels = pinned["LIBTORCH_WHEELS"].get(version)
    if wheels is None:
        sys.exit(f"LIBTORCH_VERSION={version} is not one of {', '.join(sorted(pinned['LIBTORCH_WHEELS']))}. "
                 "Set LIBTORCH=/path/to/an/unpacked/LibTorch to use another release.")
    # The name depends on which files are unpacked, too: another selection is another folder.
    key = hashlib.sha256(repr((wheels, KEEP, KEEP_FILE)).encode()).hexdigest()[:12]
    release = store / f"torch-{version}-{key}"
    store.mkdir(parents=True, exist_ok=True)
    with open(store / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if release.is_dir():
            os.utime(release)
            return release
        print(f"downloading LibTorch {version} by pip (about 530 MB)", file=sys.stderr)
        # A process that was killed leaves a folder of this name behind.
        for left_over in store.glob(".unpacking-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=".unpacking-", dir=store))
        try:
            fetch(scratch, wheels)
            scratch.chmod(0o755)
            scratch.rename(release)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        remove_old_releases(store, release)
    return release


def main():
    if len(sys.argv) in (3, 4) and sys.argv[1] == "--shared":
        print(fetch_shared(pathlib.Path(sys.argv[2]), sys.argv[3] if len(sys.argv) == 4 else "") / "torch")
        return
    dest = pathlib.Path(sys.argv[1])
    wheels = sys.argv[2:]
    if not wheels or len(wheels) % 3:
        sys.exit(__doc__)
    fetch(dest, list(zip(*[iter(wheels)] * 3)))


if __name__ == "__main__":
    main()
